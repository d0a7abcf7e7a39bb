"""What planning may know of a partition, gathered from it or read from a file."""
