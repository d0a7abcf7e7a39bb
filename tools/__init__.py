"""Scripts that make data shipped with the package; run from a checkout, not installed."""
