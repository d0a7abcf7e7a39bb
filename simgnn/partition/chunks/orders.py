"""The orders of chunks that compete, by name."""

from typing import Literal, get_args

Candidate = Literal["initial", "p1", "p2", "p1p2"]
CANDIDATES: tuple[Candidate, ...] = get_args(Candidate)
"""As divided; after phase 1 (which chunks share a batch); after phase 2 (the order of batches); after both."""
