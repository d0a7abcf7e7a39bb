"""Names that were meant."""

import difflib
from collections.abc import Sequence


def nearest(name: str, known: Sequence[str]) -> str:
    """`` (did you mean '...'?)`` for the known name that looks most like ``name``; empty when none does."""
    match = difflib.get_close_matches(name.lower(), [entry.lower() for entry in known], n=1, cutoff=0.6)
    originals = {entry.lower(): entry for entry in known}
    return f" (did you mean '{originals[match[0]]}'?)" if match else ""
