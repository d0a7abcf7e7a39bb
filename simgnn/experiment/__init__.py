"""The experiment file: its sections, its slots, how it is loaded, and the shipped systems."""
