"""Recorded numbers of rows as fractions of those that may travel: on another partition, or past the record's end.

Publications of masters depend on the number of replicas r of a vertex. For an r that the record has seen, the recorded
share is published. For others there is a law: a master publishes a vertex in epochs in which any of its r copies moved.
If copies moved independently, each with the probability f with which mirrors send, that would happen with probability
1 - (1 - f)**r. They move together to some degree, so r**c stands for r, with the c of each epoch that gives the rows
that the record published. Source: docs/systems/cdfgnn.md (our own model; there c is 1). Deviation: the share of mirrors
that send does not depend on their number, as nobody records it by replicas. Where hosts add up their mirrors first,
hosts stand for replicas.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simgnn.analysis.replay.extrapolation import continue_fractions
from simgnn.emit.freshness import Thresholds
from simgnn.errors import ConfigError
from simgnn.program.program import Program, Publication, counted_as
from simgnn.program.sizes import Decision, IntArray

Floats = NDArray[np.float64]
LARGEST_EXPONENT = 8.0
"""Largest c, with which a vertex with two replicas moves as if it had 256."""
HALVINGS = 60


@dataclass(frozen=True)
class CarriedRows:
    """Decisions of a run of the program ``there``, for ``epochs`` epochs of the program ``here``.

    ``same``: both are of one partition, so that the record holds as far as it goes. ``accuracies``, ``thresholds``:
    arguments of :func:`continue_fractions` for the curve past the record.
    """

    decisions: Mapping[str, IntArray]
    accuracies: Sequence[float] | None
    there: Program
    here: Program
    same: bool
    epochs: int
    seed: int
    thresholds: Thresholds | None

    def fractions(self, name: str, most: int) -> Floats:
        """Share of ``most`` rows that all ranks together decided on, float64 [epochs]. Raises :class:`ConfigError` for
        a decision with gaps."""
        return self._continued(self._recorded(name), most)

    def tallied(self, name: str, most: int) -> Floats:
        """:meth:`fractions` of a tally, which may have gaps on ranks that have nothing to count."""
        return self._continued(np.maximum(self.decisions[name][..., 0], 0), most)

    def _continued(self, recorded: IntArray, most: int) -> Floats:
        found = recorded.reshape(-1, recorded.shape[-1]).sum(axis=0) / max(1, most)
        if self.epochs > len(found):
            found = continue_fractions(found, self.thresholds, self.accuracies, self.epochs, self.seed)
        return np.asarray(found[: self.epochs], dtype=np.float64)

    def of_pairs(self, name: str) -> IntArray:
        """Rows of each pair of an exchange, int64 [P, P, epochs, 1]."""
        most = limits(self.here, name)
        recorded = int(limits(self.there, name).sum())
        if not recorded and most.any():
            raise ConfigError(
                f"--activity: decision '{name}' has no rows to choose from in the record, but up to "
                f"{int(most.sum())} here; expected a record of a cluster that has such an exchange (with "
                "communication.exchange = 'host-aggregated': hosts with several ranks)"
            )
        return self._with_record(name, shared_out(most, self.fractions(name, recorded)))

    def of_ranks(self, rows: Decision) -> IntArray:
        """Rows of a buffer, int64 [P, epochs, 1], as fractions of their bound."""
        there, here = (one.sizes.per_rank(rows.bound, 0, 0) for one in (self.there, self.here))
        return self._with_record(rows.name, shared_out(here, self.fractions(rows.name, int(there.sum()))))

    def _with_record(self, name: str, rows: IntArray) -> IntArray:
        """``rows`` [..., epochs] with what was recorded of this very partition, and an axis of steps."""
        if self.same:
            recorded = self._recorded(name)
            kept = min(self.epochs, recorded.shape[-1])
            rows[..., :kept] = recorded[..., :kept]
        return rows[..., None]

    def _recorded(self, name: str) -> IntArray:
        recorded: IntArray = self.decisions[name][..., 0]
        if np.any(recorded < 0):
            raise ConfigError(
                f"--activity: decision '{name}' was not taken in every recorded epoch; record the run again"
            )
        return recorded


def limits(program: Program, name: str) -> IntArray:
    """Rows that may travel between each pair, int64 [P, P], in the exchange that a decision is of."""
    for _, op in program.ops:
        if op.transfer is not None and op.transfer.decision is not None and op.transfer.decision.name == name:
            assert op.route is not None
            return program.sizes.routes[op.route].matrix(program.ranks)
    raise ConfigError(f"--activity: decision '{name}' belongs to no exchange, so it cannot be used as fractions")


def shared_out(limits: IntArray, fractions: Floats) -> IntArray:
    """Whole rows int64 [..., E] nearest to ``limits`` [...] times ``fractions`` [E] of 0..1, see :func:`whole`."""
    return whole(limits[..., None] * fractions)


def whole(rows: Floats) -> IntArray:
    """Whole numbers int64 [..., E] next to ``rows`` [..., E] that add up, over all but the last axis, to the rounded
    sum of ``rows``. None exceeds its own row rounded up.

    Rounded one by one, fractions of small numbers would all vanish: of three rows of each of a thousand pairs, a tenth
    is three hundred rows and not none.
    """
    ends = np.floor(np.cumsum(rows.reshape(-1, rows.shape[-1]), axis=0) + 0.5).astype(np.int64)
    found = np.diff(ends, axis=0, prepend=0).reshape(rows.shape)
    # sums are rounded too: one that just misses a half would be made up for by a row too many
    return np.asarray(np.minimum(found, np.ceil(rows - 1e-9).astype(np.int64)))


def arrivals(program: Program) -> dict[str, str]:
    """Decisions that count what arrives -> the decision of what is sent."""
    result = {}
    for _, op in program.ops:
        if op.transfer is not None and op.transfer.decision is not None:
            rows = program.buffers[op.writes[0].buffer].rows
            if isinstance(rows, Decision) and rows.name != op.transfer.decision.name:
                result[rows.name] = op.transfer.decision.name
    return result


def carried_publications(carried: CarriedRows, wanted: frozenset[str]) -> tuple[dict[str, IntArray], str]:
    """Estimate the decisions of each ``wanted`` :class:`Publication` on this partition: rows sent by pair int64 [P, P,
    epochs, 1] and masters that send int64 [P, epochs, 1], by name. Empty, with the reason, if copies are unknown."""
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
    """Share of the vertices with so many ``replicas`` that are published in each epoch, float64 [epochs]. Where no
    mirror sent, or all rows were published, it is the record's own share."""
    plain = (moved <= 0) | (sent >= 1)
    return np.where(plain, np.minimum(sent, 1.0), _any_moves(moved, replicas, exponent))


def _any_moves(moved: Floats, replicas: int, exponent: Floats) -> Floats:
    return np.asarray(1 - (1 - np.minimum(moved, 1.0)) ** (replicas**exponent))
