"""Refresh interval: halo rows that many ranks need stay in caches, and are brought up to date in every r-th epoch."""

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from simgnn.emit.halo_cache.cached_rows import CachesHalo
from simgnn.emit.halo_cache.membership import Chosen, HaloRows
from simgnn.emit.halo_cache.transfer import REFRESH
from simgnn.policy import Choices, CommunicationTraits, Epochs, Refusal
from simgnn.program.sizes import IntArray

Number = Annotated[int, Field(strict=True, ge=1)]
Layers = Annotated[tuple[Number, ...], Field(min_length=1)]
GRADIENTS: Mapping[str, Literal["dropped", "sent", "historical"]] = {
    "refresh": "dropped", "always": "sent", "historical": "historical"
}  # fmt: skip


class RefreshInterval(CachesHalo):
    """JACA, the joint adaptive cache of CaPGNN: cached rows are used for ``refresh_interval`` = r epochs, so that they
    are up to r - 1 epochs old; other halo rows travel in every epoch.

    Two caches: each rank's device (``placement.device_rows``), and memory that the ranks of a host share
    (``placement.host_rows``). Both take first the rows whose vertex most ranks have in their halo, and of equal ones
    those of the smallest ids. One choice serves all layers: each has its rows, as inputs or transformed, whichever the
    layer sums. Input features never change: sent once, a rank holds all of them (``communication.rows = "input"``), and
    with ``communication.resend_inputs`` the cached ones are sent once and the others in every epoch. A cached row is a
    constant of the epochs that read it: ``grad`` says what becomes of its gradient there. Evaluations read rows of
    their own epoch. Epoch 0 is a refresh. With ``mode = "async"`` a refresh uses cached rows as they are, and the new
    ones from the next epoch on: 1 to r epochs old. docs/systems/capgnn.md describes what is sent when.

    Source: CaPGNN, its sections on JACA. Deviations: membership never changes, since every halo row is read once a
    layer; capacities count rows, each of which takes memory in all layers; ``grad`` is our reading of a text that
    leaves it open; and no version is checked while another rank writes, since ranks of a host wait for one another,
    or (``async``) write rows into a second memory, which is read from the next epoch on."""

    amounts: ClassVar[tuple[str, ...]] = ("refresh_interval",)

    kind: Literal["refresh-interval"] = "refresh-interval"
    refresh_interval: Number = Field(
        default=10, le=10**7, description="epochs from one refresh of cached rows to the next"
    )
    mode: Literal["sync", "async"] = Field(
        default="sync", description="a refresh uses the rows that it brings (sync), or epochs after it do (async)"
    )
    grad: Literal["refresh", "always", "historical"] = Field(
        default="refresh",
        description="gradients of cached rows between refreshes: dropped, sent, or those of the last refresh once more",
    )
    order: Literal["high", "low"] = Field(
        default="high", description="rows to cache first: those that most ranks need, or (for comparison) fewest"
    )
    global_rank: Literal["overlap", "uncovered"] = Field(
        default="overlap",
        description="rows to share first: as `order` says, or before these those that some device does not cache",
    )
    top_k: Number | Literal[-1] = Field(
        default=-1, description="rows of each owner that a rank may cache, those that most ranks need; -1: all"
    )
    bypass_below: float = Field(
        default=0.0, ge=0, le=1,
        description="a rank that would take less than this share of its halo rows from caches uses none of them",
    )  # fmt: skip
    layers: Literal["all"] | Layers = Field(
        default="all", description="layers whose halo rows are cached, counted from 1"
    )

    def refuses(self, choices: Choices) -> Iterator[Refusal]:
        communication = choices.communication
        if not communication.stores_halo and communication.moves in self.serves:
            fitting = choices.fitting(CommunicationTraits, lambda other: other.stores_halo)
            yield Refusal(
                "communication", "kind",
                f"got '{communication.label}' with freshness.kind = '{self.label}', expected {fitting}: caches hold "
                "rows of a halo, which a rank sums as they are",
            )  # fmt: skip
        most = choices.model.layers
        beyond = [] if self.layers == "all" else sorted({layer for layer in self.layers if layer > most})
        if beyond:
            message = f"got {', '.join(map(str, beyond))}, expected numbers from 1 to {most} (model.layers)"
            yield Refusal("freshness", "layers", message)

    @property
    def interval(self) -> int:
        return self.refresh_interval

    @property
    def epochs(self) -> Epochs:
        reuses = self.interval > 1 or self.delayed
        return Epochs(self.interval, {REFRESH: 0}, first=True) if reuses else Epochs()

    def caches_layer(self, layer: int) -> bool:
        return self.layers == "all" or layer in self.layers

    @property
    def delayed(self) -> bool:
        return self.mode == "async"

    @property
    def gradients(self) -> Literal["dropped", "sent", "historical"]:
        return GRADIENTS[self.grad]

    def cached(self, halo: HaloRows, capacities: IntArray) -> Chosen:
        return halo.first(halo.holder, capacities, self._candidates(halo), ascending=self.order == "low")

    def shared(self, halo: HaloRows, capacities: IntArray, cached: Chosen) -> Chosen:
        needed = None
        if self.global_rank == "uncovered":
            needed = (np.bincount(halo.on_host, ~cached) > 0)[halo.on_host] if len(halo.vertex) else cached
        each = halo.once_a_host(self._candidates(halo))
        chosen = halo.first(halo.host, capacities, each, self.order == "low", needed)
        numbers = np.zeros(int(halo.on_host.max(initial=-1)) + 1, np.bool_)
        numbers[halo.on_host[chosen]] = True
        return numbers[halo.on_host]

    def uses(self, halo: HaloRows, hit: Chosen) -> Chosen:
        ranks = len(halo.hosts)
        hits, rows = np.bincount(halo.holder, hit, minlength=ranks), np.bincount(halo.holder, minlength=ranks)
        return hits >= self.bypass_below * rows

    def _candidates(self, halo: HaloRows) -> Chosen:
        """Choose the rows that may be cached, bool [n]: of each pair of ranks the first ``top_k``."""
        everything = np.ones(len(halo.vertex), np.bool_)
        if self.top_k < 0:
            return everything
        ranks = len(halo.hosts)
        pairs = halo.owner * ranks + halo.holder
        return halo.first(pairs, np.full(ranks * ranks, self.top_k), everything)
