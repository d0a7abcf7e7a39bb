"""What :mod:`tools.inject_faults` consists of: drawing faults, disturbing runs, judging how they ended."""
