"""Programs: ops on named buffers, with streams, dependencies and sizes."""
