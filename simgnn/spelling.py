"""Suggests the name that a misspelled name probably means."""

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return `` (did you mean '...'?)`` with the known name most similar to ``name``; empty if none is similar."""
    originals: dict[str, str] = {}
    for entry in known:
        originals.setdefault(entry.lower(), entry)
    match = difflib.get_close_matches(name.lower(), list(originals), n=1, cutoff=cutoff)
    match = match or [entry for entry in originals if len(name) > 2 and entry.startswith(name.lower())]
    return f" (did you mean '{originals[match[0]]}'?)" if match else ""
