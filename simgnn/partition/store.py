"""Stores each partition once in the cache under a key of its inputs; one process makes it, all others map it."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from simgnn.errors import ConfigError
from simgnn.graph.csr import CSR
from simgnn.graph.graph import Graph, GraphFacts
from simgnn.graph.store import graph_digest
from simgnn.partition.chunks.partitioner import ChunkedPartitioner
from simgnn.partition.device_fit import FittedPartitioner
from simgnn.partition.folder import FORMAT, ArtifactFolder, ArtifactWriter, cache_folder, obtain
from simgnn.partition.local.edge_cut import LocalGraph, RowLists
from simgnn.partition.local.vertex_cut import LEVELS, RankGraph, ReplicaGraph
from simgnn.partition.partition import Partition, digest_of, partitioned
from simgnn.partition.speed import expected_seconds, remember
from simgnn.partition.statistics.count import partition_stats
from simgnn.partition.statistics.partition_stats import (
    Origin,
    PartitionStats,
    Quality,
    measure,
    stats_from_parts,
    stats_to_parts,
)
from simgnn.policy import DroppedHalo, Partitioner
from simgnn.program.sizes import IntArray
from simgnn.progress import SILENT, Progress
from simgnn.registry import source_digest
from simgnn.seal import json_digest

WHAT = "partition"


@dataclass(frozen=True)
class PartitionArtifact:
    """A partition on disk. ``made``: whether this call made it (False: reused). ``facts``: facts of the loaded graph,
    whose name may differ from the name of the graph that was partitioned; ``notes``: its notes for results."""

    folder: ArtifactFolder
    made: bool = False
    facts: GraphFacts | None = None
    notes: tuple[str, ...] = ()

    @classmethod
    def open(cls, path: str | Path) -> "PartitionArtifact":
        """Open the partition in the folder ``path``. Raises :class:`ConfigError` when it is incomplete."""
        return cls(ArtifactFolder.open(Path(path), WHAT))

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def digest(self) -> str:
        """SHA-256 over graph, partition, hosts and order of rows."""
        return str(self.folder.details["digest"])

    @cached_property
    def cut_digest(self) -> str:
        """SHA-256 over graph and partition alone, independent of hosts and of the order of rows."""
        details = self.folder.details
        cut = details.get("cut") or self.partition.digest  # artefacts of earlier versions do not hold it
        return digest_of([str(details["made_from"]["graph"]), str(cut)], [])

    @cached_property
    def origin(self) -> Origin:
        """Digests of the graph and the partition that the statistics are counted from."""
        return Origin(str(self.folder.details["made_from"]["graph"]), self.cut_digest, self.digest)

    @property
    def ranks(self) -> int:
        return int(self.folder.details["ranks"])

    @property
    def kind(self) -> str:
        return str(self.folder.details["kind"])

    @cached_property
    def partition(self) -> Partition:
        """The partition of the whole graph: owners, and in a vertex-cut the ranks of edges."""
        self.folder.verify("owner").verify("edge_part").verify("dropped/")
        edges = self.folder.array("edge_part") if "edge_part" in self.folder.files else None
        return Partition(self.folder.details["kind"], self.ranks, self.folder.array("owner"), edges, self._dropped)

    @property
    def _dropped(self) -> DroppedHalo | None:
        described = self.folder.details.get("dropped")
        if described is None:
            return None
        rank, vertex = (self.folder.array(f"dropped/{name}") for name in ("rank", "vertex"))
        return DroppedHalo(rank, vertex, described["renormalised"], described["status"], tuple(described["notes"]))

    @property
    def filled(self) -> Mapping[str, Any]:
        """Options of the partitioner that were filled in from the devices of the ranks, by name."""
        found: Mapping[str, Any] = self.folder.details.get("filled", {})
        return found

    @property
    def counted(self) -> Mapping[str, int]:
        """Numbers that the partitioner counted while it divided, by name."""
        found: Mapping[str, int] = self.folder.details.get("counted", {})
        return found

    @property
    def status(self) -> str | None:
        """How the choice of dropped halo rows ended; None: the partitioner drops none."""
        described = self.folder.details.get("dropped")
        return None if described is None else str(described["status"])

    @cached_property
    def stats(self) -> PartitionStats:
        self.folder.verify("stats/")
        names = [name.removeprefix("stats/") for name in self.folder.files if name.startswith("stats/")]
        arrays = {name: np.array(self.folder.array(f"stats/{name}")) for name in names}
        stats = replace(stats_from_parts(self.folder.details["stats"], arrays), origin=self.origin)
        stats = replace(stats, notes=(*self.notes, *stats.notes))
        return stats if self.facts is None else replace(stats, facts=self.facts)

    @cached_property
    def quality(self) -> Quality:
        return measure(self.stats)

    def owned(self, rank: int) -> NDArray[np.int64]:
        """Return the vertices that a rank of an edge-cut owns, in the order of its rows; reads no other array."""
        name = f"rank-{rank}/owned"
        return self.folder.verify(name).array(name)

    def local(self, rank: int) -> RankGraph:
        """Return the part of the graph that ``rank`` holds, after its files are checked against their digests."""
        if not 0 <= rank < self.ranks:
            raise ConfigError(f"{self.path} was made for {self.ranks} ranks; there is no rank {rank}: partition again")
        prefix = f"rank-{rank}/"
        self.folder.verify(prefix)
        names = [name.removeprefix(prefix) for name in self.folder.files if name.startswith(prefix)]
        part = {name: self.folder.array(prefix + name) for name in names}
        if self.kind == "vertex-cut":
            return _replica_graph(rank, part)
        return LocalGraph(
            rank=rank,
            owned=part["owned"],
            halo=part["halo"],
            csr=CSR(part["indptr"], part["indices"], len(part["owned"]) + len(part["halo"]), part.get("weights")),
            degree=part["degree"],
            send_rows=_pieces(part["send_rows"], part["send_starts"]),
            receive=_slices(part["receive_starts"]),
            weighted_degree=part.get("weighted_degree"),
            kept_degree=part.get("kept_degree"),
            renormalised=bool((self.folder.details.get("dropped") or {}).get("renormalised", False)),
        )


def _replica_graph(rank: int, part: Mapping[str, NDArray[Any]]) -> ReplicaGraph:
    def level(name: str) -> RowLists:
        ways = (f"{name}/leaving", f"{name}/arriving")
        leaving, arriving = (_pieces(part[way], part[f"{way}_starts"]) for way in ways)
        return RowLists(leaving, {peer: len(rows) for peer, rows in arriving.items()}, arriving)

    vertices = part["vertices"]
    return ReplicaGraph(
        rank=rank,
        vertices=vertices,
        masters=int(part["counts"][0]),
        internal=int(part["counts"][1]),
        csr=CSR(part["indptr"], part["indices"], len(vertices), part.get("weights")),
        degree=part["degree"],
        mirrored=_pieces(part["mirrored"], part["mirrored_starts"]),
        mirrors=_slices(part["mirror_starts"]),
        levels={name: level(name) for name in LEVELS if f"{name}/leaving" in part},
        weighted_degree=part.get("weighted_degree"),
    )


def _pieces(rows: NDArray[Any], starts: NDArray[Any]) -> dict[int, NDArray[Any]]:
    """Map each peer that has rows to its part of ``rows``; ``starts`` [P + 1]: first row of each peer, and the end."""
    return {peer: rows[span] for peer, span in _slices(starts).items()}


def _slices(starts: NDArray[Any]) -> dict[int, slice]:
    """Map each peer that has rows to the slice of its rows."""
    return {p: slice(int(starts[p]), int(starts[p + 1])) for p in np.flatnonzero(np.diff(starts)).tolist()}


def partition_artifact(
    graph: Graph,
    policy: Partitioner,
    hosts: IntArray,
    seed: int,
    cache: Path | None = None,
    progress: Progress = SILENT,
) -> PartitionArtifact:
    """Return the partition of ``graph`` by ``policy`` over P = len(hosts) ranks, from the cache or newly made.
    ``hosts`` int64 [P]: host of each rank. The cache's key covers the graph's digest, the policy's fields, hosts and
    seed, so METIS, which is not reproducible everywhere, runs once. A partitioner that starts from the parts of another
    one gets those that are kept; the artefact of one that divides parts into chunks is that of these parts."""
    hosts = np.asarray(hosts, dtype=np.int64)
    if policy.chunked:
        parts = cast(ChunkedPartitioner, policy).parts_of(hosts)
        return partition_artifact(graph, parts, hosts, seed, cache, progress)
    source = graph_digest(graph)
    wanted = {"graph": source, "policy": policy.model_dump(mode="json"), "hosts": hosts.tolist(), "seed": seed}
    if policy.cut == "vertex-cut":
        # vertex-cuts made by earlier versions do not
        counted = ", rows by hosts" if len(np.unique(hosts)) > 1 else ""
        wanted["holds"] = f"replica graphs, levels{counted}"
    code = source_digest(policy)
    if code:
        wanted["code"] = code  # a user's own partitioner that was changed partitions again
    start: NDArray[np.int32] | None = None
    if policy.fits_devices:
        base = cast(FittedPartitioner, policy).starts_from(hosts)
        begun = partition_artifact(graph, base, hosts, seed, cache, progress)
        start, wanted["starts_from"] = begun.partition.owner, begun.cut_digest
    name = f"{policy.label.replace(':', '.')}-{len(hosts)}-{key_of(wanted)}"

    def make(writer: ArtifactWriter) -> Mapping[str, Any]:
        kept, began = cache_folder(cache), time.monotonic()
        expected_s = expected_seconds(kept, policy.label, graph.edges)
        with progress.waiting(f"partitioning {graph.edges:,} edges with {policy.label}", expected_s):
            partition = partitioned(policy, graph, hosts, seed, writer.path, start)
        remember(kept, policy.label, graph.edges, time.monotonic() - began)
        writer.array("owner", partition.owner)
        if partition.edge_part is not None:
            writer.array("edge_part", partition.edge_part)
        if partition.dropped is not None:
            writer.array("dropped/rank", partition.dropped.rank)
            writer.array("dropped/vertex", partition.dropped.vertex)

        def keep(held: RankGraph) -> None:
            for part, array in _rank_arrays(held, partition.ranks).items():
                writer.array(f"rank-{held.rank}/{part}", array)

        stats = partition_stats(graph, partition, hosts, policy.reorder, source, keep)
        described, arrays = stats_to_parts(stats)
        for part, array in arrays.items():
            writer.array(f"stats/{part}", array)
        return {
            "kind": partition.kind,
            "ranks": partition.ranks,
            "digest": stats.digest,
            "cut": partition.digest,
            "made_from": wanted,
            **_described(policy, partition),
            "stats": described,
        }

    folder, made = obtain(cache_folder(cache) / "partitions" / name, WHAT, make)
    return PartitionArtifact(folder, made, graph.facts(), graph.result_notes)


def _described(policy: Partitioner, partition: Partition) -> dict[str, Any]:
    """Return what an artefact says of dropped halo rows, of options that were filled in and of what the partitioner
    counted; nothing for most."""
    found: dict[str, Any] = {"counted": dict(partition.counted)} if partition.counted else {}
    if partition.dropped is not None:
        dropped = partition.dropped
        described = {"status": dropped.status, "renormalised": dropped.renormalised, "notes": list(dropped.notes)}
        found["dropped"] = described
    if filled := policy.filled():
        found["filled"] = filled
    return found


def key_of(wanted: Mapping[str, Any]) -> str:
    """The name of a cached artefact: 24 hex digits of the SHA-256 of its canonical JSON and the format version."""
    return json_digest({**wanted, "format": FORMAT})[:24]


def _rank_arrays(held: RankGraph, ranks: int) -> dict[str, NDArray[Any]]:
    """Convert a rank's part of the graph to named arrays; :meth:`PartitionArtifact.local` is the inverse."""
    arrays: dict[str, NDArray[Any]] = {"indptr": held.csr.indptr, "indices": held.csr.indices, "degree": held.degree}
    if held.csr.weights is not None and held.weighted_degree is not None:
        arrays |= {"weights": held.csr.weights, "weighted_degree": held.weighted_degree}
    if isinstance(held, LocalGraph):
        arrays |= {"owned": held.owned, "halo": held.halo, "receive_starts": _starts(held.receive, ranks)}
        if held.kept_degree is not None:
            arrays["kept_degree"] = held.kept_degree
        arrays["send_rows"], arrays["send_starts"] = _joined(held.send_rows, ranks)
        return arrays
    arrays["vertices"] = held.vertices
    arrays["counts"] = np.array([held.masters, held.internal], dtype=np.int64)
    arrays["mirror_starts"] = held.masters + _starts(held.mirrors, ranks)
    arrays["mirrored"], arrays["mirrored_starts"] = _joined(held.mirrored, ranks)
    for name, lists in held.levels.items():
        for way, rows in (("leaving", lists.leaving), ("arriving", lists.arriving)):
            arrays[f"{name}/{way}"], arrays[f"{name}/{way}_starts"] = _joined(rows or {}, ranks)
    return arrays


def _starts(slices: Mapping[int, slice], ranks: int) -> NDArray[np.int64]:
    """Compute running totals of the lengths of ``slices``, int64 [P + 1]; :func:`_slices` is the inverse."""
    return _totals({peer: part.stop - part.start for peer, part in slices.items()}, ranks)


def _totals(lengths: Mapping[int, int], ranks: int) -> NDArray[np.int64]:
    counts = np.zeros(ranks + 1, dtype=np.int64)
    for peer, length in lengths.items():
        counts[peer + 1] = length
    return np.cumsum(counts)


def _joined(rows: Mapping[int, NDArray[Any]], ranks: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Join the rows of all peers into one array, with the first place of each peer; :func:`_pieces` is the inverse."""
    lists = [np.empty(0, dtype=np.int32), *(rows[peer] for peer in sorted(rows))]
    return np.concatenate(lists), _totals({peer: len(found) for peer, found in rows.items()}, ranks)
