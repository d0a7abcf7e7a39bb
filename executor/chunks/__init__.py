"""Training chunk by chunk: the edges of each chunk, lists of rows, and the context of a rank."""
