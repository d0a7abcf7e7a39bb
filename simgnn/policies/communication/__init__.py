"""Slot ``communication``: which rows travel between ranks, and when."""
