"""Fit entries of a profile to the tables of one scope, and score how well they predict times not used in the fit.

Each table has a curve for each algorithm; entries for other rank counts use the mean of these curves. A curve follows
steps in its table's times (two H100: 11 us at 150 kB, 23 us at 200 kB). A curve through the pooled rows of several
tables would also jump between tables at neighbouring sizes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from simgnn.analysis.nccl.law import ALGORITHMS, LARGE_BYTES, ROUND_BYTES, Law, fit_law
from simgnn.analysis.nccl.measured_tables import (
    FLOOR_SHARE,
    Curve,
    Floats,
    Table,
    mean_curve,
    read,
    rounded,
    smooth_curve,
    spread_of,
    spread_steps,
    straight_line,
)
from simgnn.errors import HardwareError
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.profile.communication import Algorithm, Choice, Collective
from simgnn.hardware.profile.profile import Profile
from simgnn.hardware.profile.quantities import Bandwidth, Duration, Points
from simgnn.units import format_quantity

LARGEST_BYTES = float(1 << 40)
"""Where a regime that nothing ends is written to end."""
HOST_REGIMES = ((0.0, LARGE_BYTES, "ll"), (LARGE_BYTES, ROUND_BYTES, "ll128"), (ROUND_BYTES, np.inf, "simple"))
"""Regimes of a ring inside a host. The protocols are assumed: the tables do not state them."""
PROTOCOLS = {1: (None,), 2: ("ll", "simple"), 3: ("ll", "ll128", "simple")}
"""Protocols of a ring across hosts, by the number of pieces that its times fall into."""
SWITCH_ROWS = 6
"""A change of protocol is told by so many sizes before it that all take longer than any of as many after it. Of times
that do not change, one place in 900 looks so."""
SWITCH_FALL = 0.1
"""The least share by which times fall there."""
FOLDS = 5
Regime = tuple[float, float, str | None]
"""From so many bytes of the buffer up to but not with so many, with the protocol of NCCL."""


@dataclass(frozen=True)
class Fitted:
    """Fitted collectives of a backend, and its choices between their algorithms by size."""

    entries: tuple[Collective, ...]
    choices: tuple[Choice, ...]


@dataclass(frozen=True, eq=False)
class _Piece:
    """The ``rows`` of a table that ran one algorithm in one regime (range of buffer sizes), the range of sizes measured
    there (``reach``), and the ``curve`` of time over bytes moved, without the latencies of ``law``."""

    regime: Regime
    algorithm: Algorithm
    law: Law
    rows: Table
    reach: tuple[float, float]
    curve: Curve


def fit_scope(tables: Sequence[Table], law: Law) -> Fitted:
    """Return entries for each table's rank count, then for each algorithm with several rank counts those for all of
    them.

    Raises :class:`HardwareError` for a table of another collective, or of fewer than three sizes.
    """
    for table in tables:
        if table.collective != "all_reduce":
            raise HardwareError(f"{table.name}: got the collective '{table.collective}', expected 'all_reduce'")
        if len(table.nbytes) < 3:
            raise HardwareError(f"{table.name}: got {len(table.nbytes)} sizes, expected at least 3")
    tables = sorted(tables, key=lambda table: table.ranks)
    hop_s, tree_hop_s = (_hop_s(tables, law, algorithm) for algorithm in ALGORITHMS)
    law = replace(law, hop_s=hop_s, tree_hop_s=tree_hop_s)
    entries = []
    for table in tables:
        for algorithm in ALGORITHMS:
            entries += [_entry([piece]) for piece in _pieces(table, law, algorithm, alone=True)]
    if len({table.ranks for table in tables}) > 1:
        for algorithm in ALGORITHMS:
            pieces = [piece for table in tables for piece in _pieces(table, law, algorithm, alone=False)]
            for low in sorted({piece.regime[0] for piece in pieces}):
                entry = _entry([piece for piece in pieces if piece.regime[0] == low])
                # trees are taken by large groups: of one such table its own entry tells as much
                entries += [entry] if len(entry.ranks or ()) > 1 else []
    return Fitted(tuple(entries), () if law.choice is None else (law.choice,))


def switches(table: Table) -> tuple[float, ...]:
    """Return the sizes at which a ring's times drop because NCCL changes its protocol. Inside a host there are none:
    calls wait for one another by chance, so times of neighbouring sizes differ by more than protocols do."""
    if table.scope == "host":
        return ()
    found: list[tuple[float, float]] = []
    for place in range(SWITCH_ROWS, len(table.nbytes) - SWITCH_ROWS + 1):
        before, after = table.seconds[place - SWITCH_ROWS : place], table.seconds[place : place + SWITCH_ROWS]
        if before.min() > after.max() and np.median(after) < (1.0 - SWITCH_FALL) * np.median(before):
            found.append((float(table.seconds[place] / table.seconds[place - 1]), float(table.nbytes[place])))
    # the sharpest, as many as there are protocols to change to
    return tuple(sorted(size for _, size in sorted(found)[: max(PROTOCOLS) - 1]))


def _pieces(table: Table, law: Law, algorithm: Algorithm, alone: bool) -> list[_Piece]:
    """Return the curves of one table; ``alone``: split at its protocol changes, which do not hold for other groups."""
    rows = law.rows(table, algorithm)
    if not len(rows.nbytes):
        return []
    if algorithm == "ring" and law.scope == "host":
        return _inside_a_host(rows, law)
    ends = [0.0, *(switches(rows) if alone and algorithm == "ring" else ()), np.inf]
    found = []
    for (low, high), protocol in zip(pairwise(ends), PROTOCOLS[len(ends) - 1], strict=True):
        mine = rows.where((rows.nbytes >= low) & (rows.nbytes < high))
        regime = low, high, "simple" if algorithm == "tree" else protocol
        found.append(_piece(regime, algorithm, law, rows, _total(mine, law, algorithm)))
    return found


def _inside_a_host(rows: Table, law: Law) -> list[_Piece]:
    """Return the curves of a ring inside a host: one for all sizes, or if the law has rounds of hops, which begin at
    ``ROUND_BYTES``, one below that size and one from there on, the first capped by the second."""
    short = replace(law, hop_s=0.0, chunk=None)
    small, large = rows.where(rows.nbytes < ROUND_BYTES), rows.where(rows.nbytes >= ROUND_BYTES)
    if law.hop_s == 0.0 or not len(large.nbytes):
        lower = upper = _total(rows, short, "ring")
    elif not len(small.nbytes):
        lower = upper = _total(rows, law, "ring")
    else:
        lower, upper = _total(small, short, "ring"), _total(large, law, "ring")
        first = law.moved(rows, "ring")[0] / rows.nbytes[0] * ROUND_BYTES
        at = np.maximum(lower[0], first)
        hopping = law.hop_s * float(law.hops(np.array([ROUND_BYTES]), rows.ranks, "ring")[0])
        lower = lower[0], np.minimum(lower[1], (at * read(*upper, at) + hopping) / lower[0])
    found = []
    for regime in HOST_REGIMES:
        low, high, _ = regime
        if np.any((rows.nbytes >= low) & (rows.nbytes < high)):
            own, curve = (law, upper) if low == ROUND_BYTES else (short, lower)
            found.append(_piece(regime, "ring", own, rows, curve))
    return found


def _total(rows: Table, law: Law, algorithm: Algorithm) -> tuple[Floats, Floats]:
    """Fit knots (bytes moved) and seconds per byte, floor included, to the times without hops and shared paths."""
    flowing = rows.seconds - law.inside_s(rows, algorithm) - law.hops_s(rows, algorithm)
    return smooth_curve(law.moved(rows, algorithm), flowing, rows.seconds)


def _piece(regime: Regime, algorithm: Algorithm, law: Law, rows: Table, curve: tuple[Floats, Floats]) -> _Piece:
    """Cut the part of a curve (knots, seconds per byte) that a regime needs, and an octave on either side, as groups of
    other sizes may need it. Its floor is the start of a line through its sizes; for a ring from 0 bytes on,
    ``FLOOR_SHARE`` of the shortest time."""
    low, high, _ = regime
    knots, shares = curve
    moved = law.moved(rows, algorithm)
    each = moved[0] / rows.nbytes[0]
    kept = (np.append(knots[1:], np.inf) > low / 2.0 * each) & (np.append(0.0, knots[:-1]) < high * 2.0 * each)
    knots, shares = knots[kept], shares[kept]
    at_most = FLOOR_SHARE * float((knots * shares).min())
    inside = (rows.nbytes >= low) & (rows.nbytes < high)
    floor = at_most
    if low > 0.0 or algorithm == "tree":
        x, flowing = moved[inside], moved[inside] * read(knots, shares, moved[inside])
        floor = float(np.clip(straight_line(x, flowing, flowing)[0], 0.0, at_most)) if len(x) > 2 else 0.0
    reach = max(low, float(rows.nbytes[0])), min(high, float(rows.nbytes[-1]))
    return _Piece(regime, algorithm, law, rows.where(inside), reach, Curve(floor, knots, shares - floor / knots))


def _entry(pieces: Sequence[_Piece]) -> Collective:
    """Return one profile entry, the mean curve of pieces of the same regime and algorithm."""
    law, algorithm, (low, high, protocol) = pieces[0].law, pieces[0].algorithm, pieces[0].regime
    curve = mean_curve([piece.curve for piece in pieces])
    bandwidth = rounded(1.0 / float(curve.shares[-1]))
    # calls scatter about their own table's curve
    logs = np.concatenate([_missed(piece) for piece in pieces])
    spread = rounded(spread_of(logs)) if len(logs) else None
    rows = [piece.rows for piece in pieces]
    told = f"{', '.join(part.name for part in rows)}: {len(logs)} sizes"
    reach = min(piece.reach[0] for piece in pieces), max(piece.reach[1] for piece in pieces)
    ends = None
    if low > 0.0 or high < np.inf:
        ends = [format_quantity(end, "bytes") for end in (low, min(high, LARGEST_BYTES))]
    hop = law.tree_hop_s if algorithm == "tree" else law.hop_s
    return Collective.model_validate(
        {
            "kind": "allreduce",
            "scope": law.scope,
            "algorithm": algorithm,
            "floor": Duration.of(rounded(curve.floor), "measured", spread=spread, note=told),
            "hop": Duration.of(rounded(hop), "measured", spread=spread, note=told),
            "bus_bandwidth": Bandwidth.of(bandwidth, "measured", spread=spread, range=reach, note=told),
            "residual": points(curve.knots, curve.shares * bandwidth, spread),
            "sizes": ends,
            "protocol": protocol,
            "per": "moved",
            "chunk": None if law.chunk is None or algorithm != "ring" else format_quantity(law.chunk, "bytes"),
            "ranks_per_rail": law.ranks_per_rail,
            "inside": None if law.inside is None else Bandwidth.of(rounded(law.inside), "measured", note=told),
            "fill": format_quantity(rounded(law.fill), "ratio") if law.fill else None,
            "own_spread": spread_steps(rows[0].nbytes, logs, (low, high)) if len(pieces) == 1 else None,
            "ranks": tuple(sorted({part.ranks for part in rows})),
            "ranks_per_host": tuple(sorted({part.ranks_per_host for part in rows})) if law.scope == "cluster" else None,
        }
    )


def _missed(piece: _Piece) -> Floats:
    """Return log(measured / fitted) [n] of the times of a piece."""
    law, rows, algorithm = piece.law, piece.rows, piece.algorithm
    hops = law.hops_s(rows, algorithm) + law.inside_s(rows, algorithm)
    return np.log(rows.seconds / (piece.curve.at(law.moved(rows, algorithm)) + hops))


def _hop_s(tables: Sequence[Table], law: Law, algorithm: Algorithm) -> float:
    """Return seconds per step (hop) of ``law``, cut so that hops take at most ``FLOOR_SHARE`` of each call's time."""
    hop = law.tree_hop_s if algorithm == "tree" else law.hop_s
    for table in tables:
        rows = law.rows(table, algorithm)
        if law.scope == "host":
            rows = rows.where(rows.nbytes >= ROUND_BYTES)
        if len(rows.nbytes):
            left = (rows.seconds - law.inside_s(rows, algorithm)) / law.hops(rows.nbytes, rows.ranks, algorithm)
            hop = min(hop, FLOOR_SHARE * float(left.min()))
    return hop


def points(sizes: Floats, shares: Floats, spread: float | None) -> Points:
    """Return ``shares`` [k] at ``sizes`` [k] as a curve of a profile."""
    digits = [[rounded(float(number)) for number in column] for column in (sizes, shares)]
    return Points.of(digits[0], digits[1], "measured", spread=spread)


@dataclass(frozen=True, eq=False)
class Score:
    """Relative errors [n] of the held-out rows of one table with sizes ``nbytes`` [n] of ``LARGE_BYTES`` or more.

    ``noise`` [n]: twice the standard error of each measured median, divided by it.
    """

    table: str
    nbytes: Floats
    errors: Floats
    noise: Floats

    @property
    def mean(self) -> float:
        return float(self.errors.mean())

    def mean_from(self, low: float, high: float) -> float:
        """Mean over the sizes from ``low`` to below ``high``; NaN if there is none."""
        inside = (self.nbytes >= low) & (self.nbytes < high)
        return float(self.errors[inside].mean()) if inside.any() else float("nan")


def predict(profile: Profile, fitted: Fitted, table: Table) -> Floats:
    """Predict seconds [n] of an all-reduce of each size of a table, with ``fitted`` replacing NCCL in ``profile``."""
    update = {"collectives": fitted.entries, "choices": fitted.choices}
    backend = profile.backends["nccl"].model_copy(update=update)
    changed = profile.model_copy(update={"backends": {**profile.backends, "nccl": backend}})
    machine = Machine.place(changed, table.hosts)
    members = range(table.ranks)
    return np.array([machine.collective("allreduce", "nccl", size, members).seconds_alone for size in table.nbytes])


def interpolation(profile: Profile, tables: Sequence[Table], seed: int = 0) -> list[Score]:
    """Predict each size of each all-reduce table from the other sizes in it, in ``FOLDS`` random parts, and score.

    The law is refitted for each part, to the remaining sizes of the table and the machine's other tables.
    """
    scores = []
    for table in tables:
        if table.collective != "all_reduce":
            continue
        mine = [one for one in tables if one.gpu == table.gpu]
        fold = np.random.default_rng(seed).permutation(len(table.nbytes)) % FOLDS
        predicted = np.empty(len(fold))
        for part in range(FOLDS):
            held = fold == part
            seen = table.where(~held)
            law = fit_law([seen if one is table else one for one in mine], table.scope)
            predicted[held] = predict(profile, fit_scope([seen], law), table.where(held))
        scores.append(_score(table, predicted))
    return scores


def left_out(profiles: dict[str, Profile], tables: Sequence[Table]) -> list[Score]:
    """Predict each all-reduce table without the all-reduces of its machine at its rank count, and score.

    ``profiles``: for each GPU of the tables, a profile with enough devices. The fit uses the other all-reduces of the
    same machine, and its single messages.
    """
    scores = []
    for table in tables:
        if table.collective != "all_reduce":
            continue
        rest = [one for one in tables if one.gpu == table.gpu]
        rest = [one for one in rest if one.collective != "all_reduce" or one.ranks != table.ranks]
        mine = [one for one in rest if (one.collective, one.scope) == ("all_reduce", table.scope)]
        if not mine:
            raise HardwareError(f"{table.name}: found no all-reduce of its machine and scope with another rank count")
        fitted = fit_scope(mine, fit_law(rest, table.scope))
        scores.append(_score(table, predict(profiles[table.gpu], fitted, table)))
    return scores


def _score(table: Table, predicted: Floats) -> Score:
    large = table.nbytes >= LARGE_BYTES
    errors = np.abs(predicted / table.seconds - 1.0)[large]
    return Score(table.name, table.nbytes[large], errors, 2.0 * table.noise[large])
