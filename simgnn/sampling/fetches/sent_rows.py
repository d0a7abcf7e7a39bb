"""What a rank sends to others in an epoch, known before it begins: no requests travel while training runs.

On disk one artefact for each sending rank and epoch. ``index`` int64 [steps * P]: rows for each requester at each step;
``rows``: which they are in the memory of the sender's host, step after step, requester after requester, each in the
order that its gather plan expects. ``exchanged`` uint8 [steps]: whether anybody sends anybody a row; it is the same for
all ranks, so that all skip an empty exchange together. ``cache_index`` int64 [P], ``cache_rows``, ``cache_slots``:
what fills the requesters' caches, requester after requester, slots ascending.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simgnn.graph.csr import IndexArray
from simgnn.partition.folder import ArtifactFolder, ArtifactWriter
from simgnn.sampling.fetches.gather import GatherPart

IntArray = NDArray[np.int64]
WHAT = "serve lists"


def write_served(gathers: Sequence[GatherPart], sender: int, steps: int, writer: ArtifactWriter) -> Mapping[str, int]:
    """Write what ``sender`` sends, from the plans of every rank of the epoch, in rank order; returns sums of rows.

    Source: RapidGNN (docs/systems/rapidgnn.md): the union of all serve lists is the union of what plans pull.
    """
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


class ServePart:
    """The written lists of one sender and epoch; ``open`` checks them against their digests."""

    def __init__(self, folder: ArtifactFolder) -> None:
        self.folder = folder

    @classmethod
    def open(cls, path: Path) -> "ServePart":
        """Raises :class:`~simgnn.partition.folder.CorruptArtifactError` when it is not whole."""
        return cls(ArtifactFolder.open(path, WHAT).verify())

    def __len__(self) -> int:
        return len(self.index)

    @cached_property
    def index(self) -> IntArray:
        """Rows for each requester at each step, int64 [steps, P]."""
        return self.folder.array("index").reshape(-1, int(self.folder.details["made_from"]["ranks"]))

    @cached_property
    def exchanged(self) -> NDArray[np.bool_]:
        """Whether anybody sends anybody a row, bool [steps]."""
        return self.folder.array("exchanged").astype(np.bool_)

    def rows(self, step: int) -> IndexArray:
        """Rows to send at ``step``, requester after requester as ``index[step]`` counts them."""
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
