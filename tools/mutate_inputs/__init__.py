"""Damages valid input files by seeded draws, and checks that every command refuses or reads the result cleanly."""
