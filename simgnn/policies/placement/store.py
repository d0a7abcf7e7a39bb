"""Input rows in a store: each host keeps its own in memory that its ranks share, batches pull the others."""

from collections.abc import Callable
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from simgnn.errors import ConfigError
from simgnn.policies.minibatch import HOT, INPUTS, TAKE_HOT
from simgnn.policies.staging import Staging, received
from simgnn.policy import Policy
from simgnn.program.ops import Access
from simgnn.program.sizes import Column

MOST_HOT_ROWS = 2**31 - 1  # slots are int32
HOT_SHARE = 0.1
"""Of the distinct rows of other hosts that a rank needs in a mean epoch, how many ``auto`` keeps."""
CACHE_ROUTE, FIRST_ROUTE = "hot", "hot/setup"
"""Rows that fill the next epoch's caches, by epoch and step; those that fill the first epoch's."""


class Store(Policy):
    """Feature store (DistDGL: Zheng et al., IA3 2020) with a cache of hot rows on each rank's device (RapidGNN).

    ``hot_rows``: rows of other hosts that a rank keeps, those that most of its batches need; 0: none; ``auto``: a tenth
    of those that it needs in an epoch (specs/rapidgnn.md 6, our decision). They are chosen from batches that are known
    before training begins: ``hot_scope`` = ``epoch``, from those of each epoch, whose cache is filled while the one
    before runs; ``run``, from all of them, so that one cache is filled once (specs/rapidgnn.md 5.2, 7.1). ``pull``: of
    the next epoch's cache ``full``, all rows, or ``delta``, those that the present one lacks. ``device_bytes``: what
    caches and staged batches may take of a rank's device.

    ``sparse_embedding``: width of the vector that is learned of each vertex, beside its features (DistDGL, 5.4);
    ``sparse_delay``: 0, it changes before the next step pulls rows; 1, after (specs/distdgl.md 5.6).
    """

    slot: ClassVar[str] = "placement"

    kind: Literal["store"] = "store"
    hot_rows: Annotated[int, Field(ge=0, le=MOST_HOT_ROWS)] | Literal["auto"] = Field(
        default=0, description="rows of other hosts kept on a rank's device"
    )
    hot_scope: Literal["epoch", "run"] = Field(
        default="epoch", description="batches that hot rows are counted in; run: one cache, filled once"
    )
    pull: Literal["full", "delta"] = Field(default="full", description="what of the next epoch's hot rows is pulled")
    sparse_embedding: Annotated[int, Field(ge=0, le=2**20)] = Field(
        default=0, description="width of the vector that is learned of each vertex; 0: none"
    )
    sparse_delay: Literal[0, 1] = Field(
        default=0, description="steps after which learned vectors change, when others may have been pulled"
    )
    device_bytes: Annotated[int, Field(ge=0, le=2**62)] = Field(
        default=0, description="bytes of a rank's device for caches and staged batches; 0: no limit"
    )

    @model_validator(mode="after")
    def _filled_once(self) -> Self:
        if self.pulls_new_rows and not self.refills:
            raise ValueError(
                "pull: got 'delta' with placement.hot_scope = 'run', expected 'full': one cache is filled once, so "
                "that none before it has rows; remove one of the two"
            )
        return self

    @property
    def pulls_new_rows(self) -> bool:
        """Whether rows that are in the cache already are kept."""
        return self.pull == "delta"

    @property
    def refills(self) -> bool:
        """Whether each epoch has a cache of its own."""
        return self.hot_scope == "epoch"

    @property
    def caches(self) -> int:
        """Caches that a device holds at once."""
        return 2 if self.refills else 1

    def resolved(self, needed: Callable[[], float]) -> "Store":
        """The same with a number of hot rows; ``needed``: distinct rows of other hosts that a rank needs in an epoch.

        It is only asked for ``auto``.
        """
        if self.hot_rows != "auto":
            return self
        return self.model_copy(update={"hot_rows": min(round(HOT_SHARE * needed()), MOST_HOT_ROWS)})

    @property
    def cached_rows(self) -> int:
        """``hot_rows`` as a number, once it is resolved."""
        assert isinstance(self.hot_rows, int), "resolve it first"
        return self.hot_rows

    def check_fits(self, cached: NDArray[np.int64], largest: NDArray[np.int64], window: int, row_bytes: int) -> None:
        """Raise :class:`ConfigError` where ``device_bytes`` cannot hold the caches and ``window`` staged batches.

        ``cached``, ``largest`` int64 [P]: rows of each rank's largest cache, input rows of its largest batch; rows have
        ``row_bytes``. Told is how many hot rows would fit (specs/rapidgnn.md 9); where none do, also the longest
        window that does.
        """
        need, room = staged_rows(cached, largest, window, self.caches), self.device_bytes // row_bytes
        if not self.device_bytes or int(need.max()) <= room:
            return
        rank = int(need.argmax())
        remedy = _fitting(cached, largest, window, room, self.caches)
        what = {1: "a cache", 2: "two caches"}[self.caches]
        raise ConfigError(
            f"placement.device_bytes: got {self.device_bytes}, but {what} of {cached[rank]} rows and {window} "
            f"staged batches of up to {largest[rank]} rows take {need[rank] * row_bytes} bytes on rank {rank}; "
            f"expected more, or {remedy}"
        )

    def take(self, staging: Staging) -> None:
        """Emit: rows of a batch that are in the cache. That of an epoch was filled in the one before."""
        reads = (self._present, Access(INPUTS))
        staging.on_device(TAKE_HOT, reads, Access(INPUTS), Column("rows/hits"), "hits")

    def fill_next(self, staging: Staging) -> None:
        """Emit: a step's piece of the next epoch's cache. Source: RapidGNN, VectorPull (specs/rapidgnn.md 5.4)."""
        if not self.refills:
            return
        pulled = staging.send("hot", CACHE_ROUTE, "serve_cache")
        here, before = Access(HOT), self._present
        staging.to_device("hot/stage", (Access(pulled),), here, received(CACHE_ROUTE), "cache")
        if self.pulls_new_rows:
            staging.on_device("hot/keep", (before, here), here, Column("hot/kept"), "kept")

    def fill_first(self, staging: Staging) -> None:
        """Emit: the cache of the first epoch, before it begins."""
        pulled = staging.send("setup/hot", FIRST_ROUTE, "serve_first_cache", "setup")
        rows = received(FIRST_ROUTE)
        staging.to_device("setup/hot/stage", (Access(pulled),), self._present, rows, "first_cache", "setup")

    @property
    def _present(self) -> Access:
        """The cache that batches of this turn take rows from."""
        return Access(HOT, epochs_back=1) if self.refills else Access(HOT)


def staged_rows(
    cached: NDArray[np.int64], largest: NDArray[np.int64], window: int, caches: int = 2
) -> NDArray[np.int64]:
    """Input rows that buffers on a device hold: ``caches`` (this epoch's and the next one's) and ``window`` batches.

    ``cached``: rows of the largest cache; ``largest``: input rows of the largest batch; any shapes that broadcast.
    Source: RapidGNN's device bound (specs/rapidgnn.md 6); the rows of the cache are those that it really has, which may
    be fewer than ``hot_rows``.
    """
    return caches * cached + window * largest


def _fitting(cached: NDArray[np.int64], largest: NDArray[np.int64], window: int, room: int, caches: int) -> str:
    """What would fit into ``room`` rows, in words; others as in :func:`staged_rows`."""
    fits = min(window, room // int(largest.max()))
    if not fits:
        return f"smaller batches (batching.batch_size, batching.fanouts): one takes up to {largest.max()} rows"
    shorter = f"a window of at most {fits} (schedule.window)" if fits < window else ""
    tight = staged_rows(cached, largest, fits, caches) > room
    if not tight.any():
        return shorter
    most = int((room - fits * largest[tight]).min()) // caches
    return " with ".join(filter(None, (shorter, f"at most {most} hot rows (placement.hot_rows)")))
