"""Hardware model: machine profiles with a source for every number, routes, and prices of work and communication."""
