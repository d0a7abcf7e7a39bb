"""What ops of mini-batch programs call on a rank: batches, where their input rows come from, labels of their seeds."""
