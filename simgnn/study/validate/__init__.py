"""Predictions against runs on this machine."""
