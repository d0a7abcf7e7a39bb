"""Prices: how long work, messages and collectives take on the machine of a hardware profile."""
