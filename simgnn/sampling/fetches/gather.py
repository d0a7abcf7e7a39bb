"""How a presampled batch's input rows come together: from the own host, from the cache of hot rows, from other hosts.

On disk one artefact for each worker and epoch: ``index`` int64 [batches * (2 + P)] (of each batch: local rows, hits,
rows pulled from each rank), and flat arrays that fall into batches by prefix sums of it. ``hot`` (ids by slot),
``hot_rows`` and ``hot_senders`` tell what fills the cache.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgnn.graph.csr import IndexArray
from simgnn.graph.thread_pool import in_order
from simgnn.partition.folder import ArtifactFolder, ArtifactWriter
from simgnn.sampling.batches.epoch_file import Part
from simgnn.sampling.fetches.remote_rows import Ranking, Sources

IntArray = NDArray[np.int64]
WHAT = "gather plan"


@dataclass(frozen=True)
class Gather:
    """Where each input row of a batch comes from. A *position* is a place among the batch's input rows; every position
    is in exactly one of the three lists. Rows are those of :func:`~simgnn.sampling.fetches.remote_rows.rows_on_hosts`.

    ``local`` int32 [n]: positions of rows in the memory of the own host, ``local_rows`` [n] which they are there.
    ``hits`` int32 [c]: positions of hot rows, ``slots`` int32 [c] their slots in the cache. ``pulls`` int32 [r]:
    positions of the others, sender after sender, positions ascending in each; ``pulled_rows`` [r] which rows they are
    on the sender's host; ``counts`` int64 [P]: how many from each rank.
    """

    local: NDArray[np.int32]
    local_rows: IndexArray
    hits: NDArray[np.int32]
    slots: NDArray[np.int32]
    pulls: NDArray[np.int32]
    pulled_rows: IndexArray
    counts: IntArray


def gather(
    vertices: NDArray[Any], sources: Sources, ranking: Ranking | None, hot_rows: int, rows: IndexArray
) -> Gather:
    """The plan for a batch's input ``vertices`` [m] with a cache of ``hot_rows`` (``ranking`` None: no cache).

    ``rows`` [V]: row of each vertex on its host.

    Source: RapidGNN (docs/systems/rapidgnn.md). Deviation: rows are in order of the rank that sends them, which is the
    owner where a host has one rank.
    """
    senders = sources.of(vertices)
    far = senders != sources.worker
    local, remote = np.flatnonzero(~far), np.flatnonzero(far)
    places = np.zeros(0, np.int64) if ranking is None else ranking.places(vertices[remote])
    hot = np.zeros(len(remote), np.bool_) if ranking is None else places < hot_rows
    pulls = remote[~hot]
    pulls = pulls[np.argsort(senders[pulls], kind="stable")]
    return Gather(
        local=local.astype(np.int32),
        local_rows=rows[vertices[local]],
        hits=remote[hot].astype(np.int32),
        slots=(places if ranking is None else places[hot]).astype(np.int32),
        pulls=pulls.astype(np.int32),
        pulled_rows=rows[vertices[pulls]],
        counts=np.bincount(senders[pulls], minlength=sources.ranks).astype(np.int64),
    )


LISTS = {
    "local": "local", "local_rows": "local", "hits": "hits", "slots": "hits", "pulls": "pulls", "pulled_rows": "pulls"
}  # fmt: skip
"""List of a plan -> the list of positions that is as long."""
OF_ROWS = ("local_rows", "pulled_rows")
"""Lists of rows in the memory of a host; the others are of places in a batch or a cache."""


def write_gathers(
    part: Part,
    sources: Sources,
    ranking: Ranking,
    hot_rows: int,
    rows: IndexArray,
    writer: ArtifactWriter,
    threads: int | None = None,
) -> Mapping[str, int]:
    """Write the plans of every batch of ``part``, whose cache holds the first ``hot_rows`` of ``ranking``; returns how
    many rows are local, hit and pulled, and filled.

    In memory are a few batches.
    """
    hot = ranking.hot(hot_rows)
    totals = {"local": 0, "hits": 0, "pulls": 0, "hot": len(hot)}
    with ExitStack() as stack:
        index = stack.enter_context(writer.stream("index", np.int64))
        streams = {
            name: stack.enter_context(writer.stream(name, rows.dtype if name in OF_ROWS else np.int32))
            for name in LISTS
        }
        for found in in_order(
            lambda number: gather(part.inputs(number), sources, ranking, hot_rows, rows), len(part), threads
        ):
            index(np.concatenate(([len(found.local), len(found.hits)], found.counts)))
            for name, append in streams.items():
                append(getattr(found, name))
            for name in ("local", "hits", "pulls"):
                totals[name] += len(getattr(found, name))
    writer.array("hot", hot)
    writer.array("hot_rows", rows[hot])
    writer.array("hot_senders", sources.of(hot).astype(np.int32))
    return totals


class GatherPart:
    """The written plans of one worker and epoch; ``open`` checks them against their digests."""

    def __init__(self, folder: ArtifactFolder) -> None:
        self.folder = folder

    @classmethod
    def open(cls, path: Path) -> "GatherPart":
        """Raises :class:`~simgnn.partition.folder.CorruptArtifactError` when it is not whole."""
        return cls(ArtifactFolder.open(path, WHAT).verify())

    def __len__(self) -> int:
        return len(self._index)

    @property
    def hot(self) -> IndexArray:
        """The vertices in the cache, by slot [n]."""
        return self.folder.array("hot")

    @property
    def hot_rows(self) -> IndexArray:
        """Their rows on the hosts that send them, by slot [n]."""
        return self.folder.array("hot_rows")

    @property
    def hot_senders(self) -> NDArray[np.int32]:
        """The ranks that send them, by slot [n]."""
        return self.folder.array("hot_senders")

    @property
    def counts(self) -> IntArray:
        """Rows that batches are sent, int64 [batches, P]."""
        return self._index[:, 2:]

    def gather(self, number: int) -> Gather:
        """The plan of batch ``number``."""
        lists = {name: array[self._span(name, number)] for name, array in self._lists.items()}
        return Gather(**lists, counts=self._index[number, 2:])

    def pulled_from(self, number: int, sender: int) -> IndexArray:
        """Rows, on its host, that ``sender`` sends for batch ``number``, in the order that the plan expects."""
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
        """First place of each batch, and the end, of the three kinds of lists."""
        lengths = {"local": self._index[:, 0], "hits": self._index[:, 1], "pulls": self._index[:, 2:].sum(axis=1)}
        return {name: np.concatenate(([0], np.cumsum(length))) for name, length in lengths.items()}

    def _span(self, name: str, number: int) -> slice:
        starts = self._starts[LISTS[name]]
        return slice(int(starts[number]), int(starts[number + 1]))
