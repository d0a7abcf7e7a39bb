"""What an experiment may hold of devices and hosts: what does not fit, and what would."""
