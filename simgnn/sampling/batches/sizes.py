"""Sizes of every batch of a run, of the rows it pulls and of its requests: the input of planning."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgnn.errors import ConfigError
from simgnn.npzfile import read_npz
from simgnn.outside import outside_data
from simgnn.partition.folder import write_npz
from simgnn.program.sizes import IntArray, Route
from simgnn.sampling.draw.compared import ComparedSizes

ID_BYTES, DEGREE_BYTES, NEIGHBOUR_BYTES = 8, 4, 8
"""Bytes of each vertex that is asked for, of the answer to it, and of each neighbour in the answer."""
HOT_ROWS = "hot_rows"
LOCALITY = "locality/"
PLAIN = ("rows", "edges", "local", "hits", "training")


@dataclass(frozen=True)
class SampleRequests:
    """Requests to draw neighbours, for every batch of a run. ``asked``, ``returned`` int64 [hops, P, P, epochs, steps]:
    vertices whose neighbours one rank (first P) requests from another (second P), and neighbours returned; the diagonal
    counts what ranks draw on their own host. A rank without a batch in a step requests nothing, but answers."""

    asked: IntArray
    returned: IntArray

    @property
    def hops(self) -> int:
        """L, the number of hops."""
        return len(self.asked)

    def answering(self, hop: int) -> Route:
        """Route of answers to the vertices requested at ``hop`` (from 1), from answering to requesting rank:
        :data:`DEGREE_BYTES` each. The requests go the other way, :data:`ID_BYTES` each."""
        return self._answers(self.asked[hop - 1])

    def returning(self, hop: int) -> Route:
        """Route of the neighbours drawn at ``hop``, from answering to requesting rank: :data:`NEIGHBOUR_BYTES` each."""
        return self._answers(self.returned[hop - 1])

    def drawn(self, hop: int) -> tuple[IntArray, IntArray]:
        """Vertices and neighbours that each rank draws from its host's rows for its own batch, [P, epochs, steps]."""
        ranks = np.arange(self.asked.shape[1])
        return self.asked[hop - 1, ranks, ranks], self.returned[hop - 1, ranks, ranks]

    def _answers(self, dense: IntArray) -> Route:
        """Build the route of answers from ``dense`` [requesting, answering, epochs, steps], without the diagonal."""
        sent = np.swapaxes(dense, 0, 1)
        source, target = np.nonzero(sent.any(axis=(2, 3)) & ~np.eye(len(sent), dtype=np.bool_))
        return Route(source.astype(np.int32), target.astype(np.int32), sent[source, target])


@dataclass(frozen=True)
class CacheSizes:
    """Sizes of the caches of hot rows, one for each epoch and rank. ``rows`` int64 [P]: rows of a rank's largest cache;
    ``first``: route that fills the caches of epoch 0, from sender to receiver; ``pulled`` [pairs, epochs, steps]: rows
    that each step sends for the next epoch's cache; ``kept`` int64 [P, epochs, steps]: rows copied from the present
    cache."""

    rows: IntArray
    first: Route
    pulled: Route
    kept: IntArray


@dataclass(frozen=True)
class PartedSizes:
    """Sampling where each host holds a part of the graph's structure: ``structure_bytes`` int64 [P], by rank."""

    requests: SampleRequests
    structure_bytes: IntArray


@dataclass(frozen=True)
class BatchSizes:
    """Sizes of every batch of a run, int64 [P, epochs, steps] each; zeros for a rank without a batch in a step.

    ``rows`` [hops + 1, ...]: rows after each hop (entry 0: seed vertices); ``edges`` [hops, ...]: drawn edges;
    ``local``, ``hits``: input rows in the memory of the host, and in the cache; ``pulled``: the others, [pairs, epochs,
    steps] by sending and receiving rank. ``cache``: None without hot rows. ``training`` int64 [P]: training vertices of
    each rank. ``locality``: reuse profiles of one batch of each rank, float64 [P, bins] by table name. ``parted``: None
    unless ranks request neighbours from other hosts. ``seeds``: in unsupervised training, where
    ``rows[0]`` also counts positives and negatives, the seed vertices of each batch, with ``negatives`` each; None:
    training with labels. ``compared``: how unsupervised training is evaluated; None: not at all.
    """

    rows: IntArray
    edges: IntArray
    local: IntArray
    hits: IntArray
    pulled: Route
    cache: CacheSizes | None
    training: IntArray
    locality: Mapping[str, NDArray[np.float64]]
    parted: PartedSizes | None = None
    seeds: IntArray | None = None
    negatives: int = 0
    compared: ComparedSizes | None = None

    @property
    def pairs(self) -> IntArray | None:
        """Positives and negatives of each batch of unsupervised training, with an entry for those that a seed lacks."""
        return None if self.seeds is None else self.seeds * (1 + self.negatives)

    @property
    def steps(self) -> int:
        """Training steps of an epoch."""
        return int(self.local.shape[-1])


def save_sizes(sizes: BatchSizes, hot_rows: int, path: Path) -> None:
    """Write an ``.npz`` of ``sizes`` and the number of hot rows, so that a run is simulated again without its graph."""
    arrays: dict[str, Any] = {HOT_ROWS: np.int64(hot_rows)}
    arrays |= {name: getattr(sizes, name) for name in PLAIN}
    arrays |= {LOCALITY + name: table for name, table in sizes.locality.items()}
    routes = {"pulled": sizes.pulled}
    if sizes.cache is not None:
        arrays |= {"cache/rows": sizes.cache.rows, "cache/kept": sizes.cache.kept}
        routes |= {"cache/first": sizes.cache.first, "cache/pulled": sizes.cache.pulled}
    if sizes.parted is not None:
        requests = sizes.parted.requests
        arrays |= {"parted/asked": requests.asked, "parted/returned": requests.returned}
        arrays["parted/structure_bytes"] = sizes.parted.structure_bytes
    if sizes.seeds is not None:
        arrays |= {"seeds": sizes.seeds, "negatives": np.int64(sizes.negatives)}
    if sizes.compared is not None:
        arrays |= {"compared/entries": np.int64(sizes.compared.entries), "compared/by_rank": sizes.compared.by_rank}
        routes["compared/partners"] = sizes.compared.partners
    for name, route in routes.items():
        arrays |= {f"{name}/source": route.source, f"{name}/target": route.target, f"{name}/rows": route.rows}
    write_npz(path, arrays)


def load_sizes(path: Path) -> tuple[BatchSizes, int]:
    """Read sizes and hot rows from a file of :func:`save_sizes`. Raises :class:`ConfigError` for anything else."""
    with outside_data(path, "file of the sizes of a run's batches", remedy="prepare it again", error=ConfigError):
        arrays = read_npz(path)

        def route(name: str) -> Route:
            return Route(arrays[f"{name}/source"], arrays[f"{name}/target"], arrays[f"{name}/rows"])

        cache = parted = None
        if "cache/rows" in arrays:
            cache = CacheSizes(arrays["cache/rows"], route("cache/first"), route("cache/pulled"), arrays["cache/kept"])
        if "parted/asked" in arrays:
            requests = SampleRequests(arrays["parted/asked"], arrays["parted/returned"])
            parted = PartedSizes(requests, arrays["parted/structure_bytes"])
        plain = {name: arrays[name] for name in PLAIN}
        locality = {name.removeprefix(LOCALITY): table for name, table in arrays.items() if name.startswith(LOCALITY)}
        compared = None
        if "compared/entries" in arrays:
            entries, by_rank = int(arrays["compared/entries"]), arrays["compared/by_rank"]
            compared = ComparedSizes(entries, by_rank, route("compared/partners"))
        sizes = BatchSizes(
            **plain, pulled=route("pulled"), cache=cache, locality=locality, parted=parted,
            seeds=arrays.get("seeds"), negatives=int(arrays.get("negatives", 0)), compared=compared,
        )  # fmt: skip
        return sizes, int(arrays[HOT_ROWS])
