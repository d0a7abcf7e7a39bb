"""Carry recorded numbers of sent rows over to another partition or to later epochs, as fractions of the most possible.

How often masters publish a vertex (send it to its mirrors) depends on its number of replicas r. For an r in the record,
the recorded share is used. For others there is a model: a master publishes a vertex in epochs in which any of its r
copies moved. If copies moved independently, each with the probability f with which mirrors send, that would happen with
probability 1 - (1 - f)**r. They move together to some degree, so r**c replaces r, with c fitted to each epoch's
recorded rows. Source: docs/systems/cdfgnn.md (our own model; there c is 1). Deviation: the share of mirrors that send
does not depend on r, as it is not recorded by r. With host-aggregated exchange, r counts hosts instead of replicas.
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
    """Carries decisions of a run of the program ``there`` over to ``epochs`` epochs of the program ``here``.

    ``same``: both have the same partition, so recorded epochs are copied. ``accuracies``, ``thresholds``: arguments of
    :func:`continue_fractions` for later epochs.
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
        """Return the rows of a decision, summed over ranks, as fractions of ``most``, float64 [epochs]. Raises
        :class:`ConfigError` for a decision that is missing in an epoch."""
        return self._continued(self._recorded(name), most)

    def tallied(self, name: str, most: int) -> Floats:
        """Like :meth:`fractions`, for a count that is missing on ranks that have nothing to count."""
        return self._continued(np.maximum(self.decisions[name][..., 0], 0), most)

    def _continued(self, recorded: IntArray, most: int) -> Floats:
        found = recorded.reshape(-1, recorded.shape[-1]).sum(axis=0) / max(1, most)
        if self.epochs > len(found):
            found = continue_fractions(
                found, self.thresholds, self.accuracies, self.epochs, self.seed, self.here.calendar.period
            )
        return np.asarray(found[: self.epochs], dtype=np.float64)

    def of_pairs(self, name: str) -> IntArray:
        """Return the rows that each pair of ranks exchanges, int64 [P, P, epochs, 1]."""
        most = limits(self.here, name)
        recorded = int(limits(self.there, name).sum())
        if not recorded and most.any():
            raise ConfigError(
                f"--activity: decision '{name}' has no rows to choose from in the record, but up to "
                f"{int(most.sum())} here; expected a record of a cluster that has such an exchange (some "
                "communications exchange such rows only if there are several hosts, each with several ranks)"
            )
        return self._with_record(name, shared_out(most, self.fractions(name, recorded)))

    def of_ranks(self, rows: Decision) -> IntArray:
        """Return the rows in a buffer, int64 [P, epochs, 1]: the recorded fraction of its largest size."""
        there, here = (one.sizes.per_rank(rows.bound, 0, 0) for one in (self.there, self.here))
        return self._with_record(rows.name, shared_out(here, self.fractions(rows.name, int(there.sum()))))

    def _with_record(self, name: str, rows: IntArray) -> IntArray:
        """Put recorded epochs into ``rows`` [..., epochs] if the partition is the same, and add an axis of steps."""
        if self.same:
            recorded = self._recorded(name)
            kept = min(self.epochs, recorded.shape[-1])
            rows[..., :kept] = recorded[..., :kept]
        return rows[..., None]

    def _recorded(self, name: str) -> IntArray:
        recorded: IntArray = self.decisions[name][..., 0]
        if np.any(recorded < 0):
            raise ConfigError(f"--activity: decision '{name}' is missing in some recorded epochs; record the run again")
        return recorded


def limits(program: Program, name: str) -> IntArray:
    """Return the most rows that each pair of ranks may send, int64 [P, P], in the exchange with this decision."""
    for _, op in program.ops:
        if op.transfer is not None and op.transfer.decision is not None and op.transfer.decision.name == name:
            assert op.route is not None
            return program.sizes.routes[op.route].matrix(program.ranks)
    raise ConfigError(f"--activity: decision '{name}' belongs to no exchange, so its rows cannot be carried over")


def shared_out(limits: IntArray, fractions: Floats) -> IntArray:
    """Return ``limits`` [...] times ``fractions`` [E] (0 to 1), rounded to int64 [..., E] by :func:`whole`."""
    return whole(limits[..., None] * fractions)


def whole(rows: Floats) -> IntArray:
    """Round ``rows`` [..., E] to int64, so that the sum over all but the last axis is the rounded sum of ``rows``. No
    number exceeds its own value rounded up.

    Rounded one by one, small numbers would all become zero: a tenth of three rows of each of a thousand pairs is three
    hundred rows and not none.
    """
    ends = np.floor(np.cumsum(rows.reshape(-1, rows.shape[-1]), axis=0) + 0.5).astype(np.int64)
    found = np.diff(ends, axis=0, prepend=0).reshape(rows.shape)
    # sums are rounded too: one that just misses a half would be made up for by a row too many
    return np.asarray(np.minimum(found, np.ceil(rows - 1e-9).astype(np.int64)))


def arrivals(program: Program) -> dict[str, str]:
    """Map each decision that counts the rows received to the decision that counts the rows sent."""
    result = {}
    for _, op in program.ops:
        if op.transfer is not None and op.transfer.decision is not None:
            rows = program.buffers[op.writes[0].buffer].rows
            if isinstance(rows, Decision) and rows.name != op.transfer.decision.name:
                result[rows.name] = op.transfer.decision.name
    return result


def carried_publications(carried: CarriedRows, wanted: frozenset[str]) -> tuple[dict[str, IntArray], str]:
    """Estimate each ``wanted`` :class:`Publication` of ``carried.here``, by decision: rows sent by pair, int64
    [P, P, epochs, 1]; masters that send, int64 [P, epochs, 1]. Returns {} and why if statistics do not count copies."""
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
    """Fit the exponent c of r**c for each epoch, float64 [epochs]: 0 (copies move together) to LARGEST_EXPONENT.

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
    """Return the share of vertices with this number of ``replicas`` that are published, float64 [epochs]. Where no
    mirror sent, or all rows were published, it is the share of all vertices."""
    plain = (moved <= 0) | (sent >= 1)
    return np.where(plain, np.minimum(sent, 1.0), _any_moves(moved, replicas, exponent))


def _any_moves(moved: Floats, replicas: int, exponent: Floats) -> Floats:
    return np.asarray(1 - (1 - np.minimum(moved, 1.0)) ** (replicas**exponent))
