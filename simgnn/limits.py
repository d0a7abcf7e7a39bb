"""What is asked for is refused beyond these, so that a slip of a digit is no wait."""

MAX_RANKS = 65_536
MAX_PAIRED_RANKS = 8_192
"""Of a single op whose bytes are told by pairs of ranks: a table of all of them is half a GiB."""
