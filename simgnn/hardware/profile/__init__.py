"""Hardware profiles: the tables of a profile file, where profile files are found, and checks."""
