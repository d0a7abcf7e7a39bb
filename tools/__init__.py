"""What makes the data that the package ships: run from a checkout, not installed."""
