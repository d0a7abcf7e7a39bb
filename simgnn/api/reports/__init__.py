"""What users read of predictions and runs: why an epoch takes as long as it does, and pages of figures."""
