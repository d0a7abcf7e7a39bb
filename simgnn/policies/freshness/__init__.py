"""Slot ``freshness``: how old a remote row may be, and which rows are sent at all."""
