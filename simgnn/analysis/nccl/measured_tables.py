"""Measured times of NCCL calls as CSV tables: one file for each machine, collective, rank count and ranks a host."""

import csv
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simgnn.errors import HardwareError

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


@dataclass(frozen=True, eq=False)
class Table:
    """Times of one collective: ``nbytes`` [n] ascending, none twice, and ``seconds`` [n], the median of each size.

    ``noise`` [n]: standard error of that median as a share of it: from the spread of its calls, or, where that is
    larger, from the spread of the medians of neighbouring sizes. Calls of one size follow one another and wait for one
    another alike; up to 1 MiB inside a host medians of sizes 1 % apart differ by a factor of two or three.
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
        """ "host" or "cluster", as a profile writes it."""
        return "host" if self.ranks == self.ranks_per_host else "cluster"

    @property
    def hosts(self) -> list[int]:
        """Host of each rank."""
        return [rank // self.ranks_per_host for rank in range(self.ranks)]

    def where(self, chosen: NDArray[np.bool_]) -> "Table":
        """Some of the rows."""
        rows = self.nbytes[chosen], self.seconds[chosen], self.noise[chosen]
        return Table(self.name, self.gpu, self.collective, self.ranks, self.ranks_per_host, *rows)

    def where_every(self, nth: int) -> "Table":
        """Every nth row."""
        return self.where(np.arange(len(self.nbytes)) % nth == 0)


def find_tables(folder: Path | None = None) -> Path | None:
    """The folder of the tables: the given one, or measured/nccl beside ``SIMGNN_DATA``; None: not there."""
    data = os.environ.get("SIMGNN_DATA")
    path = folder if folder is not None else Path(data).parent / "measured" / "nccl" if data else None
    return path if path is not None and path.is_dir() else None


def read_tables(folder: Path) -> tuple[Table, ...]:
    """Every table of a folder. Raises :class:`HardwareError` that names the file and what is wrong with it."""
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
    gpu, collective = (_one(path, name, (row[name] for row in rows)) for name in ("gpu", "collective"))
    try:
        ranks, each = (int(_one(path, name, (row[name] for row in rows))) for name in ("ranks", "ranks_per_host"))
        numbers = np.array([[float(row[name]) for name in COLUMNS[4:]] for row in rows])
    except ValueError as error:
        raise HardwareError(f"{path}: {error}; expected numbers in {', '.join(COLUMNS[2:])}") from None
    if not np.all(np.isfinite(numbers)) or np.any(numbers[:, :2] <= 0) or np.any(numbers[:, 2] < 0):
        raise HardwareError(f"{path}: expected sizes and times above zero and spreads of zero or more")
    if each < 1 or ranks < 2 or ranks % each:
        raise HardwareError(
            f"{path}: got {ranks} ranks, {each} a host; expected as many on every host, 2 or more in all"
        )
    nbytes = np.unique(numbers[:, 0])
    alike = [numbers[numbers[:, 0] == size] for size in nbytes]
    seconds = np.array([np.median(found[:, 1]) for found in alike])
    spread = np.array([np.median(found[:, 2]) for found in alike])
    # the tables' deviation is of the population; the median's error needs the sample's
    doubt = MEDIAN_ERROR * spread * np.sqrt(REPEATS / (REPEATS - 1)) / np.sqrt(REPEATS)
    noise = np.maximum(doubt / seconds, _scatter(seconds))
    return Table(path.stem, gpu, collective, ranks, each, nbytes, seconds, noise)


def _scatter(seconds: Floats) -> Floats:
    """Standard deviation [n] of the logarithm of times about those of neighbouring sizes."""
    if len(seconds) < 2:
        return np.zeros(len(seconds))
    steps = np.abs(np.diff(np.log(seconds)))
    near = np.minimum(NEIGHBOURS, len(steps))
    ends = [(max(place - near, 0), place + near) for place in range(len(seconds))]
    return np.array([MEAN_TO_SIGMA * steps[low:high].mean() for low, high in ends])


def _one(path: Path, name: str, values: Iterable[str]) -> str:
    found = sorted(set(values))
    if len(found) != 1:
        raise HardwareError(f"{path}: got {len(found)} different values of {name}, expected one a file")
    return found[0]
