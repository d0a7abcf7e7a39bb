"""Predictions against results that others have published."""
