"""From an experiment and the statistics of its partition to a program."""
