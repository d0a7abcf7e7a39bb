"""From the samples of a calibration to a hardware profile."""
