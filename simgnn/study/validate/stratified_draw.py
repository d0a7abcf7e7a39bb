"""A stratified draw: few cases of many, in which every level of every axis comes up equally often."""

from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import combinations

import numpy as np

Key = tuple[Hashable, ...]


def balanced_draw(cases: Sequence[Sequence[Hashable]], count: int, seed: int) -> list[int]:
    """Places of ``count`` of the ``cases`` (levels of each, one an axis), ascending. Deterministic.

    One after another, the case is taken whose levels, then whose pairs of levels, were drawn least often so far, the
    seed deciding among equals; then cases are exchanged as long as that evens out levels, or pairs of equal levels.
    """
    order = np.random.default_rng(seed).permutation(len(cases)).tolist()
    keys = {place: _keys(cases[place]) for place in order}
    counts: tuple[Counter[Key], Counter[Key]] = (Counter(), Counter())
    drawn: dict[int, None] = {}
    for _ in range(count):
        left = [place for place in order if place not in drawn]
        chosen = min(left, key=lambda place: _growth(counts, keys[place]))
        drawn[chosen] = None
        _add(counts, keys[chosen], 1)
    improved = True
    while improved:
        improved = False
        for out in list(drawn):
            _add(counts, keys[out], -1)
            before = _growth(counts, keys[out])
            best = min((place for place in order if place not in drawn), default=out,
                       key=lambda place: _growth(counts, keys[place]))  # fmt: skip
            if _growth(counts, keys[best]) < before:
                del drawn[out]
                drawn[best] = None
                out, improved = best, True
            _add(counts, keys[out], 1)
    return sorted(drawn)


def _keys(levels: Sequence[Hashable]) -> tuple[list[Key], list[Key]]:
    """The levels of a case, and its pairs of levels."""
    numbered = list(enumerate(levels))
    return list(numbered), [(i, j, a, b) for (i, a), (j, b) in combinations(numbered, 2)]


def _growth(counts: Sequence[Counter[Key]], keys: Sequence[Sequence[Key]]) -> tuple[int, ...]:
    """By how much the sums of squared counts grow, levels first: what is even has the smallest sum."""
    return tuple(sum(2 * count[key] + 1 for key in own) for count, own in zip(counts, keys, strict=True))


def _add(counts: Sequence[Counter[Key]], keys: Sequence[Sequence[Key]], sign: int) -> None:
    for count, own in zip(counts, keys, strict=True):
        for key in own:
            count[key] += sign
