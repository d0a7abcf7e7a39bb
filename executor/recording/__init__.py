"""What ranks write while they run, how they fail, and the result that is made of it."""
