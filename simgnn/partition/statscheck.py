"""Whether statistics contradict themselves."""

import numpy as np

from simgnn.errors import ConfigError
from simgnn.partition.degrees import DEGREES
from simgnn.partition.stats import PartitionStats

MASKS = ("train", "validation", "test")
BY_RANK = (
    "feature_nonzeros",
    "neighbor_feature_nonzeros",
    "aggregated_feature_nonzeros",
    "cut_edges",
    "shared_masters",
)
BY_RANK_AND_BIN = (
    "locality/forward",
    "locality/backward",
    "locality/features/forward",
    "locality/features/backward",
)


def check_stats(stats: PartitionStats, path: str) -> PartitionStats:
    """Return ``stats``, or raise :class:`ConfigError` with every contradiction, one line each, with its key."""
    ranks, facts = stats.ranks, stats.facts
    problems = []

    def expect(holds: bool, key: str, message: str) -> None:
        if not holds:
            problems.append(f"{path}: partition.{key}: {message}")

    for key in ("edges", "hosts"):
        found = len(getattr(stats, key))
        expect(found == ranks, key, f"got {found} numbers, expected {ranks}, as many as in rows")
    halo = stats.halo
    expect(len(halo.source) == len(halo.target) == len(halo.rows), "halo", "owners, ranks and rows differ in length")
    if problems:
        raise ConfigError(problems)
    for key, total, name in (("rows", facts.vertices, "vertices"), ("edges", facts.edges, "edges")):
        found = int(getattr(stats, key).sum())
        expect(found == total, key, f"add up to {found}, but graph.{name} = {total}")
    ends = np.concatenate((halo.source, halo.target))
    inside = not len(ends) or (int(ends.min()) >= 0 and int(ends.max()) < ranks)
    expect(inside, "halo", f"owner and rank must be 0..{ranks - 1}")
    expect(not np.any(halo.source == halo.target), "halo", "a rank has no halo rows of its own")
    pairs = halo.source.astype(np.int64) * ranks + halo.target
    expect(not np.any(np.diff(pairs) <= 0), "halo", "a pair of ranks is named twice, or pairs are not in order")
    if inside:
        expect(
            not np.any((halo.rows < 0) | (halo.rows > stats.rows[halo.source])),
            "halo",
            "a rank gets more rows of an owner than the owner has",
        )
    for name in MASKS:
        table = stats.tables.get(f"{name}_rows")
        total = getattr(facts, f"{name}_vertices")
        if table is not None:
            fits = table.shape == (ranks,) and int(table.sum()) == total
            expect(
                fits, f"tables.{name}_rows", f"must be {ranks} numbers that add up to graph.{name}_vertices = {total}"
            )
    for name in BY_RANK:
        if name in stats.tables:
            shape = stats.tables[name].shape
            expect(shape == (ranks,), f"tables.{name}", f"got shape {shape}, expected one number a rank")
    if DEGREES in stats.tables:
        table = stats.tables[DEGREES]
        fits = table.ndim == 2 and table.shape[1] == 2 and table.dtype.kind in "iu" and bool(np.all(table >= 0))
        expect(fits, f"tables.{DEGREES}", "expected pairs of whole numbers: a degree, and how many vertices have it")
        if fits:
            vertices, edges = int(table[:, 1].sum()), int((table[:, 0] * table[:, 1]).sum())
            message = (
                f"add up to {vertices} vertices and {edges} edges, but graph has {facts.vertices} and {facts.edges}"
            )
            expect((vertices, edges) == (facts.vertices, facts.edges), f"tables.{DEGREES}", message)
    if "halo_feature_nonzeros" in stats.tables:
        shape = stats.tables["halo_feature_nonzeros"].shape
        expect(shape == (ranks, ranks), "tables.halo_feature_nonzeros", f"got shape {shape}, expected [owner, rank]")
    for name in BY_RANK_AND_BIN:
        if name in stats.tables:
            table = stats.tables[name]
            fits = table.ndim == 2 and len(table) == ranks and bool(np.all(np.diff(table, axis=1) >= 0))
            fits = fits and bool(np.all((table >= 0) & (table <= 1)))
            expect(fits, f"tables.{name}", "expected for each rank shares in 0..1 that do not decrease")
    if problems:
        raise ConfigError(problems)
    return stats
