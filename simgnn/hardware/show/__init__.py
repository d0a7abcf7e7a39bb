"""Profiles as text, and two profiles compared."""
