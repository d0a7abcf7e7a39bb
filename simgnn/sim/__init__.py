"""The simulator: a program and a machine in, times, bytes, memory and energy out."""
