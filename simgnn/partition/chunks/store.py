"""Keeps the chunks of a partition in the cache: sets, slots and edges of each rank, and their tables."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgnn.errors import ConfigError
from simgnn.graph.graph import Graph
from simgnn.partition.chunks.needed_rows import ChunkedGraph, Masks
from simgnn.partition.chunks.partitioner import ChunkSettings
from simgnn.partition.chunks.rank_chunks import DTYPES, WEIGHTS, RankChunks, rank_arrays, remote_rows, slots_at_owners
from simgnn.partition.chunks.reorganise import OrderCost, Reorganised, reorganise
from simgnn.partition.chunks.tables import (
    BY_BATCH,
    BY_PAIR,
    EDGES,
    EVICTED,
    HELD,
    LOADED,
    NEEDED,
    NEEDED_NEW,
    REMOTE,
    REMOTE_NEW,
    ROWS,
    TRANSITION,
    stacked_tables,
    volumes_of,
)
from simgnn.partition.chunks.volumes import Volumes
from simgnn.partition.folder import ArtifactFolder, ArtifactWriter, CorruptArtifactError, cache_folder, obtain
from simgnn.partition.store import PartitionArtifact, key_of
from simgnn.program.sizes import IntArray
from simgnn.progress import SILENT, Progress
from simgnn.seal import json_digest

WHAT = "chunks"
VERSION = 1
HELD_ARRAYS = ("held", "held_starts", "owner_starts", "slots")
"""Arrays of a rank that others need to find the slots of its rows."""


@dataclass(frozen=True)
class ChunkArtifact:
    """The chunks of a partition on disk. ``made``: whether this call made them (False: reused)."""

    folder: ArtifactFolder
    made: bool = False

    @classmethod
    def open(cls, path: Path) -> "ChunkArtifact":
        """Open the folder that ``plan/plan.json`` names. Raises :class:`ConfigError` when it is incomplete."""
        return cls(ArtifactFolder.open(path, WHAT))

    @property
    def path(self) -> Path:
        return self.folder.path

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the settings and all arrays."""
        return json_digest({"made_from": self.folder.details["made_from"], "files": dict(self.folder.files)})

    @property
    def ranks(self) -> int:
        return int(self.folder.details["ranks"])

    @property
    def chunks(self) -> int:
        """Number of chunks of each rank, C."""
        return int(self.folder.details["made_from"]["chunks"])

    @property
    def chosen(self) -> str:
        """The name of the order that was chosen."""
        return str(self.folder.details["chosen"])

    @property
    def costs(self) -> dict[str, OrderCost]:
        """What decides between the orders, by name, the initial one first."""
        return {name: OrderCost(**cost) for name, cost in self.folder.details["costs"]}

    @property
    def order(self) -> IntArray:
        """The chunk of each rank in each batch, int64 [P, C]."""
        return np.asarray(self.folder.verify("order").array("order"), dtype=np.int64)

    @cached_property
    def tables(self) -> dict[str, IntArray]:
        """Tables for statistics (:mod:`simgnn.partition.chunks.tables`)."""
        self.folder.verify("table/")
        return {name: np.array(self.folder.array(f"table/{name}")) for name in (*BY_BATCH, *BY_PAIR)}

    @cached_property
    def volumes(self) -> Volumes:
        return volumes_of(self.tables)

    def rank(self, rank: int) -> RankChunks:
        """Return the batches of ``rank``, after its files are checked: digests, names and types. Raises
        :class:`CorruptArtifactError`."""
        if not 0 <= rank < self.ranks:
            raise ConfigError(f"{self.path} was made for {self.ranks} ranks; there is no rank {rank}: partition again")
        prefix = f"rank-{rank}/"
        self.folder.verify(prefix)
        arrays = {
            name.removeprefix(prefix): self.folder.array(name) for name in self.folder.files if name.startswith(prefix)
        }
        expected = {**DTYPES, **WEIGHTS} if "weights" in arrays else DTYPES
        wrong = sorted(set(arrays) ^ set(expected)) or [
            name for name, array in arrays.items() if array.dtype.str[1:] not in expected[name]
        ]
        if wrong:
            raise CorruptArtifactError(
                f"{self.path}: rank {rank} has no array {wrong[0]}, an unknown one or one of another type, so it was "
                "not made by this version; delete it and partition again"
            )
        return RankChunks(rank, arrays)


def divided(graph: Graph, parts: PartitionArtifact, settings: ChunkSettings) -> tuple[ChunkedGraph, Reorganised]:
    """Divide each partition into chunks and choose their order; writes nothing. Raises :class:`ConfigError` for a
    vertex-cut, more chunks than a partition has vertices, and missing rates."""
    partition = parts.partition
    if partition.kind != "edge-cut" or partition.dropped is not None:
        raise ConfigError(
            "partition: chunks need an edge-cut with all in-edges of a rank's rows: choose partition.kind = "
            "'metis-chunks'"
        )
    chunked = ChunkedGraph.of(
        graph.csr, partition.owner, partition.ranks, settings.chunks, settings.vertex_weight, settings.with_self
    )
    found = reorganise(chunked, settings.candidates, settings.rates, settings.peer_rows)
    return chunked.ordered(found.order), found


def counted_tables(graph: Graph, parts: PartitionArtifact, settings: ChunkSettings) -> dict[str, IntArray]:
    """Count the tables that :func:`chunk_artifact` would keep, and keep nothing. One rank is in memory at a time."""
    chunked, found = divided(graph, parts, settings)
    return stacked_tables(_counted(rank, rank_arrays(chunked, rank, found.transition)) for rank in range(chunked.ranks))


def chunk_artifact(
    graph: Graph,
    parts: PartitionArtifact,
    settings: ChunkSettings,
    cache: Path | None = None,
    progress: Progress = SILENT,
) -> ChunkArtifact:
    """Return the chunks of ``parts``, a partition of ``graph``, from the cache or newly made. The cache's key covers
    graph, partition and ``settings``, whatever hosts the ranks are on. One rank is in memory at a time.

    Raises :class:`ConfigError` for settings that do not suit the partition, and for a folder that was made from
    others."""
    wanted = {"graph": parts.origin.graph, "cut": parts.cut_digest, **settings.as_dict(), "version": VERSION}
    name = f"{parts.ranks}x{settings.chunks}-{key_of(wanted)}"

    def make(writer: ArtifactWriter) -> Mapping[str, Any]:
        progress.stage(f"partition: {settings.chunks} chunks for each of {parts.ranks} ranks")
        chunked, found = divided(graph, parts, settings)
        write_chunks(writer, chunked, found.transition)
        costs = [[candidate, vars(cost)] for candidate, cost in found.costs.items()]
        return {"made_from": wanted, "ranks": chunked.ranks, "chosen": found.chosen, "costs": costs}

    folder, made = obtain(cache_folder(cache) / "chunks" / name, WHAT, make)
    if folder.details["made_from"] != wanted:
        raise ConfigError(f"{folder.path} holds chunks of another partition or order: delete it and partition again")
    return ChunkArtifact(folder, made)


def write_chunks(writer: ArtifactWriter, chunked: ChunkedGraph, transition: Masks) -> dict[str, IntArray]:
    """Write the arrays of each rank, one rank at a time, the tables and the order; return the tables. ``transition``:
    masks of the batches in which any rank needs each row."""
    counted = []
    for rank in range(chunked.ranks):
        arrays = rank_arrays(chunked, rank, transition)
        counted.append(_counted(rank, arrays))
        for part, array in arrays.items():
            writer.array(f"rank-{rank}/{part}", array)
    held = {
        rank: {part: writer.written(f"rank-{rank}/{part}") for part in HELD_ARRAYS} for rank in range(chunked.ranks)
    }
    for rank in held:
        writer.array(f"rank-{rank}/at_owner", slots_at_owners(held, rank))
    tables = stacked_tables(counted)
    for table, array in tables.items():
        writer.array(f"table/{table}", array)
    writer.array("order", chunked.order)
    return tables


def _counted(rank: int, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Count one rank's entries of the tables."""
    owners = arrays["owner_starts"]
    rows = arrays["rows"][:, 1] - arrays["rows"][:, 0]
    ends = np.concatenate((np.zeros(1, np.int64), np.cumsum(rows)))
    remote = np.diff(owners, axis=1)
    transition = remote[:, rank].copy()
    remote[:, rank] = 0
    return {
        ROWS: rows,
        EDGES: np.diff(arrays["indptr"][ends]),
        NEEDED: np.diff(arrays["own_needed_starts"]) + remote.sum(axis=1),
        NEEDED_NEW: arrays["needed_new"],
        TRANSITION: transition,
        LOADED: np.diff(arrays["loaded_starts"]),
        EVICTED: np.diff(arrays["evicted_starts"]),
        HELD: np.diff(arrays["held_starts"]),
        REMOTE: remote,
        REMOTE_NEW: remote_rows(rank, owners, arrays["remote_new"]),
    }
