"""Whether statistics contradict themselves: their base numbers; tables are looked at in ``statstables``."""

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from simgnn.errors import ConfigError
from simgnn.graph.graph import GraphFacts
from simgnn.partition.stats import PartitionStats
from simgnn.partition.statsschema import LARGEST_RANKS
from simgnn.program.sizes import IntArray

Fault = tuple[str, str]
"""Key in ``[partition]`` and what is wrong with it."""


def raise_faults(path: str, faults: Iterable[Fault]) -> None:
    """Raise :class:`ConfigError` with every fault, one line each, with its key; nothing where there is none."""
    problems = [
        f"{path}: partition.{key}: {message}; mend it, or make the file anew with simgnn partition --stats"
        for key, message in faults
    ]
    if problems:
        raise ConfigError(problems)


def rows_of_a_rank(stats: PartitionStats, spread: bool) -> tuple[IntArray, str]:
    """Most rows that each rank can have, int64 [P], and words for them. Which rank is the fullest is not known where
    rows are even shares (``spread``)."""
    if not spread:
        return stats.rows, "it has rows"
    most = int(stats.rows.max())
    return np.full(stats.ranks, most), f"{most}, the rows of the fullest rank by partition.vertex_imbalance"


def check_base(arrays: Mapping[str, IntArray], facts: GraphFacts, path: str) -> None:
    """Raise :class:`ConfigError` where ``rows``, ``edges``, ``hosts`` and the three of ``halo`` (int64, by the names of
    :mod:`simgnn.partition.statscode`) are of different lengths, out of range, or do not add up to ``facts``."""
    raise_faults(path, _lengths(arrays))
    raise_faults(path, _ranges(arrays, facts))
    raise_faults(path, _sums(arrays, facts))


def _lengths(arrays: Mapping[str, IntArray]) -> Iterator[Fault]:
    ranks = len(arrays["rows"])
    if not 1 <= ranks <= LARGEST_RANKS:
        yield "rows", f"got {ranks} numbers, expected one a rank, of 1..{LARGEST_RANKS} ranks"
    for key in ("edges", "hosts"):
        if len(arrays[key]) != ranks:
            yield key, f"got {len(arrays[key])} numbers, expected {ranks}, as many as in rows"
    lengths = {len(arrays[f"halo/{part}"]) for part in ("source", "target", "rows")}
    if len(lengths) > 1:
        yield "halo", "owners, ranks and rows differ in length"


def _ranges(arrays: Mapping[str, IntArray], facts: GraphFacts) -> Iterator[Fault]:
    ranks = len(arrays["rows"])
    for key, total, name in (("rows", facts.vertices, "vertices"), ("edges", facts.edges, "edges")):
        if np.any((arrays[key] < 0) | (arrays[key] > total)):
            yield key, f"got {_range(arrays[key])}, expected numbers in 0..{total}, which is graph.{name}"
    for key in ("hosts", "halo/source", "halo/target"):
        if np.any((arrays[key] < 0) | (arrays[key] >= ranks)):
            what = "hosts are numbered" if key == "hosts" else "owner and rank must be"
            yield key.partition("/")[0], f"{what} 0..{ranks - 1}, got {_range(arrays[key])}"
    if np.any((arrays["halo/rows"] < 0) | (arrays["halo/rows"] > facts.vertices)):
        yield "halo", f"got {_range(arrays['halo/rows'])} rows, expected 0..{facts.vertices}, which is graph.vertices"


def _sums(arrays: Mapping[str, IntArray], facts: GraphFacts) -> Iterator[Fault]:
    for key, total, name in (("rows", facts.vertices, "vertices"), ("edges", facts.edges, "edges")):
        found = int(arrays[key].sum())
        if found != total:
            yield key, f"add up to {found}, but graph.{name} = {total}"
    source, target, rows = (arrays[f"halo/{part}"] for part in ("source", "target", "rows"))
    if np.any(source == target):
        yield "halo", "a rank has no halo rows of its own"
    if np.any(np.diff(source * len(arrays["rows"]) + target) <= 0):
        yield "halo", "a pair of ranks is named twice, or pairs are not in order"
    if np.any(rows > arrays["rows"][source]):
        yield "halo", "a rank gets more rows of an owner than the owner has"


def _range(values: IntArray) -> str:
    return f"{int(values.min())}..{int(values.max())}"
