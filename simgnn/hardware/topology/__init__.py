"""What hangs where in a machine, the routes between devices, and the devices of ranks."""
