"""Fit a hardware profile to the samples of a calibration."""
