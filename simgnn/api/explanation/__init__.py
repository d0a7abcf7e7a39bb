"""Why an epoch takes as long as it does, and what would change it: predictions with other numbers."""
