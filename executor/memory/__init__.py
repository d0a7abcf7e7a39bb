"""Peak memory of a process, and the allocator that serves it."""
