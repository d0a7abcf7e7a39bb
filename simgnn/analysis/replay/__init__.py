"""The decisions of a recorded run as the activity of a simulation."""
