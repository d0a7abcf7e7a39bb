"""Checks of a hand-written ``stats:`` file beyond its schema: lengths, ranges and totals, each with its key.

They catch slips of whoever writes a file. A file that was counted from a graph carries a digest of its numbers instead
(:mod:`simgnn.partition.statistics.file`).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simgnn.errors import ConfigError
from simgnn.graph.graph import GraphFacts
from simgnn.partition.local.vertex_cut import BY_HOSTS, BY_REPLICAS, LEVELS, SHARED
from simgnn.partition.statistics.degrees import DEGREES
from simgnn.partition.statistics.partition_stats import BASE, MASKS, PartitionStats
from simgnn.partition.statistics.schema import LARGEST_RANKS
from simgnn.program.sizes import IntArray
from simgnn.spelling import nearest

Fault = tuple[str, str]
"""Key in ``[partition]`` and what is wrong with it."""
LOCALITY = ("locality/forward", "locality/backward", "locality/features/forward", "locality/features/backward")
SPARSE = ("feature_nonzeros", "neighbor_feature_nonzeros", "aggregated_feature_nonzeros", "halo_feature_nonzeros")
LARGEST = 2**46
"""No number of a table is greater, so that sums over ranks are whole numbers of 64 bits."""


@dataclass(frozen=True)
class TableForm:
    """The form of a named table.

    ``shape``: None is any length. ``shares``: it holds shares in 0..1, not whole numbers. ``below``: exclusive upper
    bounds of its first columns, which are indices. ``total``: a key of the file, and the number to add up to.
    """

    shape: tuple[int | None, ...]
    shares: bool = False
    below: tuple[int, ...] = ()
    total: tuple[str, int | None] | None = None


def table_forms(stats: PartitionStats) -> dict[str, TableForm]:
    """Every table that a partition of this size may have, by name."""
    P, facts = stats.ranks, stats.facts
    masks = {
        f"{name}_rows": TableForm((P,), total=(f"graph.{name}_vertices", getattr(facts, f"{name}_vertices")))
        for name in MASKS
    }
    return {
        **masks,
        **dict.fromkeys(SPARSE[1:3], TableForm((P,))),
        SPARSE[0]: TableForm((P,), total=("graph.feature_nonzeros", facts.feature_nonzeros)),
        SPARSE[3]: TableForm((P, P)),
        "cut_edges": TableForm((P,)),
        "block_edges": TableForm((P, P), total=("graph.edges", facts.edges)),
        SHARED: TableForm((P,)),
        **dict.fromkeys(LOCALITY, TableForm((P, None), shares=True)),
        DEGREES: TableForm((None, 2)),
        BY_REPLICAS: TableForm((None, 3), below=(len(stats.halo.rows), P + 1)),
        **dict.fromkeys(LEVELS, TableForm((None, 3), below=(P, P))),
        BY_HOSTS: TableForm((None, 4), below=(P, P, P + 1)),
    }


def check_base(arrays: Mapping[str, IntArray], facts: GraphFacts, path: str) -> None:
    """Raise :class:`ConfigError` where the arrays of ``BASE`` (int64) are of different lengths, out of range, or do not
    add up to ``facts``."""
    for faults in (_lengths(arrays), _ranges(arrays, facts), _sums(arrays, facts)):
        _raise(path, faults)


def check_tables(stats: PartitionStats, path: str) -> PartitionStats:
    """``stats`` with its tables as int64, shares as float64; :class:`ConfigError` with every fault of the tables."""
    forms = table_forms(stats)
    _raise(path, _shapes(stats, forms))
    kinds = {name: np.float64 if form.shares else np.int64 for name, form in forms.items()}
    tables: dict[str, Any] = {name: table.astype(kinds[name]) for name, table in stats.tables.items()}
    stats = replace(stats, tables=tables)
    _raise(path, _numbers(stats, forms))
    return stats


def _raise(path: str, faults: Iterable[Fault]) -> None:
    problems = [
        f"{path}: partition.{key}: {message}; correct it, or make the file anew with simgnn partition --stats"
        for key, message in faults
    ]
    if problems:
        raise ConfigError(problems)


def _lengths(arrays: Mapping[str, IntArray]) -> Iterator[Fault]:
    ranks = len(arrays["rows"])
    if not 1 <= ranks <= LARGEST_RANKS:
        yield "rows", f"got {ranks} numbers, expected one a rank, of 1..{LARGEST_RANKS} ranks"
    for key in ("edges", "hosts"):
        if len(arrays[key]) != ranks:
            yield key, f"got {len(arrays[key])} numbers, expected {ranks}, as many as in rows"
    if len({len(arrays[key]) for key in BASE[3:]}) > 1:
        yield "halo", "owners, ranks and rows differ in length"


def _ranges(arrays: Mapping[str, IntArray], facts: GraphFacts) -> Iterator[Fault]:
    ranks = len(arrays["rows"])
    most = {"rows": facts.vertices, "edges": facts.edges, "halo/rows": facts.vertices}
    most |= dict.fromkeys(("hosts", "halo/source", "halo/target"), ranks - 1)
    for key, largest in most.items():
        if np.any((arrays[key] < 0) | (arrays[key] > largest)):
            found = f"{int(arrays[key].min())}..{int(arrays[key].max())}"
            yield key.partition("/")[0], f"got {found} in {key}, expected numbers in 0..{largest}"


def _sums(arrays: Mapping[str, IntArray], facts: GraphFacts) -> Iterator[Fault]:
    for key, total, name in (("rows", facts.vertices, "vertices"), ("edges", facts.edges, "edges")):
        if int(arrays[key].sum()) != total:
            yield key, f"add up to {int(arrays[key].sum())}, but graph.{name} = {total}"
    source, target, rows = (arrays[key] for key in BASE[3:])
    if np.any(source == target):
        yield "halo", "a rank has no halo rows of its own"
    if np.any(np.diff(source * len(arrays["rows"]) + target) <= 0):
        yield "halo", "a pair of ranks is named twice, or pairs are not in order"
    if np.any(rows > arrays["rows"][source]):
        yield "halo", "a rank gets more rows of an owner than the owner has"


def _shapes(stats: PartitionStats, forms: Mapping[str, TableForm]) -> Iterator[Fault]:
    for name, table in stats.tables.items():
        form = forms.get(name)
        if form is None:
            yield f"tables.{name}", f"unknown table{nearest(name, tuple(forms))}; there are {', '.join(forms)}"
        elif table.ndim != len(form.shape) or any(
            want not in (None, got) for want, got in zip(form.shape, table.shape, strict=True)
        ):
            wanted = ", ".join("any" if length is None else str(length) for length in form.shape)
            yield f"tables.{name}", f"got numbers of shape {list(table.shape)}, expected [{wanted}]"
        elif table.dtype.kind not in ("fiu" if form.shares else "iu"):
            yield f"tables.{name}", f"got {table.dtype} numbers, expected {'shares' if form.shares else 'whole ones'}"


def _numbers(stats: PartitionStats, forms: Mapping[str, TableForm]) -> Iterator[Fault]:
    for name, table in stats.tables.items():
        form, key = forms[name], f"tables.{name}"
        if form.shares:
            # written so that NaN fails, too
            if not (table.size and np.all((table >= 0) & (table <= 1)) and np.all(np.diff(table, axis=1) >= 0)):
                yield key, "expected shares in 0..1 for each rank that do not decrease"
        elif np.any((table < 0) | (table > LARGEST)):
            yield key, f"got {table.min()}..{table.max()}, expected numbers in 0..{LARGEST}"
        elif form.below and np.any(table[:, : len(form.below)] >= form.below):
            yield key, f"expected numbers below {', '.join(map(str, form.below))} in its first columns"
        elif name in SPARSE and stats.facts.feature_nonzeros is None:
            yield key, "describes sparse features, but graph.feature_nonzeros is missing"
        elif form.total is not None and _total(table) != form.total[1]:
            yield key, f"add up to {_total(table)}, expected {form.total[0]} = {form.total[1]}"
        elif name == DEGREES:
            yield from _degrees(stats, *table.T)


def _total(table: IntArray) -> int:
    # sums of rows are whole numbers of 64 bits; the sum over all pairs of ranks may not be one
    return sum(table.reshape(len(table), -1).sum(axis=1).tolist())


def _degrees(stats: PartitionStats, degrees: IntArray, counts: IntArray) -> Iterator[Fault]:
    found = int(counts.sum()), sum((degrees.astype(object) * counts).tolist())
    if found != (stats.facts.vertices, stats.facts.edges) or np.any(np.diff(degrees) <= 0):
        yield (
            f"tables.{DEGREES}",
            f"add up to {found[0]} vertices and {found[1]} edges, expected {stats.facts.vertices} and "
            f"{stats.facts.edges}, each degree once and in ascending order",
        )
