"""Slot ``schedule``: which op runs when, on which stream."""
