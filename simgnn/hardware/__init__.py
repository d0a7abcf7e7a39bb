"""Hardware: profiles with a source for every number, routes, and prices of work, messages and collectives."""
