"""Records of simulations and runs: trace, activity, result, run directory."""
