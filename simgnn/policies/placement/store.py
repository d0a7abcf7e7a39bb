"""Row store: each host keeps its input rows in memory that its ranks share; batches pull rows of other hosts."""

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from simgnn.emit.batches.embeddings import ApplyGradients, PickGradients, SumGradients
from simgnn.emit.batches.names import HOT, INPUTS, TAKE_HOT
from simgnn.emit.batches.on_rank import OfOne, OfTwo, RankAction
from simgnn.emit.batches.placement import RowStore
from simgnn.emit.batches.staging import Staging, received
from simgnn.errors import ShortMemoryError
from simgnn.policy import Action, Choices, Effect, Refusal, chosen
from simgnn.program.ops import Access
from simgnn.program.sizes import Column

MOST_HOT_ROWS = 2**31 - 1  # slots are int32
HOT_SHARE = 0.1
"""Of the distinct rows of other hosts that a rank needs in a mean epoch, how many ``auto`` keeps."""
CACHE_ROUTE, FIRST_ROUTE = "hot", "hot/setup"
"""Rows that fill the next epoch's caches, by epoch and step; those that fill the first epoch's."""


class TakeHotRows(RankAction[OfTwo]):
    """Copy cached rows into the input rows of a batch."""


class ServeHotRows(RankAction[OfOne]):
    """Gather this step's piece of the rows that fill the other ranks' caches for the next epoch."""


class FillHotRows(RankAction[OfOne]):
    """Put the rows that this step pulled into the cache of the next epoch."""


class KeepHotRows(RankAction[OfTwo]):
    """Copy rows of this step's piece from the current cache into the cache of the next epoch."""


class ServeFirstHotRows(RankAction[OfOne]):
    """Gather the rows that fill the other ranks' caches of the first epoch."""


class FillFirstHotRows(RankAction[OfOne]):
    """Fill the cache of the first epoch."""


class Store(RowStore):
    """Feature store (DistDGL: Zheng et al., IA3 2020) with a cache of hot rows on each rank's device (RapidGNN).

    ``hot_rows``: the number of other hosts' rows that a rank caches, those that most of its batches need; 0: none;
    ``auto``: a tenth of those that it needs in an epoch (docs/systems/rapidgnn.md, our decision). They are chosen from
    batches that are known before training begins: ``hot_scope`` = ``epoch``, from those of each epoch, whose cache is
    filled while the one before runs; ``run``, from all of them, so that one cache is filled once
    (docs/systems/rapidgnn.md). ``pull``: which rows of the next epoch's cache are pulled, ``full``: all, or ``delta``:
    those that the current one lacks.

    ``sparse_embedding``: the width of each vertex's learned vector, beside its features (DistDGL, 5.4);
    ``sparse_delay``: 0, vectors are updated before the next step pulls rows; 1, after (docs/systems/distdgl.md)."""

    actions: ClassVar[tuple[type[Action[Any]], ...]] = (
        *RowStore.actions,
        *(TakeHotRows, ServeHotRows, FillHotRows, KeepHotRows, ServeFirstHotRows, FillFirstHotRows),
        *(PickGradients, SumGradients, ApplyGradients),
    )
    effects: ClassVar[Mapping[str, Effect]] = {"sparse_embedding": "learning", "sparse_delay": "learning"}

    amounts: ClassVar[tuple[str, ...]] = ("hot_rows",)

    kind: Literal["store"] = "store"
    hot_rows: Annotated[int, Field(ge=0, le=MOST_HOT_ROWS)] | Literal["auto"] = Field(
        default=0, description="number of other hosts' rows that a rank's device caches"
    )
    hot_scope: Literal["epoch", "run"] = Field(
        default="epoch", description="batches by which hot rows are chosen: each epoch's, or the run's (one cache)"
    )
    pull: Literal["full", "delta"] = Field(default="full", description="next epoch's hot rows to pull: all or new")
    sparse_embedding: int = Field(
        default=0, ge=0, le=2**20, description="width of each vertex's learned vector; 0: none"
    )
    sparse_delay: Literal[0, 1] = Field(default=0, description="steps by which updates of learned vectors are delayed")

    @model_validator(mode="after")
    def _filled_once(self) -> Self:
        if self.pulls_new_rows and not self.refills:
            raise ValueError(
                "pull: got 'delta' with placement.hot_scope = 'run', expected 'full': one cache is filled once, so "
                "that none before it has rows; remove one of the two"
            )
        return self

    @property
    def learns_rows(self) -> str:
        return f"placement.sparse_embedding = {self.sparse_embedding}" if self.sparse_embedding else ""

    def refuses(self, choices: Choices) -> Iterator[Refusal]:
        batching, communication = choices.batching, choices.communication
        if not batching.mini_batches:
            return
        got, asked = f"with batching.kind = '{batching.label}'", f"communication.kind = '{communication.label}'"
        planned = communication.sends_unasked and batching.known_ahead
        unplanned = not planned and choices.trains and communication.moves == "batches"
        if self.hot_rows and not batching.known_ahead:
            message = f"got {self.hot_rows} {got}, expected 0: hot rows are counted in batches known before training"
            yield Refusal("placement", "hot_rows", message)
        elif self.hot_rows and unplanned:
            message = (
                f"got {self.hot_rows} with {asked}, whose rows are asked for, expected 0: caches are filled by a plan"
            )
            yield Refusal("placement", "hot_rows", message)
        for option in chosen(self, ["pull", "hot_scope"]) if unplanned else []:
            default = type(self).model_fields[option].default
            yield Refusal(
                "placement", option,
                f"got '{getattr(self, option)}' {got} and {asked}, expected '{default}': no rank has a cache to fill; "
                "remove it, or plan caches (batches that are known ahead, rows that are sent unasked)",
            )  # fmt: skip
        if not self.sparse_embedding and self.sparse_delay:
            message = f"got {self.sparse_delay} with placement.sparse_embedding = 0, expected 0: no vectors are learned"
            yield Refusal("placement", "sparse_delay", message)
        if self.sparse_embedding and self.hot_rows and planned:
            yield Refusal(
                "placement", "hot_rows",
                f"got {self.hot_rows} with {self.learns_rows}, expected 0: the vectors change in every step, a "
                "cached row stays for an epoch (--set placement.hot_rows=0)",
            )  # fmt: skip

    @property
    def pulls_new_rows(self) -> bool:
        return self.pull == "delta"

    @property
    def refills(self) -> bool:
        return self.hot_scope == "epoch"

    @property
    def caches(self) -> int:
        return 2 if self.refills else 1

    def resolved(self, needed: Callable[[], float]) -> Self:
        if self.hot_rows != "auto":
            return self
        return self.model_copy(update={"hot_rows": min(round(HOT_SHARE * needed()), MOST_HOT_ROWS)})

    @property
    def cached_rows(self) -> int:
        assert isinstance(self.hot_rows, int), "resolve it first"
        return self.hot_rows

    def caching(self, rows: int) -> Self:
        return self.model_copy(update={"hot_rows": rows})

    @property
    def wanted_rows(self) -> int | Literal["auto"]:
        return self.hot_rows

    @property
    def learned_width(self) -> int:
        return self.sparse_embedding

    @property
    def learned_delay(self) -> int:
        return self.sparse_delay

    def check_fits(self, cached: NDArray[np.int64], largest: NDArray[np.int64], window: int, row_bytes: int) -> None:
        """Raise :class:`ShortMemoryError` if ``device_bytes``, which limits all that a device holds, cannot even hold
        the caches and ``window`` staged batches. The message states how many hot rows would fit
        (docs/systems/rapidgnn.md) or, if none do, which window would."""
        need, room = staged_rows(cached, largest, window, self.caches), self.device_bytes // row_bytes
        if not self.device_bytes or int(need.max()) <= room:
            return
        rank = int(need.argmax())
        remedy = _fitting(cached, largest, window, room, self.caches)
        what = {1: "a cache", 2: "two caches"}[self.caches]
        raise ShortMemoryError(
            f"placement.device_bytes: got {self.device_bytes}, but {what} of {cached[rank]} rows and {window} "
            f"staged batches of up to {largest[rank]} rows take {need[rank] * row_bytes} bytes on rank {rank}; "
            f"expected more, or {remedy}"
        )

    def take(self, staging: Staging) -> None:
        reads = (self._present, Access(INPUTS))
        staging.on_device(TAKE_HOT, reads, Access(INPUTS), Column("rows/hits"), TakeHotRows)

    def fill_next(self, staging: Staging) -> None:
        """Emit the pull of a step's piece of the next cache: RapidGNN's VectorPull (docs/systems/rapidgnn.md)."""
        if not self.refills:
            return
        pulled = staging.send("hot", CACHE_ROUTE, ServeHotRows)
        here, before = Access(HOT), self._present
        staging.to_device("hot/stage", (Access(pulled),), here, received(CACHE_ROUTE), FillHotRows)
        if self.pulls_new_rows:
            staging.on_device("hot/keep", (before, here), here, Column("hot/kept"), KeepHotRows)

    def fill_first(self, staging: Staging) -> None:
        pulled = staging.send("setup/hot", FIRST_ROUTE, ServeFirstHotRows, "setup")
        rows = received(FIRST_ROUTE)
        staging.to_device("setup/hot/stage", (Access(pulled),), self._present, rows, FillFirstHotRows, "setup")

    @property
    def _present(self) -> Access:
        """Access to the cache that batches of the current epoch read."""
        return Access(HOT, epochs_back=1) if self.refills else Access(HOT)


def staged_rows(
    cached: NDArray[np.int64], largest: NDArray[np.int64], window: int, caches: int = 2
) -> NDArray[np.int64]:
    """Count the input rows on a device: ``caches`` caches of ``cached`` rows, ``window`` batches of ``largest`` rows.

    Source: RapidGNN's device bound (docs/systems/rapidgnn.md); ``cached`` are the rows that a cache really has, which
    may be fewer than ``hot_rows``."""
    return caches * cached + window * largest


def _fitting(cached: NDArray[np.int64], largest: NDArray[np.int64], window: int, room: int, caches: int) -> str:
    """Describe what would fit into ``room`` rows; other arguments as in :func:`staged_rows`."""
    fits = min(window, room // int(largest.max()))
    if not fits:
        return f"smaller batches (batching.batch_size, batching.fanouts): one takes up to {largest.max()} rows"
    shorter = f"a window of at most {fits} (schedule.window)" if fits < window else ""
    tight = staged_rows(cached, largest, fits, caches) > room
    if not tight.any():
        return shorter
    most = int((room - fits * largest[tight]).min()) // caches
    return " with ".join(filter(None, (shorter, f"at most {most} hot rows (placement.hot_rows)")))
