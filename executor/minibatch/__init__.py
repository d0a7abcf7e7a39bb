"""Functions that ops of mini-batch programs call on a rank: batches, sources of their input rows, labels of seeds."""
