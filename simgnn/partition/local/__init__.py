"""What one rank holds of a partitioned graph, in its own numbering."""
