"""Rows of unequal numbers of bits: how bits are chosen, how such rows lie in a message, and the ops of a transfer."""
