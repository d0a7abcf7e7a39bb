"""What comes after and before a run: comparing it, fitting profiles to samples, replaying what it decided."""
