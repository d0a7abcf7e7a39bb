"""The commands of ``simgnn``, one file each."""
