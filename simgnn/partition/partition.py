"""Partition: which rank owns each vertex (edge-cut) or each edge (vertex-cut)."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from simgnn.errors import ConfigError
from simgnn.graph.graph import Graph
from simgnn.partition.device_fit import FittedPartitioner
from simgnn.policy import Assignment, Cut, DroppedHalo, Partitioner, wrong
from simgnn.program.sizes import IntArray
from simgnn.registry import file_of, reported


@dataclass(frozen=True)
class Partition:
    """A graph divided into P parts; part p belongs to rank p. ``owner`` int32 [V]: the rank that owns each vertex; in a
    vertex-cut, the rank that holds the master copy. ``edge_part`` uint8 or uint16 [E_u], vertex-cut only: the rank of
    each edge of :func:`simgnn.partition.edges.undirected_edges`, in both directions. ``dropped``, edge-cut only: halo
    rows that ranks do without (None: the partitioner drops none). ``counted``, ``notes``: see
    :class:`simgnn.policy.Assignment`."""

    kind: Cut
    ranks: int
    owner: NDArray[np.int32]
    edge_part: NDArray[np.unsignedinteger[Any]] | None = None
    dropped: DroppedHalo | None = None
    counted: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the partition: its kind, number of ranks and arrays. A partitioner that happens to drop nothing
        makes the same partition as one that never does."""
        arrays: list[NDArray[Any]] = [self.owner] if self.edge_part is None else [self.owner, self.edge_part]
        words = [self.kind, str(self.ranks)]
        if self.dropped is not None and len(self.dropped.rank):
            arrays += [self.dropped.rank, self.dropped.vertex]
            words += ["renormalised"] * self.dropped.renormalised
        return digest_of(words, arrays)

    def rows(self) -> NDArray[np.int64]:
        """Count the vertices that each rank owns, int64 [P]."""
        return np.bincount(self.owner, minlength=self.ranks).astype(np.int64)


def check_ranks(ranks: int, graph: Graph) -> None:
    """Raise :class:`ConfigError` when there are more ranks than vertices."""
    if not 1 <= ranks <= graph.vertices:
        raise ConfigError(
            f"cluster.ranks_per_host: got {ranks} ranks in all, expected at most {graph.vertices}, the vertices of "
            f"'{graph.name}', and at least 1: use fewer ranks (--ranks) or a larger graph"
        )


def partitioned(
    policy: Partitioner,
    graph: Graph,
    hosts: IntArray,
    seed: int,
    spill: Path | None = None,
    start: NDArray[np.int32] | None = None,
) -> Partition:
    """Divide ``graph`` with ``policy`` into P = len(hosts) parts; the arguments are those of
    :meth:`Partitioner.divide`. ``start`` int32 [V]: the parts that a :class:`FittedPartitioner` starts from, if they
    are known. Raises :class:`ConfigError` when there are more ranks than vertices, or when the policy does not return
    one rank for each vertex (and, in a vertex-cut, for each edge)."""
    ranks, where = len(hosts), f"partition.kind = '{policy.label}'"
    check_ranks(ranks, graph)
    with reported([policy]):
        if start is None:
            found = policy.divide(graph, hosts, seed, spill)
        else:
            found = cast(FittedPartitioner, policy).refined(graph, start, hosts, seed)
        if not isinstance(found, Assignment):
            raise wrong(policy, "divide", found, "an Assignment")
        owner, edge_part = np.asarray(found.owner), found.edge_part
    problems = []
    if owner.shape != (graph.vertices,) or not np.issubdtype(owner.dtype, np.integer):
        problems.append(f"owner: got {_described(owner)}, expected {graph.vertices} integers, one rank per vertex")
    if (edge_part is None) != (policy.cut == "edge-cut"):
        expected = "the rank of each edge" if edge_part is None else "none"
        problems.append(f"edge_part: got {_described(edge_part)}, expected {expected}: cut is '{policy.cut}'")
    elif edge_part is not None and (np.ndim(edge_part) != 1 or not np.issubdtype(edge_part.dtype, np.integer)):
        problems.append(f"edge_part: got {_described(edge_part)}, expected a list of integers, one rank per edge")
    if not problems:
        for name, array in (("owner", owner), ("edge_part", edge_part)):
            if array is not None and len(array) and not 0 <= int(array.min()) <= int(array.max()) < ranks:
                problems.append(f"{name}: got {array.min()}..{array.max()}, expected ranks 0..{ranks - 1}")
    problems += _told_faults(found)
    if not problems and found.dropped is not None:
        problems += _dropped_faults(policy, found.dropped, owner, ranks)
    if problems:
        call, file = f"{type(policy).__name__}.divide", file_of(type(policy))
        raise ConfigError([f"{where}: {call} returned {problem} ({file})" for problem in problems])
    narrow = np.dtype("u1" if ranks <= 256 else "u2")
    parts: Any = edge_part if edge_part is None or edge_part.dtype == narrow else edge_part.astype(narrow)
    owner, dropped = owner.astype(np.int32, copy=False), _as_stored(found.dropped)
    counted = {name: int(value) for name, value in found.counted.items()}
    return Partition(policy.cut, ranks, owner, parts, dropped, counted, tuple(found.notes))


def _told_faults(found: Assignment) -> Iterator[str]:
    """Yield what is wrong with the numbers and notes that a policy returns beside its parts."""
    counted: Any = found.counted
    whole = isinstance(counted, Mapping) and all(
        isinstance(name, str) and isinstance(value, Integral) for name, value in counted.items()
    )
    if not whole:
        yield f"counted: got {counted!r:.80}, expected whole numbers by name"
    if not isinstance(found.notes, tuple | list) or not all(isinstance(note, str) for note in found.notes):
        yield f"notes: got {found.notes!r:.80}, expected a tuple of texts"


def _dropped_faults(policy: Partitioner, dropped: DroppedHalo, owner: NDArray[Any], ranks: int) -> Iterator[str]:
    """Yield what is wrong with the halo rows that a policy drops."""
    rank, vertex = np.asarray(dropped.rank), np.asarray(dropped.vertex)
    if policy.cut != "edge-cut":
        yield "dropped: got halo rows, expected none: only the ranks of an edge-cut have them"
    elif rank.ndim != 1 or rank.shape != vertex.shape or not {rank.dtype.kind, vertex.dtype.kind} <= {"i", "u"}:
        yield f"dropped: got {_described(rank)} and {_described(vertex)}, expected lists of integers, equally long"
    elif len(rank) and not (0 <= rank.min() <= rank.max() < ranks and 0 <= vertex.min() <= vertex.max() < len(owner)):
        yield f"dropped: expected ranks 0..{ranks - 1} and vertices 0..{len(owner) - 1}"
    elif np.any(owner[vertex] == rank):
        yield "dropped: got a vertex that the rank owns, expected halo rows, which others own"
    elif np.any(np.diff(rank.astype(np.int64) * len(owner) + vertex) <= 0):
        yield "dropped: expected rows sorted by rank and vertex, none twice"


def _as_stored(dropped: DroppedHalo | None) -> DroppedHalo | None:
    if dropped is None:
        return None
    rank, vertex = dropped.rank.astype(np.int32, copy=False), dropped.vertex.astype(np.int64, copy=False)
    return replace(dropped, rank=rank, vertex=vertex)


def _described(array: Any) -> str:
    return "none" if array is None else f"{getattr(array, 'dtype', type(array).__name__)} {list(np.shape(array))}"


def digest_of(words: Iterable[str], arrays: Iterable[NDArray[Any]]) -> str:
    """Compute the SHA-256, in hex, of words and arrays (type, shape and bytes of each array)."""
    total = hashlib.sha256()
    for word in words:
        total.update(word.encode() + b"\0")
    for array in arrays:
        total.update(f"{array.dtype.str}{array.shape}\0".encode())
        total.update(np.ascontiguousarray(array).data)
    return total.hexdigest()
