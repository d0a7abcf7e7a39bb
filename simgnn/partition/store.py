"""Partitions as content-addressed artefacts: made once by one process, memory-mapped, reused by every command."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgnn.errors import ConfigError
from simgnn.graph.csr import CSR
from simgnn.graph.graph import Graph, GraphFacts
from simgnn.graph.store import graph_digest
from simgnn.partition.folder import FORMAT, ArtifactFolder, ArtifactWriter, cache_folder, obtain
from simgnn.partition.local.edge_cut import LocalGraph, RowLists, build_local_graphs
from simgnn.partition.local.vertex_cut import LEVELS, RankGraph, ReplicaGraph, build_replica_graphs
from simgnn.partition.partition import Partition, digest_of, partitioned
from simgnn.partition.statistics.edge_cut import edge_cut_stats, locality_profiles, rank_numbers, stats_digest
from simgnn.partition.statistics.partition_stats import Origin, PartitionStats, stats_from_parts, stats_to_parts
from simgnn.partition.statistics.quality import Quality, measure
from simgnn.partition.statistics.vertex_cut import LevelRows, vertex_cut_stats
from simgnn.policy import Partitioner
from simgnn.program.sizes import IntArray
from simgnn.registry import source_digest
from simgnn.seal import json_digest

WHAT = "partition"


@dataclass(frozen=True)
class PartitionArtifact:
    """A partition on disk. ``made`` tells whether this call made it (False: it was reused); ``facts``, where given, are
    those of the graph at hand, whose name may differ from the one that the partition was made for."""

    folder: ArtifactFolder
    made: bool = False
    facts: GraphFacts | None = None

    @classmethod
    def open(cls, path: str | Path) -> "PartitionArtifact":
        """Open by path, as ``plan/plan.json`` names it. Raises :class:`ConfigError` when it is not whole."""
        return cls(ArtifactFolder.open(Path(path), WHAT))

    @property
    def path(self) -> Path:
        """Where it lies."""
        return self.folder.path

    @property
    def digest(self) -> str:
        """SHA-256 over graph, partition, hosts and order of rows."""
        return str(self.folder.details["digest"])

    @cached_property
    def cut_digest(self) -> str:
        """SHA-256 over graph and partition alone: which rank has what, wherever it runs and in whatever order."""
        details = self.folder.details
        cut = details.get("cut") or self.partition.digest  # artefacts of earlier versions do not tell it
        return digest_of([str(details["made_from"]["graph"]), str(cut)], [])

    @cached_property
    def origin(self) -> Origin:
        """What its statistics are counted from."""
        return Origin(str(self.folder.details["made_from"]["graph"]), self.cut_digest, self.digest)

    @property
    def ranks(self) -> int:
        """P."""
        return int(self.folder.details["ranks"])

    @property
    def kind(self) -> str:
        """ "edge-cut" or "vertex-cut"."""
        return str(self.folder.details["kind"])

    @cached_property
    def partition(self) -> Partition:
        """Owners, and ranks of edges, of the whole graph."""
        self.folder.verify("owner").verify("edge_part")
        edges = self.folder.array("edge_part") if "edge_part" in self.folder.files else None
        return Partition(self.folder.details["kind"], self.ranks, self.folder.array("owner"), edges)

    @cached_property
    def stats(self) -> PartitionStats:
        """What planning needs."""
        self.folder.verify("stats/")
        names = [name.removeprefix("stats/") for name in self.folder.files if name.startswith("stats/")]
        arrays = {name: np.array(self.folder.array(f"stats/{name}")) for name in names}
        stats = replace(stats_from_parts(self.folder.details["stats"], arrays), origin=self.origin)
        return stats if self.facts is None else replace(stats, facts=self.facts)

    @cached_property
    def quality(self) -> Quality:
        """Edge cut, replication, balance, connections."""
        return measure(self.stats)

    def owned(self, rank: int) -> NDArray[np.int64]:
        """The vertices that a rank of an edge-cut owns, in the order of its rows; nothing else of it is read."""
        name = f"rank-{rank}/owned"
        return self.folder.verify(name).array(name)

    def local(self, rank: int) -> RankGraph:
        """What ``rank`` holds, checked against its digests."""
        if not 0 <= rank < self.ranks:
            raise ConfigError(f"{self.path} was made for {self.ranks} ranks; there is no rank {rank}: partition again")
        prefix = f"rank-{rank}/"
        self.folder.verify(prefix)
        names = [name.removeprefix(prefix) for name in self.folder.files if name.startswith(prefix)]
        part = {name: self.folder.array(prefix + name) for name in names}
        if self.kind == "vertex-cut":
            return _replica_graph(rank, part)
        rows, sent, received = part["send_rows"], part["send_starts"], part["receive_starts"]
        return LocalGraph(
            rank=rank,
            owned=part["owned"],
            halo=part["halo"],
            csr=CSR(part["indptr"], part["indices"], len(part["owned"]) + len(part["halo"])),
            degree=part["degree"],
            send_rows=_pieces(rows, sent),
            receive=_slices(received),
        )


LOCAL_ARRAYS = ("owned", "halo", "indptr", "indices", "degree", "send_rows", "send_starts", "receive_starts")


def _replica_graph(rank: int, part: Mapping[str, NDArray[Any]]) -> ReplicaGraph:
    vertices = part["vertices"]
    return ReplicaGraph(
        rank=rank,
        vertices=vertices,
        masters=int(part["counts"][0]),
        internal=int(part["counts"][1]),
        csr=CSR(part["indptr"], part["indices"], len(vertices)),
        degree=part["degree"],
        mirrored=_pieces(part["mirrored"], part["mirrored_starts"]),
        mirrors=_slices(part["mirror_starts"]),
        levels={name: _level(part, name) for name in LEVELS if f"{name}/leaving" in part},
    )


def _level(part: Mapping[str, NDArray[Any]], name: str) -> RowLists:
    leaving, arriving = (
        _pieces(part[f"{name}/{way}"], part[f"{name}/{way}_starts"]) for way in ("leaving", "arriving")
    )
    return RowLists(leaving, {peer: len(rows) for peer, rows in arriving.items()}, arriving)


def _pieces(rows: NDArray[Any], starts: NDArray[Any]) -> dict[int, NDArray[Any]]:
    """Rows by peer, of the peers that have any; ``starts`` [P + 1]."""
    return {p: rows[starts[p] : starts[p + 1]] for p in np.flatnonzero(np.diff(starts)).tolist()}


def _slices(starts: NDArray[Any]) -> dict[int, slice]:
    """The same as slices."""
    return {p: slice(int(starts[p]), int(starts[p + 1])) for p in np.flatnonzero(np.diff(starts)).tolist()}


def partition_artifact(
    graph: Graph, policy: Partitioner, hosts: IntArray, seed: int, cache: Path | None = None
) -> PartitionArtifact:
    """The partition of ``graph`` by ``policy`` over P = len(hosts) ranks; made when it is not in the cache.

    ``hosts`` int64 [P]: host of each rank. Its key is made of the graph's digest, the policy's fields, hosts and seed,
    so METIS, which may answer differently when asked again, is asked once.
    """
    hosts = np.asarray(hosts, dtype=np.int64)
    source = graph_digest(graph)
    wanted = {"graph": source, "policy": policy.model_dump(mode="json"), "hosts": hosts.tolist(), "seed": seed}
    if policy.cut == "vertex-cut":
        # vertex-cuts made by earlier versions do not
        counted = ", rows by hosts" if len(np.unique(hosts)) > 1 else ""
        wanted["holds"] = f"replica graphs, levels{counted}"
    code = source_digest(policy)
    if code:
        wanted["code"] = code  # who changes a partitioner of their own does not get what it made before
    name = f"{policy.label.replace(':', '.')}-{len(hosts)}-{key_of(wanted)}"

    def make(writer: ArtifactWriter) -> Mapping[str, Any]:
        partition = partitioned(policy, graph, hosts, seed, writer.path).check()
        digest = stats_digest(source, partition, hosts, policy.reorder)
        writer.array("owner", partition.owner)
        if partition.kind == "edge-cut":
            numbers = []
            for local in build_local_graphs(graph.csr, partition, policy.reorder):
                numbers.append(rank_numbers(graph, local, partition.ranks))
                _write_local(writer, local, partition.ranks)
            stats = edge_cut_stats(graph, hosts, numbers, digest)
        else:
            assert partition.edge_part is not None
            writer.array("edge_part", partition.edge_part)
            profiles, levels = [], []
            for replica in build_replica_graphs(graph, partition, policy.reorder, hosts):
                profiles.append(locality_profiles(graph, replica.csr, replica.vertices))
                _write_replicas(writer, replica, partition.ranks)
                levels.append(LevelRows.of(replica))
            stats = vertex_cut_stats(graph, partition, hosts, digest, profiles, levels)
        described, arrays = stats_to_parts(stats)
        for part, array in arrays.items():
            writer.array(f"stats/{part}", array)
        return {
            "kind": partition.kind,
            "ranks": partition.ranks,
            "digest": digest,
            "cut": partition.digest,
            "made_from": wanted,
            "stats": described,
        }

    folder, made = obtain(cache_folder(cache) / "partitions" / name, WHAT, make)
    return PartitionArtifact(folder, made, graph.facts())


def key_of(wanted: Mapping[str, Any]) -> str:
    """Short content address: the first 24 hex digits of SHA-256 over the canonical JSON and the format's version."""
    return json_digest({**wanted, "format": FORMAT})[:24]


def _write_local(writer: ArtifactWriter, local: LocalGraph, ranks: int) -> None:
    sent = np.zeros(ranks + 1, dtype=np.int64)
    received = np.zeros(ranks + 1, dtype=np.int64)
    for peer, rows in local.send_rows.items():
        sent[peer + 1] = len(rows)
    for peer, part in local.receive.items():
        received[peer + 1] = part.stop - part.start
    lists = [np.empty(0, dtype=np.int32), *(local.send_rows[peer] for peer in sorted(local.send_rows))]
    arrays = {
        "owned": local.owned,
        "halo": local.halo,
        "indptr": local.csr.indptr,
        "indices": local.csr.indices,
        "degree": local.degree,
        "send_rows": np.concatenate(lists),
        "send_starts": np.cumsum(sent),
        "receive_starts": np.cumsum(received),
    }
    for name in LOCAL_ARRAYS:
        writer.array(f"rank-{local.rank}/{name}", arrays[name])


def _write_replicas(writer: ArtifactWriter, replica: ReplicaGraph, ranks: int) -> None:
    mirrors = np.zeros(ranks + 1, dtype=np.int64)
    for peer, part in replica.mirrors.items():
        mirrors[peer + 1] = part.stop - part.start
    arrays = {
        "vertices": replica.vertices,
        "counts": np.array([replica.masters, replica.internal], dtype=np.int64),
        "indptr": replica.csr.indptr,
        "indices": replica.csr.indices,
        "degree": replica.degree,
        **_joined("mirrored", replica.mirrored, ranks),
        "mirror_starts": replica.masters + np.cumsum(mirrors),
    }
    for name, lists in replica.levels.items():
        arrays |= _joined(f"{name}/leaving", lists.leaving, ranks) | _joined(f"{name}/arriving", lists.arriving, ranks)
    for name, array in arrays.items():
        writer.array(f"rank-{replica.rank}/{name}", array)


def _joined(name: str, rows: Mapping[int, NDArray[Any]] | None, ranks: int) -> dict[str, NDArray[Any]]:
    """Rows by peer as one array, and the first place of each peer; :func:`_pieces` takes them apart."""
    rows = rows or {}
    counts = np.zeros(ranks + 1, dtype=np.int64)
    for peer, found in rows.items():
        counts[peer + 1] = len(found)
    lists = [np.empty(0, dtype=np.int32), *(rows[peer] for peer in sorted(rows))]
    return {name: np.concatenate(lists), f"{name}_starts": np.cumsum(counts)}
