"""Errors of prices on groups of measurements that were left out, and the error model that is fitted to them."""
