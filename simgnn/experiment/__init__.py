"""The experiment file: its sections and slots, how it is loaded, and the shipped systems."""
