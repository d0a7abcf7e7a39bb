"""How each kind of device work is measured: inputs, and a function for each primitive."""
