"""Halo rows that stay in use for several epochs: which ones, where they lie, and the ops that refresh and read them."""
