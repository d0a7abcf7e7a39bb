"""Memory of devices and hosts over time."""
