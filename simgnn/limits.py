"""Upper bounds that catch typing errors before they cost time."""

MAX_RANKS = 65_536
MAX_PAIRED_RANKS = 8_192
"""Most ranks for an op that states bytes for each pair of ranks: the table of all pairs takes half a GiB."""
