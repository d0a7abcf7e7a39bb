"""What is asked for is refused beyond these, so that a slip of a digit is no wait."""

MAX_RANKS = 65_536
