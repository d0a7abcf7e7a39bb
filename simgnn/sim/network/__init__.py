"""The network of a machine, whose links flows share max-min fairly."""
