"""Measured times of NCCL calls as CSV tables, and curves, lines and spreads fitted to them.

There is one file for each machine, collective, rank count and number of ranks per host. Fits minimise the sum of
absolute relative errors. Times of a curve never fall from one knot to the next. Between two knots of equal times they
fall by up to 0.6 %, because seconds per byte are linear in log(1 + x) there.
"""

import csv
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from simgnn.errors import HardwareError
from simgnn.units import format_quantity

Floats = NDArray[np.float64]
COLUMNS = ("gpu", "collective", "ranks", "ranks_per_host", "size_bytes", "median_s", "std_s")
REPEATS = 3
"""Calls behind each row of the tables: their means are thirds of whole microseconds."""
MEDIAN_ERROR = 1.2533
"""Standard error of a median of normal samples over that of their mean."""
NEIGHBOURS = 10
"""Sizes on either side of one whose times tell how far a median is from its neighbours'."""
MEAN_TO_SIGMA = 0.8862
"""Standard deviation of normal samples over the mean difference of two of them."""
QUANTILE = 0.9
BANDS = tuple(float(size) for size in (0, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24))
"""Bytes of a message from which on its spread is fitted by size, since it falls with size."""
CARRIED_BANDS = tuple(size for size in BANDS if size != 1 << 16)
"""The same of what is carried over: below 64 KiB a table has eight sizes, too few to tell how others are missed."""
LEAST_SPREAD = 1e-6
"""A profile holds none of zero: invented times may follow their curve exactly."""
LEAST_ROWS = 5
"""A band of fewer sizes is not told apart from the one before it."""
KNOTS_PER_OCTAVE = 3
SMOOTHING = 0.02
"""Weight of a curve's bend against the relative errors of the rows of one knot."""
SWEEPS = 25
FLOOR_SHARE = 0.8
"""The most of the shortest time that hops, or a floor, may be; the rest belongs to the bytes."""
LEAST_MISS = 1e-3
"""Relative errors below it count alike: times have a resolution."""


@dataclass(frozen=True, eq=False)
class Table:
    """Times of one collective: distinct sizes ``nbytes`` [n], ascending, and ``seconds`` [n], the median of each size.

    ``noise`` [n]: standard error of that median, divided by it: from the spread of its calls, or the differences
    between medians of neighbouring sizes, whichever is larger. Calls of one size were made in a row, so their errors
    are not independent: up to 1 MiB inside a host, medians of sizes 1 % apart differ by a factor of two or three.
    """

    name: str
    gpu: str
    collective: str
    ranks: int
    ranks_per_host: int
    nbytes: Floats
    seconds: Floats
    noise: Floats

    @property
    def scope(self) -> str:
        """Scope of the collective in a profile: "host" or "cluster" (across hosts)."""
        return "host" if self.ranks == self.ranks_per_host else "cluster"

    @property
    def hosts(self) -> list[int]:
        return [rank // self.ranks_per_host for rank in range(self.ranks)]

    def where(self, chosen: NDArray[np.bool_]) -> "Table":
        return replace(self, nbytes=self.nbytes[chosen], seconds=self.seconds[chosen], noise=self.noise[chosen])


def find_tables(folder: Path | None = None) -> Path | None:
    """Return the folder of the tables: ``folder``, or measured/nccl beside ``SIMGNN_DATA``; None: not found."""
    if folder is None and (data := os.environ.get("SIMGNN_DATA")):
        folder = Path(data).parent / "measured" / "nccl"
    return folder if folder is not None and folder.is_dir() else None


def read_tables(folder: Path) -> tuple[Table, ...]:
    """Read every table of a folder. Raises :class:`HardwareError` that names the file and what is wrong with it."""
    paths = sorted(folder.glob("*.csv"))
    if not paths:
        raise HardwareError(f"{folder}: no *.csv file; expected tables with the columns {', '.join(COLUMNS)}")
    return tuple(_read(path) for path in paths)


def _read(path: Path) -> Table:
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
        if missing:
            raise HardwareError(f"{path}: no column {', '.join(missing)}; expected {', '.join(COLUMNS)}")
        rows = list(reader)
    columns = {name: [row[name] for row in rows] for name in COLUMNS}
    several = next((name for name in COLUMNS[:4] if len(set(columns[name])) != 1), None)
    if several is not None:
        count = len(set(columns[several]))
        raise HardwareError(f"{path}: got {count} different values of {several}, expected one per file")
    try:
        ranks, each = int(columns["ranks"][0]), int(columns["ranks_per_host"][0])
        numbers = np.array([[float(row[name]) for name in COLUMNS[4:]] for row in rows])
    except ValueError as error:
        raise HardwareError(f"{path}: {error}; expected numbers in {', '.join(COLUMNS[2:])}") from None
    if not np.all(np.isfinite(numbers)) or np.any(numbers[:, :2] <= 0) or np.any(numbers[:, 2] < 0):
        raise HardwareError(f"{path}: expected sizes and times above zero and spreads of zero or more")
    if each < 1 or ranks < 2 or ranks % each:
        raise HardwareError(
            f"{path}: got {ranks} ranks, {each} per host; expected 2 or more, equally many on every host"
        )
    nbytes = np.unique(numbers[:, 0])
    alike = [numbers[numbers[:, 0] == size] for size in nbytes]
    seconds = np.array([np.median(found[:, 1]) for found in alike])
    spread = np.array([np.median(found[:, 2]) for found in alike])
    # the tables' deviation is of the population; the median's error needs the sample's
    doubt = MEDIAN_ERROR * spread * np.sqrt(REPEATS / (REPEATS - 1)) / np.sqrt(REPEATS)
    noise = np.maximum(doubt / seconds, _scatter(seconds))
    return Table(path.stem, columns["gpu"][0], columns["collective"][0], ranks, each, nbytes, seconds, noise)


def _scatter(seconds: Floats) -> Floats:
    """Standard deviation [n] of log(time) among neighbouring sizes, from the differences between adjacent ones."""
    if len(seconds) < 2:
        return np.zeros(len(seconds))
    steps = np.abs(np.diff(np.log(seconds)))
    near = np.minimum(NEIGHBOURS, len(steps))
    ends = [(max(place - near, 0), place + near) for place in range(len(seconds))]
    return np.array([MEAN_TO_SIGMA * steps[low:high].mean() for low, high in ends])


def spread_of(logs: Floats) -> float:
    """Return the standard deviation whose 90 % interval contains 90 % of ``logs``, log(measured / predicted)."""
    return float(np.quantile(np.abs(logs), QUANTILE) / NormalDist().inv_cdf((1.0 + QUANTILE) / 2.0))


def spread_steps(
    sizes: Floats, logs: Floats, regime: Sequence[float] | None, bands: Sequence[float] = BANDS
) -> list[dict[str, str]] | None:
    """Return the spread of ``logs`` [n] in each band of ``sizes`` [n] that overlaps ``regime`` (bytes from, to), as
    entries of a profile; None if there are too few sizes."""
    begins, ends = regime or (0.0, inf)
    steps = []
    for low, high in zip(bands, (*bands[1:], inf), strict=True):
        band = (sizes >= low) & (sizes < high)
        if low < ends and high > begins and band.sum() >= LEAST_ROWS:
            share = format_quantity(max(rounded(spread_of(logs[band]), 2), LEAST_SPREAD), "ratio")
            steps.append({"size": format_quantity(max(low, begins), "bytes"), "share": share})
    return steps or None


def rounded(number: float, digits: int = 4) -> float:
    """Round a number to so many significant ``digits``, as profiles do."""
    return float(f"{number:.{digits}g}")


@dataclass(frozen=True, eq=False)
class Curve:
    """Seconds of x bytes: ``floor`` + x * seconds per byte, which are ``shares`` [k] at ``knots`` [k] in bytes."""

    floor: float
    knots: Floats
    shares: Floats

    def at(self, x: Floats) -> Floats:
        """Seconds [n] of x [n] bytes; outside the knots along straight lines."""
        return self.floor + x * read(self.knots, self.shares, x)


def mean_curve(curves: Sequence[Curve]) -> Curve:
    """Return the mean of several curves' seconds. A curve's weight halves with each octave beyond its knots."""
    if len(curves) == 1:
        return curves[0]
    knots = _spaced(
        *np.log1p([min(curve.knots[0] for curve in curves), max(curve.knots[-1] for curve in curves)]).tolist()
    )
    beyond = [np.abs(np.log2(knots / np.clip(knots, curve.knots[0], curve.knots[-1]))) for curve in curves]
    seconds = np.average([curve.at(knots) for curve in curves], axis=0, weights=0.5 ** np.array(beyond))
    seconds = np.maximum.accumulate(seconds)
    floor = min(float(np.mean([curve.floor for curve in curves])), FLOOR_SHARE * float(seconds[0]))
    return Curve(floor, knots, (seconds - floor) / knots)


def smooth_curve(x: Floats, flowing: Floats, seconds: Floats) -> tuple[Floats, Floats]:
    """Fit seconds per byte at knots [k] in bytes to times ``flowing`` [n], by least errors relative to ``seconds`` [n].

    Between knots, seconds per byte are linear in log(1 + x), as :class:`Points` reads them. A weak penalty on bends
    fills in knots that no size is near. From knot to knot, times never fall: measured falls are chance, as calls wait
    for one another. x [n]: bytes, ascending; ``flowing``: ``seconds`` without latencies.
    """
    if len(x) == 1:
        return x, flowing / x
    place = np.log1p(x)
    knots = _spaced(place[0], place[-1], len(x))
    if len(knots) < 2 or knots[0] == knots[-1]:
        return x[-1:], np.array([float(np.median(flowing / x))])
    start, slope = straight_line(x, flowing, seconds, sweeps=1)
    least = LEAST_MISS * float(flowing.min())
    scale = np.maximum(max(start, 0.0) + max(slope, 0.0) * knots, least)
    hats = np.array([np.interp(place, np.log1p(knots), row) for row in np.eye(len(knots))]).T
    columns = hats * (scale / knots) * (x / seconds)[:, None]
    bend = np.diff(np.eye(len(knots)), 2, axis=0) * SMOOTHING * np.sqrt(len(x) / len(knots))
    found = _least_sum(columns, flowing / seconds, bend) * scale
    if np.any(np.diff(found) < 0.0) or found[0] < least:
        # what each knot adds to the one before it
        added = np.tri(len(knots)) / scale[:, None]
        found = np.cumsum(_least_sum(columns @ added, flowing / seconds, bend @ added, falling=False))
    return knots, np.maximum(found, least) / knots


def _spaced(low: float, high: float, at_most: int | None = None) -> Floats:
    """Sizes in bytes, ``KNOTS_PER_OCTAVE`` of them, between two values of log(1 + size)."""
    count = max(2, int(np.ceil((high - low) / np.log(2.0) * KNOTS_PER_OCTAVE)) + 1)
    return np.expm1(np.linspace(low, high, count if at_most is None else min(count, at_most)))


def read(knots: Floats, values: Floats, x: Floats) -> Floats:
    """Return the seconds per byte of a :func:`smooth_curve` at x [n] bytes."""
    return np.asarray(np.interp(np.log1p(x), np.log1p(knots), values))


def straight_line(x: Floats, flowing: Floats, seconds: Floats, sweeps: int = SWEEPS) -> tuple[float, float]:
    """Fit a line to ``flowing`` [n]: return its seconds at 0 bytes and seconds per byte. Minimises the sum of absolute
    errors relative to ``seconds`` [n]; with ``sweeps`` = 1, of their squares."""
    columns = np.column_stack([np.ones(len(x)), x / x[-1]]) / seconds[:, None]
    start, slope = _least_sum(columns, flowing / seconds, np.zeros((0, 2)), sweeps=sweeps)
    return float(start), float(slope / x[-1])


def _least_sum(columns: Floats, wanted: Floats, bend: Floats, *, falling: bool = True, sweeps: int = SWEEPS) -> Floats:
    """Minimise the sum of absolute errors by iteratively reweighted least squares, with normal equations as there are
    few columns. Without ``falling``, no coefficient is negative."""
    weights: Floats = np.ones(len(wanted))
    found: Floats = np.zeros(columns.shape[1])
    size: Floats = np.ones(columns.shape[1]) if falling else np.linalg.norm(columns, axis=0)
    columns, bend = columns / size, bend / size
    for _ in range(sweeps):
        weighted = columns * weights[:, None]
        squares, sums = weighted.T @ columns + bend.T @ bend, weighted.T @ wanted
        if falling:
            found = np.asarray(np.linalg.solve(squares, sums), dtype=np.float64)
        else:
            root = np.linalg.cholesky(squares)
            found = np.asarray(nnls(root.T, np.linalg.solve(root, sums))[0], dtype=np.float64)
        weights = 1.0 / np.maximum(np.abs(columns @ found - wanted), LEAST_MISS)
    return found / size
