"""Slot ``codec``: how rows are encoded on their way."""
