"""What jitter adds to a simulated run."""
