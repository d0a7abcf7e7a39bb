"""The file that describes a machine: its tables, the library of profiles, and checks."""
