"""What a rank holds: buffers, routes, its model, its task."""
