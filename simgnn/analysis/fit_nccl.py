"""From measured times of NCCL's calls to the entries of a profile: a physical form, a smooth residual, a floor.

The form is that of :class:`simgnn.hardware.links.Collective`; what holds for all rank counts is a law
(:mod:`simgnn.analysis.fit_nccl_law`), the rest comes from one table each. Entries for the rank counts of all tables
together are what other rank counts are carried over from.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from simgnn.analysis.fit_nccl_choice import LARGE_BYTES
from simgnn.analysis.fit_nccl_curve import read, smooth_curve, straight_line
from simgnn.analysis.fit_nccl_law import ROUND_BYTES, Law, fit_law
from simgnn.analysis.fit_nccl_tables import Floats, Table
from simgnn.analysis.fit_solver import MAD_TO_SIGMA
from simgnn.errors import HardwareError
from simgnn.hardware.links import Algorithm, Choice, Collective
from simgnn.hardware.quantities import Bandwidth, Duration, Points
from simgnn.units import format_quantity

FLOOR_SHARE = 0.8
"""The most of the shortest time that floor and hops together may be: the residual follows the rest."""
LARGEST_BYTES = float(1 << 40)
"""Where a regime that nothing ends is written to end."""
REGIMES = {
    "host": ((0.0, "ll"), (LARGE_BYTES, "ll128"), (ROUND_BYTES, "simple")),
    "cluster": ((0.0, "ll"), (LARGE_BYTES, "simple")),
}
"""From so many bytes of the buffer on, the protocol of a ring that is taken to begin there; the tables do not say."""


@dataclass(frozen=True)
class Fitted:
    """Collectives of a backend, and how it chooses between their algorithms."""

    entries: tuple[Collective, ...]
    choices: tuple[Choice, ...]


def fit_machine(tables: Sequence[Table], gpu: str, across_hosts: bool) -> Fitted:
    """All-reduces of one machine, inside a host and, if asked for, across hosts, by scope, rank count and algorithm."""
    mine = [table for table in tables if table.gpu == gpu]
    scopes = ("host", "cluster") if across_hosts else ("host",)
    if not any(table.collective == "all_reduce" and table.scope in scopes for table in mine):
        known = ", ".join(sorted({table.gpu for table in tables if table.collective == "all_reduce"})) or "none"
        raise HardwareError(f"{gpu}: no table of its all-reduce; there are tables of: {known}")
    entries: list[Collective] = []
    choices: list[Choice] = []
    for scope in scopes:
        found = [table for table in mine if (table.collective, table.scope) == ("all_reduce", scope)]
        if found:
            fitted = fit_scope(found, fit_law(mine, scope))
            entries += fitted.entries
            choices += fitted.choices
    return Fitted(tuple(entries), tuple(choices))


def fit_scope(tables: Sequence[Table], law: Law) -> Fitted:
    """The entries of each table, then, of two rank counts or more, those of all together.

    Raises :class:`HardwareError` for a table of another collective, or of fewer than three sizes.
    """
    for table in tables:
        if table.collective != "all_reduce":
            raise HardwareError(f"{table.name}: got the collective '{table.collective}', expected 'all_reduce'")
        if len(table.nbytes) < 3:
            raise HardwareError(f"{table.name}: got {len(table.nbytes)} sizes, expected at least 3")
    groups = [[table] for table in sorted(tables, key=lambda table: table.ranks)]
    if len({table.ranks for table in tables}) > 1:
        groups.append(sorted(tables, key=lambda table: table.ranks))
    entries = [entry for group in groups for entry in (*_ring(group, law), *_tree(group, law))]
    return Fitted(tuple(entries), () if law.choice is None else (law.choice,))


def _ring(tables: Sequence[Table], law: Law) -> list[Collective]:
    starts = [*REGIMES[law.scope], (float("inf"), "")]
    entries = []
    for (low, protocol), (high, _) in pairwise(starts):
        parts = [law.rows(table, "ring") for table in tables]
        # an octave beyond: groups of other sizes move as many bytes as these do there
        parts = [part.where((part.nbytes >= low / 2.0) & (part.nbytes < high * 2.0)) for part in parts]
        parts = [part for part in parts if len(part.nbytes)]
        if parts:
            short = low < ROUND_BYTES and law.scope == "host"
            entries.append(
                _fit(parts, replace(law, hop_s=0.0, chunk=None) if short else law, "ring", protocol, low, high)
            )
    return entries


def _tree(tables: Sequence[Table], law: Law) -> list[Collective]:
    parts = [part for part in (law.rows(table, "tree") for table in tables) if len(part.nbytes)]
    return [_fit(parts, law, "tree", "simple", 0.0, float("inf"))] if parts else []


def _fit(parts: Sequence[Table], law: Law, algorithm: Algorithm, protocol: str, low: float, high: float) -> Collective:
    """One entry through all rows of these tables."""
    x = np.concatenate([law.moved(part, algorithm) for part in parts])
    order = np.argsort(x, kind="stable")
    seconds = np.concatenate([part.seconds for part in parts])[order]
    hops = np.concatenate([law.hops(part, algorithm) for part in parts])[order]
    inside = np.concatenate([law.inside_s(part, algorithm) for part in parts])[order]
    x = x[order]
    # hops and a floor below every time, so that what is left of it is the residual's to follow
    hop = law.tree_hop_s if algorithm == "tree" else law.hop_s
    hop = min(hop, FLOOR_SHARE * float(((seconds - inside) / hops).min()))
    flowing = seconds - inside - hop * hops
    at_most = FLOOR_SHARE * float(seconds.min()) - hop * float(hops.min())
    at_most = max(min(at_most, FLOOR_SHARE * float(flowing.min())), 0.0)
    floor = at_most if low == 0.0 and algorithm == "ring" else _floor(x, flowing, seconds, at_most)
    flowing = flowing - floor
    knots, shares = smooth_curve(x, flowing, seconds)
    bandwidth = _rounded(1.0 / float(shares[-1]))
    spread = _rounded(_spread(seconds, x * read(knots, shares, x) - flowing))
    nbytes = np.concatenate([part.nbytes for part in parts])
    told = f"{', '.join(part.name for part in parts)}: {len(nbytes)} sizes"
    reach = (float(nbytes.min()), float(nbytes.max()))
    ends = None
    if low > 0.0 or high < float("inf"):
        ends = [format_quantity(end, "bytes") for end in (low, min(high, LARGEST_BYTES))]
    return Collective.model_validate(
        {
            "kind": "allreduce",
            "scope": law.scope,
            "algorithm": algorithm,
            "floor": Duration.of(_rounded(floor), "measured", spread=spread, note=told),
            "hop": Duration.of(_rounded(hop), "measured", spread=spread, note=told),
            "bus_bandwidth": Bandwidth.of(bandwidth, "measured", spread=spread, range=reach, note=told),
            "residual": _points(knots, shares * bandwidth, spread),
            "sizes": ends,
            "protocol": protocol,
            "per": "moved",
            "chunk": None if law.chunk is None or algorithm != "ring" else format_quantity(law.chunk, "bytes"),
            "ranks_per_rail": law.ranks_per_rail,
            "inside": None if law.inside is None else Bandwidth.of(_rounded(law.inside), "measured", note=told),
            "fill": format_quantity(_rounded(law.fill), "ratio") if law.fill else None,
            "ranks": tuple(sorted({part.ranks for part in parts})),
        }
    )


def _floor(x: Floats, flowing: Floats, seconds: Floats, at_most: float) -> float:
    """Where the line through the times begins: below the smallest size it is all that is known."""
    return float(np.clip(straight_line(x, flowing, seconds)[0], 0.0, at_most)) if len(x) > 2 else 0.0


def fit_messages(table: Table) -> tuple[Duration, Bandwidth, Points]:
    """Of single messages between two ranks: the floor, the best rate, and the share of it that each size reaches."""
    if table.collective != "send_recv":
        raise HardwareError(f"{table.name}: got the collective '{table.collective}', expected 'send_recv'")
    floor = 0.9 * float(table.seconds.min())
    knots, seconds = smooth_curve(table.nbytes, table.seconds - floor, table.seconds)
    bandwidth = _rounded(1.0 / float(seconds.min()))
    spread = _rounded(_spread(table.seconds, read(knots, seconds, table.nbytes) * table.nbytes + floor - table.seconds))
    told = f"{table.name}.csv, {len(table.nbytes)} sizes"
    reach = (float(table.nbytes[0]), float(table.nbytes[-1]))
    return (
        Duration.of(_rounded(floor), "measured", spread=spread, note=told),
        Bandwidth.of(bandwidth, "measured", spread=spread, range=reach, note=told),
        _points(knots, np.minimum(1.0 / (seconds * bandwidth), 1.0), spread),
    )


def _points(sizes: Floats, shares: Floats, spread: float) -> Points:
    digits = [[_rounded(float(number)) for number in column] for column in (sizes, shares)]
    return Points.of(digits[0], digits[1], "measured", spread=spread)


def _rounded(number: float) -> float:
    return float(f"{number:.4g}")


def _spread(seconds: Floats, missed: Floats) -> float:
    """Robust standard deviation of fitted over measured times, of which the fit misses so much."""
    return float(MAD_TO_SIGMA * np.median(np.abs(missed / seconds)))
