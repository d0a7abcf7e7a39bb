"""What simgnn does, as functions that notebooks and the command line call: predict, train, measure, compare."""
