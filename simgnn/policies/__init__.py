"""The policies: one folder per slot, one file per policy."""
