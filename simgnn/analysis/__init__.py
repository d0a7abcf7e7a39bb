"""Analysis of runs: compare them with predictions, fit hardware profiles, and replay recorded decisions."""
