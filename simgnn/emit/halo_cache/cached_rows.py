"""The base of freshness policies that keep halo rows in caches on devices, and in memory that a host's ranks share."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from simgnn.emit.builder import ProgramBuilder
from simgnn.emit.freshness import MovesRows
from simgnn.emit.halo_cache.actions import (
    CheckAges,
    FillMissed,
    FillRest,
    KeepGradients,
    KeepRows,
    PickRows,
    PutShared,
    SwapMemories,
    SwapRows,
)
from simgnn.emit.halo_cache.membership import Chosen, HaloRows
from simgnn.emit.halo_cache.routes import CACHED, CachedRows
from simgnn.emit.halo_cache.transfer import CachedTransfer
from simgnn.emit.sync import Sync, emit_encoded, emit_plainly, training_part
from simgnn.errors import ConfigError
from simgnn.partition.statistics.halo_rows import HALO_VERTICES
from simgnn.partition.statistics.partition_stats import PartitionStats
from simgnn.policy import Action, Codec, PlacementTraits
from simgnn.program.sizes import IntArray


class CachesHalo(MovesRows, ABC):
    """The base of policies by which ranks keep some halo rows between two refreshes, every ``interval`` epochs: on
    their devices, and in memory that the ranks of a host share.

    In a refresh all halo rows are new: those in the memory of a host are written there once, by their owner (of another
    host's owner: by the first rank that needs them), and read by all who need them; the others travel. In other epochs
    only rows travel that are cached nowhere. Rows that never change (input rows) are cached in the first epoch alone.
    Evaluations read rows of their own epoch, which all travel."""

    caches_halo: ClassVar[bool] = True
    actions: ClassVar[tuple[type[Action[Any]], ...]] = (
        KeepRows,
        CheckAges,
        PickRows,
        FillMissed,
        SwapRows,
        SwapMemories,
        FillRest,
        PutShared,
        KeepGradients,
    )

    @property
    @abstractmethod
    def interval(self) -> int:
        """Epochs from one refresh to the next; 1: no row is used twice, but with :attr:`delayed` in the next epoch."""

    @abstractmethod
    def cached(self, halo: HaloRows, capacities: IntArray) -> Chosen:
        """Choose the rows that the devices of ranks cache, bool [n], at most ``capacities`` int64 [P] of each rank: a
        pure function of the arguments."""

    @abstractmethod
    def shared(self, halo: HaloRows, capacities: IntArray, cached: Chosen) -> Chosen:
        """Choose the rows that lie in the memory of their holder's host, bool [n]: all rows of a vertex on a host, or
        none, and at most ``capacities`` int64 [hosts] vertices of each host. ``cached``: those of devices. Rows of a
        rank that uses no caches (:meth:`uses`) are left out afterwards."""

    def chosen(self, halo: HaloRows, devices: IntArray, memories: IntArray) -> tuple[Chosen, Chosen]:
        """Choose the rows that devices cache, at most ``devices`` int64 [P], and those in the memories of hosts, of at
        most ``memories`` int64 [hosts] vertices, bool [n] each; without those of ranks that use no caches."""
        cached = self.cached(halo, devices)
        shared = self.shared(halo, memories, cached)
        used = self.uses(halo, cached | shared)[halo.holder]
        return cached & used, shared & used

    def uses(self, halo: HaloRows, hit: Chosen) -> Chosen:
        """Choose the ranks that use caches at all, bool [P]: by default all. ``hit`` bool [n]: the rows that would be
        read from a cache."""
        return np.ones(len(halo.hosts), np.bool_)

    def caches_layer(self, layer: int) -> bool:
        """Whether halo rows of a layer are cached: by default of all."""
        return True

    @property
    def delayed(self) -> bool:
        """Whether a refresh uses the cached rows as they are, so that the rows that it brings are used from the next
        epoch on: 1 to ``interval`` epochs old, not 0 to ``interval`` - 1. The first epoch uses its own rows."""
        return False

    @property
    def gradients(self) -> Literal["dropped", "sent", "historical"]:
        """What becomes of gradients of cached rows between two refreshes: they are ``dropped``; ``sent`` as all others;
        or those of the last refresh are added once more (``historical``)."""
        return "dropped"

    def expand(self, builder: ProgramBuilder, sync: Sync, codec: Codec) -> None:
        backward, cached = sync.phase == "backward", CACHED in builder.routes and self.caches_layer(sync.layer)
        if not cached or (backward and self.gradients == "sent"):
            if codec.encodes:
                emit_encoded(builder, sync, codec)
            else:
                emit_plainly(builder, sync)
        if not cached:
            return
        training, coding = training_part(builder, sync), codec if codec.encodes else None
        for stage in training.stages:
            transfer = CachedTransfer(builder, training, stage, coding, self.slot, self.interval, self.delayed)
            if not backward:
                transfer.publish()
                continue
            if self.gradients != "sent":
                transfer.give_back(historical=self.gradients == "historical")
            transfer.swap_memories()


@dataclass(frozen=True)
class HaloCaches:
    """The caches of a run: ``policy`` chooses among the halo rows of ``stats``, as many as ``placement`` has room
    for."""

    policy: CachesHalo
    placement: PlacementTraits
    stats: PartitionStats

    def rows(self) -> CachedRows | None:
        """Return which rows are cached where; None if none are ever read from a cache. Raises :class:`ConfigError` for
        statistics that do not know the vertices of halo rows."""
        stats, hosts = self.stats, int(self.stats.hosts.max()) + 1
        if not len(stats.halo.source):
            return None
        devices, memories = self.placement.device_capacities(stats.halo_rows()), np.zeros(hosts, np.int64)
        shares = self.placement.shares_halo
        reuses = self.policy.interval > 1 or self.policy.delayed
        if not (shares or (devices.any() and reuses)):
            return None
        if HALO_VERTICES not in stats.tables:
            kind = self.policy.label
            raise ConfigError(
                f"freshness.kind: got '{kind}', which caches halo rows, but the statistics of '{stats.facts.name}' "
                f"have no table '{HALO_VERTICES}', which says whose halo rows are the same vertex: make the file anew "
                f"with this freshness, which then serves every capacity (simgnn partition EXPERIMENT --set freshness."
                f"kind={kind} --stats FILE), or cache no rows"
            )
        halo = HaloRows.of(stats.halo, np.asarray(stats.tables[HALO_VERTICES]), stats.hosts)
        if shares:
            each = halo.once_a_host(np.ones(len(halo.vertex), np.bool_))
            memories = self.placement.host_capacities(np.bincount(halo.host[each], minlength=hosts).astype(np.int64))
        cached, shared = self.policy.chosen(halo, devices if reuses else np.zeros_like(devices), memories)
        return CachedRows(halo, cached, shared, self.policy.delayed) if (cached | shared).any() else None
