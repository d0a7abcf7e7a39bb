"""Recorded publications of masters on a partition whose vertices have other numbers of replicas.

Of vertices with as many replicas r as the record has seen, the recorded share is published. For others there is a law:
a master publishes a vertex in epochs in which any of its r copies moved. Were they to move by themselves, each with the
probability f with which mirrors send, that would happen with probability 1 - (1 - f)**r. They move together, more or
less: r**c stands for r, with the c of each epoch for which the record's own numbers of replicas give the rows that it
published. Source: docs/systems/cdfgnn.md (our own model; there c is 1). Deviation: what mirrors send is one share,
whatever their number; nobody records it by replicas. Where hosts add up their mirrors first, hosts stand for replicas:
a host's part moves, and a row a host is published.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from simgnn.analysis.replay.row_fractions import CarriedRows, limits, whole
from simgnn.program.program import Publication, counted_as
from simgnn.program.sizes import IntArray

Floats = NDArray[np.float64]
LARGEST_EXPONENT = 8.0
"""Of c: then a vertex with two replicas moves as if it had 256."""
HALVINGS = 60


def carried_publications(carried: CarriedRows, wanted: frozenset[str]) -> tuple[dict[str, IntArray], str]:
    """What masters publish ``here``, of the ``wanted`` decisions by name: rows of each pair int64 [P, P, epochs, 1],
    woken masters int64 [P, epochs, 1]; and, in words, what is not known, and why: a program does not say how many
    copies its vertices have. Empty where all is known."""
    recorded = {one.published: one for one in carried.there.publications}
    result: dict[str, IntArray] = {}
    for one in carried.here.publications:
        if one.published not in wanted:
            continue
        there = recorded.get(one.published)
        known = {"the record": there is not None and there.routes, "this partition": one.routes}
        if there is None or not all(known.values()):
            silent = " and ".join(whose for whose, routes in known.items() if not routes)
            return {}, f"numbers of {one.copies}, which the statistics of {silent} do not have"
        result |= _carried(carried, there, one)
    return result, ""


def _carried(carried: CarriedRows, there: Publication, here: Publication) -> dict[str, IntArray]:
    totals = {r: int(route.rows.sum()) for r, route in there.rows(carried.there.sizes).items()}
    known = {r: int(counts.sum()) for r, counts in there.masters_by_copies(carried.there.sizes).items()}
    moved = carried.fractions(here.gathered, int(limits(carried.there, here.gathered).sum()))
    sent = carried.fractions(here.published, sum(totals.values()))
    exponent = fitted_exponents(moved, sent, totals)
    rows, ranks, epochs = here.rows(carried.here.sizes), carried.here.ranks, len(moved)
    pairs, masters = np.zeros((ranks, ranks, epochs)), np.zeros((ranks, epochs))
    for r, counts in here.masters_by_copies(carried.here.sizes).items():
        counted = counted_as(here.tally, r)
        if counted in carried.decisions and known.get(r):
            woken = np.minimum(1.0, carried.tallied(counted, known[r]))
        else:
            woken = woken_share(moved, sent, exponent, r)
        masters += counts[:, None] * woken
        if r in rows:
            pairs[rows[r].source, rows[r].target] += rows[r].rows[:, None] * woken
    return {here.published: whole(pairs)[..., None], here.active: whole(masters)[..., None]}


def fitted_exponents(moved: Floats, sent: Floats, rows: Mapping[int, int]) -> Floats:
    """The c of each epoch, float64 [epochs], between 0 (copies move together) and LARGEST_EXPONENT.

    ``moved``: share of mirrors that sent; ``sent``: share of ``rows`` (by number of replicas) that were published.
    """
    low, high = np.zeros(len(moved)), np.full(len(moved), LARGEST_EXPONENT)
    total = max(1, sum(rows.values()))
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        share = np.sum([count * _any_moves(moved, r, middle) for r, count in rows.items()], axis=0) / total
        low, high = np.where(share < sent, middle, low), np.where(share < sent, high, middle)
    return np.asarray((low + high) / 2)


def woken_share(moved: Floats, sent: Floats, exponent: Floats, replicas: int) -> Floats:
    """Share of the vertices with so many ``replicas`` that are published in each epoch, float64 [epochs]; where no
    mirror sent, or all rows were published, the record's own share, which says nothing of replicas."""
    plain = (moved <= 0) | (sent >= 1)
    return np.where(plain, np.minimum(sent, 1.0), _any_moves(moved, replicas, exponent))


def _any_moves(moved: Floats, replicas: int, exponent: Floats) -> Floats:
    return np.asarray(1 - (1 - np.minimum(moved, 1.0)) ** (replicas**exponent))
