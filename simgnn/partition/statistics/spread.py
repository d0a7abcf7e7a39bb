"""Summary numbers of a partition, spread evenly over the ranks."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgnn.errors import ConfigError
from simgnn.graph.graph import GraphFacts
from simgnn.partition.statistics.partition_stats import TABLE
from simgnn.partition.statistics.schema import PartitionSection
from simgnn.program.sizes import IntArray, Route


def spread_arrays(
    section: PartitionSection, facts: GraphFacts, path: str
) -> tuple[dict[str, NDArray[Any]], tuple[str, ...]]:
    """Arrays of a partition with the totals of ``section`` and ``facts``, and notes that name what is spread evenly.

    Rows, edges and masked vertices: rank 0 holds its imbalance times the mean, the others share the rest. Halo rows of
    a rank come from all other ranks alike.
    """
    assert section.ranks is not None
    ranks = section.ranks
    rows = _loaded(facts.vertices, ranks, section.vertex_imbalance, f"{path}: partition.vertex_imbalance")
    edges = _loaded(facts.edges, ranks, section.edge_imbalance, f"{path}: partition.edge_imbalance")
    received = _received(section, facts.vertices, path)
    matrix = np.zeros((ranks, ranks), dtype=np.int64)
    for rank in range(ranks):
        if ranks > 1:
            # start each rank's remainder behind itself, so that no owner serves more than others
            peers = (rank + 1 + np.arange(ranks - 1)) % ranks
            matrix[peers, rank] = even(int(received[rank]), ranks - 1)
    halo = Route.from_matrix(matrix)
    arrays: dict[str, NDArray[Any]] = {"rows": rows, "edges": edges}
    arrays |= {"halo/source": halo.source, "halo/target": halo.target, "halo/rows": halo.rows}
    masked = {"train": facts.train_vertices, "validation": facts.validation_vertices, "test": facts.test_vertices}
    for name, count in masked.items():
        arrays[f"{TABLE}{name}_rows"] = _in_proportion(count, rows)
    # as if neighbours were chosen at random: a stated halo does not give the cut by owner
    arrays[f"{TABLE}block_edges"] = np.stack([_in_proportion(int(count), rows) for count in edges])
    if facts.feature_nonzeros is not None:
        arrays[f"{TABLE}feature_nonzeros"] = _in_proportion(facts.feature_nonzeros, rows)
        per_row = facts.feature_nonzeros / facts.vertices
        arrays[f"{TABLE}halo_feature_nonzeros"] = np.round(matrix * per_row).astype(np.int64)
    return arrays, (
        "rows, edges, halo rows and masks are spread evenly from summary numbers, not counted from a graph",
    )


def even(total: int, parts: int) -> IntArray:
    """``total`` in ``parts`` shares that differ by one at most, int64 [parts]."""
    size, larger = divmod(total, parts)
    return np.array([size + (part < larger) for part in range(parts)], dtype=np.int64)


def _loaded(total: int, ranks: int, imbalance: float, key: str) -> IntArray:
    if ranks == 1:
        return np.array([total], dtype=np.int64)
    first = round(imbalance * total / ranks)
    if first > total:
        raise ConfigError(f"{key}: got {imbalance}, expected at most {ranks}, the number of ranks")
    first = max(first, -(-total // ranks))
    return np.concatenate((np.array([first], dtype=np.int64), even(total - first, ranks - 1)))


def _received(section: PartitionSection, vertices: int, path: str) -> IntArray:
    assert section.ranks is not None
    if section.replication_factor is not None:
        if section.replication_factor > section.ranks:
            raise ConfigError(
                f"{path}: partition.replication_factor: got {section.replication_factor}, expected at most "
                f"{section.ranks}, the number of ranks"
            )
        return even(round((section.replication_factor - 1.0) * vertices), section.ranks)
    stated = section.halo_rows if section.halo_rows is not None else 0
    received = [stated] * section.ranks if isinstance(stated, int) else list(stated)
    if len(received) != section.ranks:
        raise ConfigError(
            f"{path}: partition.halo_rows: got {len(received)} numbers, expected one, or {section.ranks}, one a rank"
        )
    return np.array(received, dtype=np.int64)


def _in_proportion(total: int, weights: IntArray) -> IntArray:
    # whole shares whose running sums are the rounded running sums, so that they add up
    ends = np.cumsum(weights)
    marks = np.array([total * int(end) // max(1, int(ends[-1])) for end in ends], dtype=np.int64)
    return np.diff(marks, prepend=0)
