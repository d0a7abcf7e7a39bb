"""PartitionStats as plain values and named arrays: the form in which artefacts and ``stats:`` files keep them."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgnn.graph.graph import GraphFacts
from simgnn.partition.stats import PartitionStats
from simgnn.program.sizes import Route

TABLE = "table/"
BASE = ("hosts", "rows", "edges", "halo/source", "halo/target", "halo/rows")


def stats_to_parts(stats: PartitionStats) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Plain values ("facts", "kind", "digest", "notes") and arrays (those of ``BASE``, and tables as "table/NAME")."""
    described = {"facts": asdict(stats.facts), "kind": stats.kind, "digest": stats.digest, "notes": list(stats.notes)}
    halo = stats.halo
    base = (stats.hosts, stats.rows, stats.edges, halo.source, halo.target, halo.rows)
    arrays: dict[str, NDArray[Any]] = dict(zip(BASE, base, strict=True))
    return described, {**arrays, **{TABLE + name: array for name, array in stats.tables.items()}}


def stats_from_parts(described: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> PartitionStats:
    """The inverse of :func:`stats_to_parts`."""
    return PartitionStats(
        facts=GraphFacts(**described["facts"]),
        kind=described["kind"],
        hosts=arrays["hosts"],
        rows=arrays["rows"],
        edges=arrays["edges"],
        halo=Route(arrays["halo/source"].astype(np.int32), arrays["halo/target"].astype(np.int32), arrays["halo/rows"]),
        digest=described["digest"],
        tables={name.removeprefix(TABLE): array for name, array in arrays.items() if name.startswith(TABLE)},
        notes=tuple(described["notes"]),
    )
