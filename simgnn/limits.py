"""Upper bounds that catch typing errors before they cost time."""

MAX_RANKS = 65_536
MAX_PAIRED_RANKS = 8_192
"""For a single op whose bytes are stated by pairs of ranks: the table of all pairs takes half a GiB."""
