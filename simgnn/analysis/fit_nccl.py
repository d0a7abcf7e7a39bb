"""From measured times of NCCL's all-reduce to the entries of a profile: a physical form, a smooth residual, a floor.

The form is that of :class:`simgnn.hardware.links.Collective` on a ring. What is the same for all rank counts (the hop,
and the fill of the pipeline) is learnt by carrying the times of one rank count over to another; everything else comes
from one table each. Small sizes are a regime of their own (NCCL takes them with a protocol of shorter hops), and where
rates jump with the size another one begins.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from simgnn.analysis.fit_nccl_tables import Floats, Table
from simgnn.analysis.fit_solver import MAD_TO_SIGMA
from simgnn.errors import HardwareError
from simgnn.hardware.collectives import steps
from simgnn.hardware.links import Collective
from simgnn.hardware.quantities import Bandwidth, Duration, Points
from simgnn.units import format_quantity

KNOTS_PER_OCTAVE = 3
SMOOTHING = 0.02
"""Weight of the residual's curvature against the relative errors of the rows of one knot."""
SWEEPS = 25
LARGE_BYTES = float(1 << 18)
"""Below it the measured times are mostly noise of the calls: no law is learnt there."""
HOPS_S = tuple(1e-6 * np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0]))
FILLS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)
FLOOR_SHARE = 0.8
"""The most of the shortest time that floor and hops together may be: the residual follows the rest."""
JUMP = 1.35
"""Where times of neighbouring sizes differ by this factor beyond the form, another regime begins."""


@dataclass(frozen=True)
class Law:
    """How times change with the rank count: seconds of a hop, the part of a step that fills the pipeline, and across
    hosts the bytes per second inside them (None: no time of its own)."""

    hop_s: float = 0.0
    fill: float = 0.0
    inside: float | None = None

    def passed(self, table: Table, nbytes: Floats) -> Floats:
        """Bytes that one rail of the table's group moves, fill included."""
        count = steps("allreduce", "ring", table.ranks)
        rails = table.ranks_per_host if table.scope == "cluster" else 1
        return np.asarray((count + self.fill) / table.ranks * nbytes / rails)

    def hops_s(self, table: Table) -> float:
        """Seconds of all hops of a call."""
        return steps("allreduce", "ring", table.ranks) * self.hop_s

    def inside_s(self, table: Table) -> Floats:
        """Seconds [n] of the bytes of each size inside the hosts."""
        if self.inside is None or table.scope == "host" or table.ranks_per_host == 1:
            return np.zeros(len(table.nbytes))
        return np.asarray(steps("allreduce", "ring", table.ranks) / table.ranks * table.nbytes / self.inside)


def fit_law(tables: Sequence[Table], scope: str) -> Law:
    """The law of one machine's groups of one scope, from its tables of both.

    Across hosts the rate inside them is what the tables of one host reach. Hop and fill are those that best carry one
    table over to another of the same scope; with fewer than two rank counts: the plain form without either, because
    those of one machine do not hold on another. Tables whose rate jumps between sizes are left out: their jumps are no
    matter of the rank count.
    """
    rates = [_bus_rate(table) for table in tables if table.scope == "host"]
    inside = max(rates) if rates and scope == "cluster" else None
    steady = [
        table.where(table.nbytes >= LARGE_BYTES)
        for table in tables
        if table.scope == scope and len(regimes(table)) == 1
    ]
    pairs = [(one, other) for one, other in product(steady, steady) if one.ranks != other.ranks]
    if not pairs:
        return Law(inside=inside)

    def error(law: Law) -> float:
        return float(np.mean([_carried_error(law, one, other) for one, other in pairs]))

    return min((Law(float(hop), fill, inside) for hop, fill in product(HOPS_S, FILLS)), key=error)


def _bus_rate(table: Table) -> float:
    """Bytes per second of a ring at the largest sizes, as the NCCL tests count them."""
    passed = Law().passed(table, table.nbytes)
    return float(np.median((passed / table.seconds)[-9:]))


def _carried_error(law: Law, known: Table, other: Table) -> float:
    """Mean relative error of one table's times as another predicts them."""
    near = 7  # sizes beside each that smooth it
    times = np.lib.stride_tricks.sliding_window_view(np.pad(known.seconds, near, mode="edge"), 2 * near + 1)
    flowing = np.median(times, axis=1) - law.hops_s(known) - law.inside_s(known)
    x, wanted = law.passed(known, known.nbytes), law.passed(other, other.nbytes)
    inside = wanted <= x[-1]
    predicted = np.interp(wanted[inside], x, flowing) + law.hops_s(other) + law.inside_s(other)[inside]
    return float(np.mean(np.abs(predicted / other.seconds[inside] - 1.0)))


def regimes(table: Table) -> list[tuple[float, float]]:
    """Ranges of sizes [from, to) in which the rate is smooth: it is split at powers of two where it jumps."""
    edges = [0.0]
    for power in range(int(np.log2(LARGE_BYTES)) + 1, int(np.ceil(np.log2(table.nbytes[-1]))) + 1):
        edge = float(2**power)
        before = table.nbytes[(table.nbytes < edge)][-9:]
        after = table.nbytes[table.nbytes >= edge][:9]
        if not len(before) or not len(after):
            continue
        rate = table.nbytes / table.seconds
        jump = np.median(rate[np.isin(table.nbytes, after)]) / np.median(rate[np.isin(table.nbytes, before)])
        # sizes of one gap apart differ in rate by no more than their ratio, unless something else changed
        ratio = max(float(np.median(after) / np.median(before)), 1.0)
        if jump > JUMP * ratio or jump < 1.0 / JUMP:
            edges.append(edge)
    return list(zip(edges, [*edges[1:], float("inf")], strict=True))


def fit_machine(tables: Sequence[Table], gpu: str, across_hosts: bool) -> tuple[Collective, ...]:
    """All-reduce entries of one machine, inside a host and, if asked for, across hosts, by scope and rank count."""
    mine = [table for table in tables if table.gpu == gpu and table.collective == "all_reduce"]
    scopes = ("host", "cluster") if across_hosts else ("host",)
    if not any(table.scope in scopes for table in mine):
        known = ", ".join(sorted({table.gpu for table in tables})) or "none"
        raise HardwareError(f"{gpu}: no table of its all-reduce; there are tables of: {known}")
    return tuple(
        entry
        for scope in scopes
        for table in sorted((one for one in mine if one.scope == scope), key=lambda one: one.ranks)
        for entry in fit_table(table, fit_law(mine, scope))
    )


def fit_table(table: Table, law: Law) -> tuple[Collective, ...]:
    """The entries of one table, one for each regime. Raises :class:`HardwareError` for fewer than three sizes."""
    if table.collective != "all_reduce":
        raise HardwareError(f"{table.name}: got the collective '{table.collective}', expected 'all_reduce'")
    if len(table.nbytes) < 3:
        raise HardwareError(f"{table.name}: got {len(table.nbytes)} sizes, expected at least 3")
    first, *others = regimes(table)
    split = (
        [(0.0, LARGE_BYTES), (LARGE_BYTES, first[1])] if table.nbytes[0] < LARGE_BYTES < table.nbytes[-1] else [first]
    )
    return tuple(_fit_regime(table, law, *ends) for ends in (*split, *others))


def _fit_regime(table: Table, law: Law, low: float, high: float) -> Collective:
    part = table.where((table.nbytes >= low) & (table.nbytes < high))
    x = law.passed(part, part.nbytes)
    # a floor below every time, so that what is left of it is the residual's to follow
    flowing = part.seconds - law.inside_s(part)
    least = float(flowing.min())
    hops = min(law.hops_s(part), FLOOR_SHARE * least)
    latency = max(hops, FLOOR_SHARE * least) if low == 0.0 else hops
    flowing = flowing - latency
    knots, shares = smooth_curve(x, flowing, part.seconds)
    bandwidth = _rounded(1.0 / float(shares[-1]))
    spread = _rounded(_spread(part.seconds, x * _read(knots, shares, x) - flowing))
    count = steps("allreduce", "ring", part.ranks)
    told = f"{table.name}.csv, {len(part.nbytes)} sizes"
    reach = (float(part.nbytes[0]), float(part.nbytes[-1]))
    inside = None
    if law.inside is not None:
        inside = Bandwidth.of(_rounded(law.inside), "measured", note=f"tables of one {part.gpu} host")
    ends = None
    if low > 0.0 or high < float("inf"):
        moved = law.passed(part, np.array([low, min(high, 2.0 * reach[1])]))
        ends = tuple(format_quantity(float(end), "bytes") for end in moved)
    return Collective.model_validate(
        {
            "kind": "allreduce",
            "scope": part.scope,
            "algorithm": "ring",
            "floor": Duration.of(_rounded(latency - hops), "measured", spread=spread, note=told),
            "hop": Duration.of(_rounded(hops / count), "measured", spread=spread, note=f"{told}, carried over ranks"),
            "bus_bandwidth": Bandwidth.of(bandwidth, "measured", spread=spread, range=reach, note=told),
            "residual": _points(knots, shares * bandwidth, spread),
            "sizes": ends,
            "protocol": "ll" if high <= LARGE_BYTES else "simple",
            "per": "moved",
            "rails": part.scope == "cluster",
            "inside": inside,
            "fill": format_quantity(law.fill, "ratio") if law.fill else None,
            "ranks": (part.ranks,),
        }
    )


def fit_messages(table: Table) -> tuple[Duration, Bandwidth, Points]:
    """Of single messages between two ranks: the floor, the best rate, and the share of it that each size reaches."""
    if table.collective != "send_recv":
        raise HardwareError(f"{table.name}: got the collective '{table.collective}', expected 'send_recv'")
    floor = 0.9 * float(table.seconds.min())
    knots, seconds = smooth_curve(table.nbytes, table.seconds - floor, table.seconds)
    bandwidth = _rounded(1.0 / float(seconds.min()))
    spread = _rounded(
        _spread(table.seconds, _read(knots, seconds, table.nbytes) * table.nbytes + floor - table.seconds)
    )
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


def smooth_curve(x: Floats, flowing: Floats, seconds: Floats) -> tuple[Floats, Floats]:
    """Knots [k] of x in bytes and seconds a byte at each, with the least sum of relative errors of ``seconds`` [n].

    Between knots the seconds a byte are linear in log(1 + x), as :class:`Points` reads them; a weak penalty on their
    curvature fills knots that no size is near.
    """
    place = np.log1p(x)
    count = max(2, int(np.ceil((place[-1] - place[0]) / np.log(2.0) * KNOTS_PER_OCTAVE)) + 1)
    if len(x) == 1:
        return x, flowing / x
    knots = np.linspace(place[0], place[-1], min(count, len(x)))
    if len(knots) < 2 or knots[0] == knots[-1]:
        return x[-1:], np.array([float(np.median(flowing / x))])
    hats = np.array([np.interp(place, knots, row) for row in np.eye(len(knots))]).T
    scale = np.interp(knots, place, flowing / x)
    columns = hats * scale * (x / seconds)[:, None]
    bend = np.diff(np.eye(len(knots)), 2, axis=0) * SMOOTHING * np.sqrt(len(x) / len(knots))
    wanted = flowing / seconds
    weights = np.ones(len(x))
    shares = np.ones(len(knots))
    for _ in range(SWEEPS):  # iteratively reweighted least squares: the sum of absolute errors
        system = np.vstack([columns * np.sqrt(weights)[:, None], bend])
        target = np.concatenate([wanted * np.sqrt(weights), np.zeros(len(bend))])
        shares = np.linalg.lstsq(system, target, rcond=None)[0]
        weights = 1.0 / np.maximum(np.abs(columns @ shares - wanted), 1e-3)
    return np.expm1(knots), np.maximum(shares, 1e-3) * scale


def _read(knots: Floats, values: Floats, x: Floats) -> Floats:
    return np.asarray(np.interp(np.log1p(x), np.log1p(knots), values))


def _spread(seconds: Floats, missed: Floats) -> float:
    """Robust standard deviation of fitted over measured times, of which the fit misses so much."""
    return float(MAD_TO_SIGMA * np.median(np.abs(missed / seconds)))
