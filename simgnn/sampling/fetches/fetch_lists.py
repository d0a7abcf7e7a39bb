"""Lists of the rows that are fetched in an epoch: where each batch gets its input rows, and what each rank sends.

A *gather plan* on disk is one artefact for each worker and epoch: ``index`` int64 [batches * (2 + P)] (for each batch:
numbers of local rows, of cache hits, and of rows pulled from each rank), and flat arrays in which prefix sums of these
numbers are the offsets of batches. ``hot`` (ids by slot), ``hot_rows`` and ``hot_senders`` say what fills the cache.

*Serve lists* are one artefact for each sending rank and epoch, so that no requests travel while training runs.
``index`` int64 [steps * P]: number of rows for each requester at each step; ``rows``: their row numbers on the sender's
host, step after step, requester after requester, each in the order that its gather plan expects. ``exchanged`` uint8
[steps]: whether any rank sends a row; it is the same for all ranks, so that all skip an empty exchange together.
``cache_index`` int64 [P], ``cache_rows``, ``cache_slots``: what fills the requesters' caches, requester after
requester, slots ascending.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgnn.graph.csr import IndexArray
from simgnn.graph.thread_pool import in_order
from simgnn.partition.folder import ArtifactWriter, OpenedArtifact
from simgnn.program.sizes import IntArray
from simgnn.sampling.batches.epoch_file import Part
from simgnn.sampling.fetches.remote_rows import Ranking, Sources

GATHERED = "gather plan"


@dataclass(frozen=True)
class Gather:
    """Where each input row of a batch comes from. A *position* is a place among the batch's input rows; every position
    is in exactly one of the lists ``local``, ``hits`` and ``pulls``. Rows are those of :func:`rows_on_hosts`.

    ``local`` int32 [n]: positions of rows in the memory of the own host, ``local_rows`` [n] their rows there. ``hits``
    int32 [c]: positions of hot rows, ``slots`` int32 [c] their slots in the cache. ``pulls`` int32 [r]: positions of
    the others, sender after sender, positions ascending in each; ``pulled_rows`` [r] their rows on the sender's host;
    ``counts`` int64 [P]: how many from each rank. A vertex that is several rows of a batch is pulled once: ``repeats``
    int32 [q]: the other positions, and ``repeated`` int32 [q]: which of the r pulled rows each of them is.
    """

    local: NDArray[np.int32]
    local_rows: IndexArray
    hits: NDArray[np.int32]
    slots: NDArray[np.int32]
    pulls: NDArray[np.int32]
    pulled_rows: IndexArray
    counts: IntArray
    repeats: NDArray[np.int32] | None = None
    repeated: NDArray[np.int32] | None = None


def gather(
    vertices: NDArray[Any],
    sources: Sources,
    ranking: Ranking | None,
    hot_rows: int,
    rows: IndexArray,
    distinct: bool = True,
) -> Gather:
    """Plan where a batch gets its input ``vertices`` [m], with a cache of ``hot_rows`` (``ranking`` None: no cache);
    ``rows`` [V]: row of each vertex on its host. Source: RapidGNN (docs/systems/rapidgnn.md). Deviation: rows are in
    order of the rank that sends them, which is the owner where a host has one rank. ``distinct``: no vertex is several
    of the rows."""
    senders = sources.of(vertices)
    far = senders != sources.worker
    local, remote = np.flatnonzero(~far), np.flatnonzero(far)
    places = np.zeros(0, np.int64) if ranking is None else ranking.places(vertices[remote])
    hot = np.zeros(len(remote), np.bool_) if ranking is None else places < hot_rows
    pulls = remote[~hot]
    pulls = pulls[np.argsort(senders[pulls], kind="stable")]
    repeats = repeated = None
    if not distinct:
        _, first, which = np.unique(vertices[pulls], return_index=True, return_inverse=True)
        once = np.zeros(len(pulls), np.bool_)
        once[first] = True
        place = np.cumsum(once) - 1
        repeats, repeated = pulls[~once].astype(np.int32), place[first[which[~once]]].astype(np.int32)
        pulls = pulls[once]
    return Gather(
        local=local.astype(np.int32),
        local_rows=rows[vertices[local]],
        hits=remote[hot].astype(np.int32),
        slots=(places if ranking is None else places[hot]).astype(np.int32),
        pulls=pulls.astype(np.int32),
        pulled_rows=rows[vertices[pulls]],
        counts=np.bincount(senders[pulls], minlength=sources.ranks).astype(np.int64),
        repeats=repeats,
        repeated=repeated,
    )


LISTS = {
    "local": "local", "local_rows": "local", "hits": "hits", "slots": "hits", "pulls": "pulls", "pulled_rows": "pulls"
}  # fmt: skip
"""List of a plan -> the list of positions that is as long."""
OF_ROWS = ("local_rows", "pulled_rows")
"""Names of the lists of rows in the memory of a host; other lists hold positions in a batch or a cache."""


def write_gathers(
    part_of: Callable[[], Part],
    sources: Sources,
    ranking_of: Callable[[Part], Ranking],
    hot_rows: int,
    rows: IndexArray,
    threads: int | None,
    writer: ArtifactWriter,
) -> Mapping[str, int]:
    """Write the plans of every batch of an epoch, whose cache holds the first ``hot_rows`` of its ranking. Returns the
    numbers of local, hit, pulled and cached rows. A few batches are in memory."""
    part = part_of()
    ranking = ranking_of(part)
    hot = ranking.hot(hot_rows)
    totals = {"local": 0, "hits": 0, "pulls": 0, "hot": len(hot)}
    with ExitStack() as stack:
        index = stack.enter_context(writer.stream("index", np.int64))
        streams = {
            name: stack.enter_context(writer.stream(name, rows.dtype if name in OF_ROWS else np.int32))
            for name in LISTS
        }
        plans = in_order(lambda n: gather(part.inputs(n), sources, ranking, hot_rows, rows), len(part), threads)
        for found in plans:
            index(np.concatenate(([len(found.local), len(found.hits)], found.counts)))
            for name, append in streams.items():
                append(getattr(found, name))
            for name in ("local", "hits", "pulls"):
                totals[name] += len(getattr(found, name))
    writer.array("hot", hot)
    writer.array("hot_rows", rows[hot])
    writer.array("hot_senders", sources.of(hot).astype(np.int32))
    return totals


class GatherPart(OpenedArtifact):
    """The written gather plans of one worker and epoch."""

    what = GATHERED

    def __len__(self) -> int:
        return len(self._index)

    @property
    def hot(self) -> IndexArray:
        """The vertices in the cache, by slot [n]."""
        return self.folder.array("hot")

    @property
    def hot_rows(self) -> IndexArray:
        """Rows, on the sending hosts, of the cached vertices, by slot [n]."""
        return self.folder.array("hot_rows")

    @property
    def hot_senders(self) -> NDArray[np.int32]:
        """Ranks that send the cached vertices, by slot [n]."""
        return self.folder.array("hot_senders")

    @property
    def counts(self) -> IntArray:
        """Rows that each rank sends for each batch, int64 [batches, P]."""
        return self._index[:, 2:]

    def gather(self, number: int) -> Gather:
        lists = {}
        for name, array in self._lists.items():
            starts = self._starts[LISTS[name]]
            lists[name] = array[int(starts[number]) : int(starts[number + 1])]
        return Gather(**lists, counts=self._index[number, 2:])

    def pulled_from(self, number: int, sender: int) -> IndexArray:
        """Row numbers, on its host, of what ``sender`` sends for batch ``number``, in the order of the plan."""
        first = int(self._starts["pulls"][number]) + int(self._index[number, 2 : 2 + sender].sum())
        return self._lists["pulled_rows"][first : first + int(self._index[number, 2 + sender])]

    @cached_property
    def _index(self) -> IntArray:
        ranks = int(self.folder.details["made_from"]["ranks"])
        return self.folder.array("index").reshape(-1, 2 + ranks)

    @cached_property
    def _lists(self) -> dict[str, NDArray[Any]]:
        return {name: self.folder.array(name) for name in LISTS}

    @cached_property
    def _starts(self) -> dict[str, IntArray]:
        """First place of each batch, and the end, in the lists of each kind."""
        lengths = {"local": self._index[:, 0], "hits": self._index[:, 1], "pulls": self._index[:, 2:].sum(axis=1)}
        return {name: np.concatenate(([0], np.cumsum(length))) for name, length in lengths.items()}


SERVED = "serve lists"


def write_served(gathers: Sequence[GatherPart], sender: int, steps: int, writer: ArtifactWriter) -> Mapping[str, int]:
    """Write the serve lists of ``sender`` for an epoch, from the gather plans of all ranks, in rank order; returns row
    counts. Source: RapidGNN (docs/systems/rapidgnn.md): all serve lists together have the rows that all plans pull."""
    index = np.zeros((steps, len(gathers)), np.int64)
    exchanged = np.zeros(steps, np.bool_)
    for requester, plan in enumerate(gathers):
        index[: len(plan), requester] = plan.counts[:, sender]
        exchanged[: len(plan)] |= plan.counts.any(axis=1)
    with writer.stream("rows", gathers[0].hot_rows.dtype) as append:
        for step, requester in np.argwhere(index).tolist():
            append(gathers[requester].pulled_from(step, sender))
    writer.array("index", index.reshape(-1))
    writer.array("exchanged", exchanged.astype(np.uint8))
    slots = [np.flatnonzero(plan.hot_senders == sender) for plan in gathers]
    writer.array("cache_index", np.array([len(mine) for mine in slots], np.int64))
    writer.array("cache_slots", np.concatenate(slots).astype(np.int32))
    writer.array("cache_rows", np.concatenate([plan.hot_rows[at] for plan, at in zip(gathers, slots, strict=True)]))
    return {"rows": int(index.sum()), "cache_rows": sum(map(len, slots))}


class ServePart(OpenedArtifact):
    """The written serve lists of one sender and epoch."""

    what = SERVED

    @cached_property
    def index(self) -> IntArray:
        """Rows for each requester at each step, int64 [steps, P]."""
        return self.folder.array("index").reshape(-1, int(self.folder.details["made_from"]["ranks"]))

    @cached_property
    def exchanged(self) -> NDArray[np.bool_]:
        """Whether any rank sends a row at each step, bool [steps]."""
        return self.folder.array("exchanged").astype(np.bool_)

    def rows(self, step: int) -> IndexArray:
        """Rows to send at ``step``, by requester; ``index[step]`` has the number for each."""
        return self._rows[self._starts[step] : self._starts[step + 1]]

    def cache(self, requester: int) -> tuple[IndexArray, NDArray[np.int32]]:
        """Rows that fill the cache of ``requester``, and the slots that they go to, ascending."""
        bounds = np.concatenate(([0], np.cumsum(self.folder.array("cache_index"))))
        span = slice(int(bounds[requester]), int(bounds[requester + 1]))
        return self.folder.array("cache_rows")[span], self.folder.array("cache_slots")[span]

    @cached_property
    def _rows(self) -> IndexArray:
        return self.folder.array("rows")

    @cached_property
    def _starts(self) -> IntArray:
        return np.concatenate(([0], np.cumsum(self.index.sum(axis=1))))
