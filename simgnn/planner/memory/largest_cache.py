"""The largest caches of halo rows that fit into the memory of a machine, where the stated ones do not."""

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from simgnn.experiment.schema import Experiment
from simgnn.policy import Capacity

SHARES = 1000
"""Shares of halo rows are tried in steps of 1 / 1000."""
Fits = Callable[[Experiment], bool]


def largest_caches(experiment: Experiment, most_rows: int, fits: Fits) -> str:
    """Return words that name the largest cache that fits, "" if no cache is stated. ``most_rows``: above it a number of
    rows caches no more; ``fits``: whether memory suffices for an experiment. Of a list of numbers, those that are
    larger than what fits are made smaller."""
    stated = {option: rows for option, rows in experiment.placement.halo_caches.items() if _is_stated(rows)}
    if not stated:
        return ""
    if not fits(_with(experiment, dict.fromkeys(stated, 0))):
        return "it would not fit without a cache of halo rows, either"
    kept = dict(stated)
    for option, rows in stated.items():
        kept[option] = 0
        if fits(_with(experiment, kept)):  # the caches before are left out
            kept[option] = _largest(rows, most_rows, partial(_fits_with, experiment, fits, kept, option))
            break
    words = [f"placement.{option} = {list(rows) if isinstance(rows, tuple) else rows}" for option, rows in kept.items()]
    return f"the largest cache that fits: {' with '.join(words)}"


def without_caches(experiment: Experiment) -> Experiment:
    """Return the experiment with empty caches of halo rows."""
    return _with(experiment, dict.fromkeys(experiment.placement.halo_caches, 0))


def _is_stated(rows: Capacity) -> bool:
    return any(rows) if isinstance(rows, tuple) else not isinstance(rows, str) and rows > 0


def _with(experiment: Experiment, caches: Mapping[str, Capacity]) -> Experiment:
    placement = experiment.placement.model_copy(update=dict(caches))
    return experiment.model_copy(update={"placement": placement})


def _fits_with(experiment: Experiment, fits: Fits, kept: Mapping[str, Capacity], option: str, tried: Capacity) -> bool:
    return fits(_with(experiment, {**kept, option: tried}))


def _largest(stated: Capacity, most_rows: int, fits: Callable[[Capacity], bool]) -> Capacity:
    """Return the largest capacity below ``stated`` that fits, by bisection; 0 is known to fit."""

    def capacity(number: int) -> Capacity:
        if isinstance(stated, tuple):
            return tuple(min(each, number) for each in stated)
        return number / SHARES if isinstance(stated, float) else number

    assert not isinstance(stated, str), "as many as fit always fit"
    low, high = 0, int(stated * SHARES) if isinstance(stated, float) else min(int(np.max(stated)), most_rows)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(capacity(middle)) else (low, middle)
    return capacity(low)
