"""Slot ``placement``: where rows are stored between their uses."""
