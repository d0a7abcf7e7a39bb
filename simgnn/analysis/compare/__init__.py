"""Where a prediction and a run differ."""
