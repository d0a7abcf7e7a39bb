"""What simulations and runs leave behind: trace, activity, result, run directory."""
