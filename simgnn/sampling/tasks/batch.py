"""A batch that tasks draw: what each task does, what it leaves to the tasks behind it, and the batch at the end."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgnn.errors import GraphError
from simgnn.sampling.draw.pairs import NONE, branch_seeds, negatives, positives
from simgnn.sampling.draw.sampler import Batch, settle
from simgnn.sampling.tasks.claims import claim_all
from simgnn.sampling.tasks.graph import NEGATIVE, POSITIVE, SEED, Task, TaskGraph
from simgnn.sampling.tasks.merge import PiecedAssembly, ranks_among
from simgnn.sampling.tasks.places import divided
from simgnn.sampling.tasks.requests import (
    DIFFERENT,
    Reply,
    Request,
    RowRequest,
    SampleReply,
    SampleRequest,
    sample_reply_bytes,
)
from simgnn.sampling.tasks.rows import RowPiece, RowTable, gathered, scatter
from simgnn.sampling.tasks.structure import Front, Piece, Structure


@dataclass(frozen=True)
class Inputs:
    """Input rows of a batch, each fetched once. ``rows`` [u, F]; ``row_of``: by branch, the row of each vertex of its
    batch, int64 [m]. One branch alone has them in the order of its vertices."""

    rows: NDArray[Any]
    row_of: tuple[NDArray[np.int64], ...]


@dataclass(frozen=True)
class TaskBatch:
    """The batch that tasks drew. ``branches``: blocks from the seeds; in unsupervised training also those from the
    positives and from the negatives, whose seeds are their distinct vertices, ascending.

    ``positive`` int32 [b]: position of the positive of each seed among the seeds of its branch; ``negative`` int32 [b,
    n]: of its negatives, -1 where a vertex has none; both are None in supervised training. ``inputs``: None where tasks
    fetch no rows."""

    branches: tuple[Batch, ...]
    positive: NDArray[np.int32] | None
    negative: NDArray[np.int32] | None
    inputs: Inputs | None


def room_bytes(vertices: int, hops: int, branches: int) -> int:
    """Bytes of the :class:`Room` of each batch in flight: about V / 4 a hop and branch, once more a branch for its
    seeds, and once for the claims of input rows. Pieces and blocks, which grow with the batch, come on top."""
    return 16 * -(-vertices // 64) * (branches * (hops + 1) + 1)


class Room:
    """Marks and claims of one batch in the making, used again by later ones; :func:`room_bytes` says how large."""

    def __init__(self, structure: Structure, hops: int, branches: int) -> None:
        self.branches = tuple(PiecedAssembly(structure.vertices, hops, structure.ids) for _ in range(branches))
        self.fetched = np.zeros((1, -(-structure.vertices // 64), 2), np.uint64)


class BatchMaker:
    """Settings of all batches of a rank. ``fanouts`` by hop from the seeds, -1 for all; ``chunk``: vertices from which
    a chain of tasks starts; ``negatives`` of each seed (0: supervised); ``table``: input rows that tasks fetch."""

    def __init__(
        self,
        structure: Structure,
        fanouts: Sequence[int],
        chunk: int,
        negatives: int = 0,
        table: RowTable | None = None,
    ) -> None:
        self.structure, self.fanouts, self.chunk = structure, tuple(fanouts), chunk
        self.negatives, self.table = negatives, table
        self.graph = cache(self._graph)
        self._rooms: SimpleQueue[Room] = SimpleQueue()

    def begin(self, seeds: NDArray[Any], batch_seed: int) -> "BatchTasks":
        """Begin the batch of distinct ``seeds`` [n], ids of the whole graph."""
        return BatchTasks(self, self.graph(len(seeds)), np.asarray(seeds), batch_seed)

    def take_room(self) -> Room:
        """Return memory that no batch uses; new memory where there is none."""
        try:
            return self._rooms.get_nowait()
        except Empty:
            return Room(self.structure, len(self.fanouts), 3 if self.negatives else 1)

    def give_room(self, room: Room) -> None:
        """Take back the memory of a batch that has ended."""
        self._rooms.put(room)

    def _graph(self, seeds: int) -> TaskGraph:
        """Return the tasks of a batch of ``seeds`` vertices."""
        return TaskGraph.of(seeds, len(self.fanouts), self.chunk, self.negatives, self.table is not None)


class BatchTasks:
    """One batch in the making. A task whose parents have ended is :meth:`run` by any thread, while other threads run
    others. It has ended when :meth:`run` returned no requests, or :meth:`accept` returned True for one of them; one
    thread at a time calls :meth:`accept`. When the last task has ended, :attr:`made` is the batch."""

    def __init__(self, maker: BatchMaker, graph: TaskGraph, seeds: NDArray[Any], batch_seed: int) -> None:
        self.maker, self.graph, self.batch_seed = maker, graph, batch_seed
        self.made: TaskBatch | None = None
        self._given = seeds
        self._seeds = branch_seeds(batch_seed, graph.branches)
        self._room = maker.take_room()
        self._fronts: dict[tuple[int, int, int], Front] = {}
        self._pieces: list[list[list[Piece]]] = [[[] for _ in maker.fanouts] for _ in range(graph.branches)]
        self._rows: list[RowPiece] = []
        self._waits: dict[int, _Waiting] = {}
        self._pairs: list[NDArray[np.int64]] = [np.empty(0, np.int64)] * graph.branches

    def cost(self, number: int) -> float:
        """Cost of a task whose parents have ended: seeds, negatives, degrees of what it expands, or values that it
        fetches; 0 for the last task. Units differ, as in the source (ByteGNN, section 5.2)."""
        task, table = self.graph.tasks[number], self.maker.table
        if task.kind == "seeds":
            return float(len(self._given))
        if task.kind == "positives":
            return float(self.maker.structure.degrees[self._given].sum(dtype=np.int64))
        if task.kind == "negatives":
            return float(len(self._given) * self.maker.negatives)
        if task.kind == "neighbours":
            return float(self._front(task).work)
        if task.kind == "rows":
            assert table is not None
            return float(len(self._front(task).vertices) * table.held.shape[1])
        return 0.0

    def size(self, number: int) -> int:
        """Number of vertices that a task begins with: its front; seeds for others."""
        task = self.graph.tasks[number]
        return len(self._front(task).vertices) if task.kind in ("neighbours", "rows") else len(self._given)

    def run(self, number: int) -> list[Request]:
        """Do the part of a task that this host can do, and return its requests to other hosts."""
        task = self.graph.tasks[number]
        if task.kind == "neighbours":
            return self._expand(number, task)
        if task.kind == "rows":
            return self._fetch(number, task)
        if task.kind == "merge":
            self._merge()
        elif task.kind == "seeds":
            self._room.fetched[:] = 0
            self._start(SEED, self._given)
        else:
            self._draw_pairs(task)
        return []

    def accept(self, request: Request, reply: Reply) -> bool:
        """Take the reply to a request of :meth:`run`; return whether its task has ended. Raises :class:`GraphError` for
        a reply that does not fit."""
        waiting = self._waits[request.task]
        vertices = waiting.vertices[request.part]
        if isinstance(request, SampleRequest):
            assert isinstance(reply, SampleReply)
            task, structure = self.graph.tasks[request.task], self.maker.structure
            piece = Piece(vertices, *_checked(reply, len(vertices), structure))
            claims = self._claims(task)
            waiting.fronts.append(structure.reach(piece, claims, task.hop == self.graph.hops))
            self._pieces[task.branch][task.hop - 1].append(piece)
        else:
            assert isinstance(reply, np.ndarray)
            if len(reply) != len(vertices):
                raise GraphError(f"asked for {len(vertices)} input rows, got {len(reply)}: {DIFFERENT}")
            self._rows.append(RowPiece(vertices, reply))
        waiting.left -= 1
        if waiting.left:
            return False
        self._end(request.task, waiting.fronts)
        return True

    def _front(self, task: Task) -> Front:
        """What a task begins with: for rows of hop h what entered at hop h, for neighbours what entered before."""
        hop = task.hop - 1 if task.kind == "neighbours" else task.hop
        return self._fronts[task.branch, hop, task.chunk]

    def _start(self, branch: int, seeds: NDArray[Any]) -> None:
        """Begin a branch with distinct ``seeds`` [n], cut into chunks."""
        graph, structure = self.graph, self.maker.structure
        assembly = self._room.branches[branch]
        assembly.begin(seeds)
        for chunk in range(graph.chunks(branch)):
            vertices = assembly.frontier[chunk * graph.chunk : (chunk + 1) * graph.chunk]
            work = int(structure.degrees[vertices].sum(dtype=np.int64))
            self._fronts[branch, 0, chunk] = Front(vertices, work)

    def _draw_pairs(self, task: Task) -> None:
        """Draw positives or negatives of the seeds, and begin their branch."""
        structure = self.maker.structure
        typed = self._given.astype(structure.ids)
        _, _, away = divided(structure.places, typed)
        if away:
            raise GraphError(
                f"positives and negatives are drawn where their seeds lie, but {sum(len(one.lids) for one in away)} of "
                f"{len(typed)} seeds lie on other hosts: expected the training vertices of this host alone"
            )
        # a front is divided in its order, so that row k is that of seed k
        _, lids, _ = divided(structure.places, typed)
        arrays = structure.indptr, structure.indices, structure.oid, lids, self.batch_seed
        if task.kind == "positives":
            found = positives(*arrays)
        else:
            found = negatives(*arrays, self.maker.negatives, structure.vertices)
        branch = POSITIVE if task.kind == "positives" else NEGATIVE
        self._pairs[branch] = found
        self._start(branch, np.unique(found[found != NONE]))

    def _expand(self, number: int, task: Task) -> list[Request]:
        structure, front = self.maker.structure, self._front(task)
        last, fanout = task.hop == self.graph.hops, self.maker.fanouts[task.hop - 1]
        here, lids, away = divided(structure.places, front.vertices)
        seed = self._seeds[task.branch]
        piece, reached = structure.expand(here, lids, seed, task.hop, fanout, self._claims(task), last)
        self._pieces[task.branch][task.hop - 1].append(piece)
        if not away:
            self._end(number, [reached])
            return []
        self._waits[number] = _Waiting(len(away), [one.vertices for one in away], [reached])
        return [
            SampleRequest(
                one.server,
                number,
                part,
                seed,
                task.hop,
                task.branch,
                one.lids,
                sample_reply_bytes(structure.degrees[one.vertices], fanout),
            )
            for part, one in enumerate(away)
        ]

    def _claiming(self, hop: int) -> bool:
        """Whether another task begins with what tasks of a hop reach. Where none does, merging alone sorts it out,
        which is cheaper than atomic claims."""
        return self.graph.fetches or hop < self.graph.hops

    def _claims(self, task: Task) -> NDArray[np.uint64] | None:
        return self._room.branches[task.branch].claims(task.hop) if self._claiming(task.hop) else None

    def _fetch(self, number: int, task: Task) -> list[Request]:
        table, front = self.maker.table, self._front(task)
        assert table is not None
        taken = np.empty_like(front.vertices)
        wanted = taken[: claim_all(self._room.fetched.reshape(-1), 2, front.vertices, taken)]
        here, lids, away = divided(table.places, wanted)
        self._rows.append(RowPiece(here, gathered(table.held, lids)))
        if away:
            self._waits[number] = _Waiting(len(away), [one.vertices for one in away], [])
        return [
            RowRequest(one.server, number, part, one.lids, table.row_bytes * len(one.lids))
            for part, one in enumerate(away)
        ]

    def _end(self, number: int, fronts: list[Front]) -> None:
        task = self.graph.tasks[number]
        if task.kind == "neighbours":
            self._fronts[task.branch, task.hop, task.chunk] = Front.joined(fronts)

    def _merge(self) -> None:
        assemblies = self._room.branches
        for assembly, hops in zip(assemblies, self._pieces, strict=True):
            for hop, pieces in enumerate(hops, start=1):
                assembly.merge(pieces, self._claiming(hop))
        inputs = self._inputs() if self.graph.fetches else None
        batches = tuple(assembly.batch() for assembly in assemblies)
        positive, negative = (
            None if self.graph.branches == 1 else _positions(self._pairs[branch], batches[branch].seeds)
            for branch in (POSITIVE, NEGATIVE)
        )
        self.made = TaskBatch(batches, positive, negative, inputs)
        self.maker.give_room(self._room)
        self._fronts, self._pieces, self._rows, self._waits, self._pairs = {}, [], [], {}, []

    def _inputs(self) -> Inputs:
        """Put the fetched rows in order: that of the only branch, or ascending by vertex."""
        table, assemblies, fetched = self.maker.table, self._room.branches, self._room.fetched
        assert table is not None
        count = int(settle(fetched, 0, 0))
        rows = np.empty((count, table.held.shape[1]), table.held.dtype)
        for piece in self._rows:
            if len(assemblies) == 1:
                places: Any = assemblies[0].positions(piece.vertices)
            else:
                places = np.empty(len(piece.vertices), np.int64)
                ranks_among(fetched[0], piece.vertices, places)
            scatter(piece.rows, places, rows)
        if len(assemblies) == 1:
            return Inputs(rows, (np.arange(count),))
        row_of = []
        for assembly in assemblies:
            found = np.empty(len(assembly.frontier), np.int64)
            ranks_among(fetched[0], assembly.frontier, found)
            row_of.append(found)
        return Inputs(rows, tuple(row_of))


@dataclass
class _Waiting:
    """A task that waits for ``left`` replies. ``vertices``: by request; ``fronts``: what its parts reached so far."""

    left: int
    vertices: list[Any]
    fronts: list[Front]


def _positions(found: NDArray[np.int64], starts: Any) -> NDArray[np.int32]:
    """Positions of drawn vertices among the distinct ones, ascending; -1 for :data:`NONE`."""
    return np.where(found == NONE, -1, np.searchsorted(starts, found)).astype(np.int32)


def _checked(reply: SampleReply, asked: int, structure: Structure) -> tuple[NDArray[np.int64], Any]:
    """Return bounds and vertices of a reply. Raises :class:`GraphError` where they do not fit: kernels do not check."""
    bounds = np.concatenate(([0], np.cumsum(reply.degrees, dtype=np.int64)))
    gids = reply.neighbours
    inside = not len(gids) or 0 <= int(gids.min()) <= int(gids.max()) < structure.vertices
    if (len(reply.degrees), int(bounds[-1])) != (asked, len(gids)) or not inside:
        raise GraphError(
            f"asked for neighbours of {asked} vertices, got {len(reply.degrees)} degrees (sum {bounds[-1]}) and "
            f"{len(gids)} neighbours; expected ids 0..{structure.vertices - 1}: {DIFFERENT}"
        )
    return bounds, structure.of_gids(gids)
