"""Slot ``codec``: how rows are encoded for a transfer."""
