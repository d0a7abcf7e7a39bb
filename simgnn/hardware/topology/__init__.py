"""The topology of a machine: hosts, devices and links, and the routes between devices."""
