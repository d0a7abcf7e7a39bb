"""Slot ``placement``: where rows are kept between their uses."""
