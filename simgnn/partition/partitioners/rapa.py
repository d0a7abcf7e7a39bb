"""RAPA: parts of METIS by vertices, without the halo rows that slow or full devices cannot afford."""

from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from simgnn.errors import ConfigError, ShortMemoryError
from simgnn.graph.graph import Graph
from simgnn.hardware.price.device_times import DeviceTimes
from simgnn.partition.device_fit import FittedPartitioner, LayerWidths
from simgnn.partition.host_parts import HostParts, needs_halo_rows
from simgnn.partition.statistics.halo_rows import ROW_EDGES, ROW_ORDER, rows_in_order, without_rows
from simgnn.partition.statistics.partition_stats import PartitionStats
from simgnn.policy import (
    Assignment,
    Choices,
    DroppedHalo,
    Effect,
    Partitioner,
    Refusal,
)
from simgnn.program.sizes import IntArray
from simgnn.registry import shipped

if TYPE_CHECKING:
    from simgnn.partition.algorithms.rapa import Costs, Halo, Pruning

BASES: Mapping[str, Mapping[str, Any]] = MappingProxyType({"metis": {"balance": ["vertices"]}, "random": {}})
"""Options of the partitioner that ``base`` names."""
LOSSLESS: Mapping[str, Any] = MappingProxyType({"balance": ["vertices", "edges"]})
"""Options of METIS that balance edges without dropping any: what RAPA is compared with."""


class Rapa(FittedPartitioner, HostParts):
    """Resource-aware partitioning (RAPA): halo rows of little influence are dropped, with their edges, from ranks whose
    device is slow or full, until the costs of all ranks of a host are even. Source: CaPGNN, section 4.

    It loses edges: sums lack the dropped ones in training and in evaluations. GCN coefficients keep the degrees of the
    whole graph; means divide by the edges that are kept. Costs follow from times of five operations on each device,
    which are read off the hardware profile. ``base``: METIS with ``balance = ["vertices"]``, or a random edge-cut; on
    several hosts METIS divides among hosts first, and costs are balanced inside each host. ``assign``: which rank gets
    which part: at random (as in the paper), part i for rank i, or the part with most edges for the fastest device.
    ``alpha``: the share of edges, beside vertices, in the cost of computing; "auto": by the work of the layers."""

    effect: ClassVar[Effect] = "learning"

    kind: Literal["rapa"] = "rapa"
    base: Literal["metis", "random"] = Field(
        default="metis", description="whose parts halo rows are dropped from: METIS by vertices, or a random edge-cut"
    )
    assign: Literal["random", "identity", "sorted"] = Field(
        default="random", description="which rank gets which part; sorted: most edges for the fastest device"
    )
    seed: int | None = Field(default=None, ge=0, description="seed of assign = 'random'; default: the experiment's")
    alpha: Annotated[float, Field(ge=0, le=1)] | Literal["auto"] = Field(
        default=0.5, description="share of edges, beside vertices, in the cost of computing; auto: by their work"
    )
    eps_rel: float = Field(
        default=0.01,
        gt=0,
        le=1,
        description="costs are even if their standard deviation is below this share of the mean",
    )
    reserve_bytes: int = Field(
        default=100_000_000, ge=0, le=1 << 50, description="memory of each device that the program must leave free"
    )
    max_passes: int = Field(default=100, ge=1, le=100_000, description="passes over the ranks after which it ends")
    renormalise: bool = Field(
        default=False, description="scale rows of a GCN by their in-degree over that of the kept edges"
    )
    strict: bool = Field(default=False, description="fail where costs cannot be made even, instead of a note")

    def refuses(self, choices: Choices) -> Iterator[Refusal]:
        yield from needs_halo_rows(self, choices, "kind", self.label)

    def resolved(self, seed: int) -> Self:
        return self if self.seed is not None else self.model_copy(update={"seed": seed})

    def alternatives(self) -> Iterator[tuple[str, Partitioner]]:
        yield self.label, self
        yield f"metis, [{', '.join(LOSSLESS['balance'])}]", self._policy("metis", LOSSLESS)

    @property
    def reserved_bytes(self) -> int:
        return self.reserve_bytes

    def starts_from(self, hosts: IntArray) -> Partitioner:
        across = {"across": "hosts"} if self.base == "metis" and len(np.unique(hosts)) > 1 else {}
        return self._policy(self.base, {**BASES[self.base], **across})

    def _policy(self, kind: str, options: Mapping[str, Any]) -> Partitioner:
        kept = {"reorder": self.reorder, "inter_machine": self.inter_machine}
        found = shipped("partition")[kind].model_validate({"kind": kind, **kept, **options})
        return cast(Partitioner, found)

    def fitted(self, devices: Sequence[DeviceTimes], layers: Sequence[LayerWidths]) -> Self:
        found = super().fitted(devices, layers)
        if self.alpha != "auto":
            return found
        # seconds that an edge and a vertex take on the slowest device, so that costs of computing are in proportion
        edge = sum(2 * layer.summed for layer in layers) / min(one.spmm_flops for one in devices)
        vertex = sum(2 * layer.before * layer.after for layer in layers) / min(one.matmul_flops for one in devices)
        return found.model_copy(update={"alpha": edge / (edge + vertex)})

    def filled(self) -> dict[str, Any]:
        return {} if self.devices is None else {"alpha": self.alpha, **super().filled()}

    def placed(self, edges: IntArray, hosts: IntArray, seed: int) -> IntArray:
        # this loads Numba, which checking an experiment does not need
        from simgnn.partition.algorithms.rapa import Ratios

        part_of = np.arange(len(hosts), dtype=np.int64)
        random = np.random.default_rng(seed if self.seed is None else self.seed)
        for host in np.unique(hosts):
            ranks = np.flatnonzero(hosts == host)
            if self.assign == "random":
                part_of[ranks] = random.permutation(ranks)
            elif self.assign == "sorted":
                slow = Ratios.of([self._known_devices(hosts)[rank] for rank in ranks]).speed(self._number)
                largest, fastest = np.lexsort((ranks, -edges[ranks])), np.lexsort((ranks, slow))
                part_of[ranks[fastest]] = ranks[largest]
        return part_of

    def costs(self, rows: IntArray, edges: IntArray, halo_edges: IntArray, hosts: IntArray) -> NDArray[np.float64]:
        found = np.zeros(len(hosts))
        for host in np.unique(hosts):
            ranks = np.flatnonzero(hosts == host)
            found[ranks] = self._host_costs(ranks, rows, edges, halo_edges, hosts).before
        return found

    def refined(self, graph: Graph, owner: NDArray[np.int32], hosts: IntArray, seed: int) -> Assignment:
        # this loads Numba, which checking an experiment does not need
        from simgnn.partition.algorithms.rapa import halos_by_influence
        from simgnn.partition.local.edge_cut_kernels import edges_between

        part_edges = np.bincount(owner, graph.csr.degrees(), minlength=len(hosts)).astype(np.int64)
        if self.drops_between_hosts:
            part_edges -= edges_between(graph.csr, owner, hosts)
        part_of = self.placed(part_edges, hosts, seed)
        rank_of = np.empty_like(part_of)
        rank_of[part_of] = np.arange(len(hosts))
        placed = rank_of[owner].astype(np.int32)
        halos, rows, edges = halos_by_influence(graph.csr, placed, hosts, self.drops_between_hosts)
        removed, status, notes = self._removed(halos, rows, edges, part_of, hosts)
        dropped = [np.sort(halo.vertices[:count]) for halo, count in zip(halos, removed.tolist(), strict=True)]
        rank, vertex = np.repeat(np.arange(len(hosts)), removed).astype(np.int32), np.concatenate(dropped)
        far = self.between_hosts(graph, placed, hosts)
        if far is not None:
            rank, vertex = np.concatenate((rank, far.rank)), np.concatenate((vertex, far.vertex))
            order = np.lexsort((vertex, rank))
            rank, vertex = rank[order], vertex[order]
        return Assignment(placed, dropped=DroppedHalo(rank, vertex, self.renormalise, status, notes))

    def row_tables(
        self, graph: Graph, owner: NDArray[np.int32], halos: Sequence[IntArray], hosts: IntArray
    ) -> dict[str, IntArray]:
        # this loads Numba, which checking an experiment does not need
        from simgnn.partition.algorithms.rapa import halos_by_influence

        # parts stay on their host, so that influence does not depend on which rank gets which
        ordered = halos_by_influence(graph.csr, owner, hosts, self.drops_between_hosts)[0]
        tables: dict[str, list[IntArray]] = {ROW_EDGES: [], ROW_ORDER: []}
        for by_influence, listed in zip(ordered, halos, strict=True):
            sorter, edges, place = np.argsort(listed), np.empty_like(listed), np.empty_like(listed)
            at = sorter[np.searchsorted(listed, by_influence.vertices, sorter=sorter)]
            edges[at], place[at] = np.diff(by_influence.removed_edges), np.arange(len(listed))
            tables[ROW_EDGES].append(edges)
            tables[ROW_ORDER].append(place)
        return {name: np.concatenate(found) for name, found in tables.items()}

    def refined_statistics(self, stats: PartitionStats, seed: int) -> PartitionStats:
        # this loads Numba, which checking an experiment does not need
        from simgnn.partition.algorithms.rapa import Halo

        part_of = self.placed(stats.edges, stats.hosts, seed)
        halos = []
        for part in part_of.tolist():
            rows, edges = rows_in_order(stats, part)
            halos.append(Halo(rows, np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(edges)))))
        removed, _, notes = self._removed(halos, stats.rows[part_of], stats.edges[part_of], part_of, stats.hosts)
        dropped = np.zeros(int(stats.halo.rows.sum()), dtype=np.bool_)
        for halo, count in zip(halos, removed.tolist(), strict=True):
            dropped[halo.vertices[:count]] = True
        return without_rows(stats, part_of, dropped, notes)

    def _removed(
        self, halos: Sequence["Halo"], rows: IntArray, edges: IntArray, part_of: IntArray, hosts: IntArray
    ) -> tuple[IntArray, str, tuple[str, ...]]:
        """Choose how many halo rows each rank does without, int64 [P], of its ``halos`` in the order of influence; say
        how the choice ended, and what users must know. ``rows``, ``edges`` int64 [P]: of each rank."""
        halo_edges = np.array([halo.edges for halo in halos], dtype=np.int64)
        removed, statuses = np.zeros(len(hosts), dtype=np.int64), []
        notes: list[str] = []
        for host in np.unique(hosts):
            ranks = np.flatnonzero(hosts == host)
            costs = self._host_costs(ranks, rows, edges, halo_edges, hosts)
            found = self._pruned(costs, [halos[rank] for rank in ranks.tolist()], ranks, part_of, hosts)
            removed[ranks] = found.removed
            statuses.append(found.status)
            if found.status != "balanced":
                notes.append(self._uneven(ranks, costs, found))
        self._check_memory(halos, removed, part_of, hosts)
        if notes and self.strict:
            raise ConfigError([f"partition.strict: {note}; remove it to train with these costs" for note in notes])
        return removed, ", ".join(dict.fromkeys(statuses)), tuple(notes)

    def _host_costs(
        self, ranks: IntArray, rows: IntArray, edges: IntArray, halo_edges: IntArray, hosts: IntArray
    ) -> "Costs":
        # this loads Numba, which checking an experiment does not need
        from simgnn.partition.algorithms.rapa import Costs, Ratios

        devices = self._known_devices(hosts)
        ratios = Ratios.of([devices[rank] for rank in ranks])
        return Costs.of(ratios, self._number, rows[ranks], edges[ranks], halo_edges[ranks])

    def _pruned(
        self, costs: "Costs", halos: Sequence["Halo"], ranks: IntArray, part_of: IntArray, hosts: IntArray
    ) -> "Pruning":
        # this loads Numba, which checking an experiment does not need
        from simgnn.partition.algorithms.rapa import prune

        budgets = self.budgets()

        def fits(place: int, count: int) -> bool:
            rank = int(ranks[place])
            return self._needed(halos[place], count, int(part_of[rank])) <= int(budgets[rank])

        return prune(costs, [halo.removed_edges for halo in halos], fits, self.eps_rel, self.max_passes)

    def _needed(self, halo: "Halo", count: int, part: int) -> float:
        """Return the bytes that the program needs for a part without ``count`` rows of its halo; 0 where it is known to
        fit."""
        if self.memory is None:
            return 0.0
        return self.memory[part].without(count, int(halo.removed_edges[count]), halo.rows)

    def _check_memory(self, halos: Sequence["Halo"], removed: IntArray, part_of: IntArray, hosts: IntArray) -> None:
        """Raise :class:`ShortMemoryError` for every rank whose part does not fit without any halo row."""
        budgets, problems = self.budgets(), []
        for rank, (halo, count) in enumerate(zip(halos, removed.tolist(), strict=True)):
            needed, budget = self._needed(halo, count, int(part_of[rank])), int(budgets[rank])
            if needed <= budget or self.memory is None:
                continue
            if not (self.budget_bytes and budget == self.budget_bytes):
                # of its device: what is reserved counts as needed there
                needed, budget = needed + self.reserve_bytes, budget + self.reserve_bytes
            reserved = int(budget - budgets[rank])
            fixed = self.memory[int(part_of[rank])].fixed_bytes + reserved
            if budget > fixed:
                workable = f"P >= {ceil(len(hosts) * (needed - fixed) / (budget - fixed))}"
            else:
                workable = f"a device with {ceil(needed):,} B, as {ceil(fixed):,} B do not depend on the graph"
            problems.append(
                f"partition: rank {rank} needs {ceil(needed):,} B without halos, budget {budget:,} B; smallest "
                f"workable: {workable}"
            )
        if problems:
            raise ShortMemoryError(problems)

    def _uneven(self, ranks: IntArray, costs: "Costs", found: "Pruning") -> str:
        """Describe costs that are not even: which rank is the limit, and what each costs without halo rows."""
        mean = float(found.costs.mean())
        worst = int(np.argmax(found.costs))
        named = ", ".join(map(str, ranks.tolist()))
        floors = ", ".join(f"{floor / mean:.3g}" for floor in costs.floor.tolist())
        return (
            f"costs are not even ({found.status}): rank {int(ranks[worst])} is at {found.costs[worst] / mean:.3g} "
            f"times the mean; without any halo row, ranks {named} would be at {floors} times it"
        )

    def _known_devices(self, hosts: IntArray) -> tuple[DeviceTimes, ...]:
        if self.devices is None:
            raise ConfigError(
                f"partition.devices: missing: '{self.label}' divides by times and memory of the ranks' devices; name a "
                "hardware profile (--hardware), or state them"
            )
        if len(self.devices) != len(hosts):
            raise ConfigError(f"partition.devices: got {len(self.devices)}, expected {len(hosts)}, one for each rank")
        return self.devices

    @property
    def _number(self) -> float:
        if self.alpha == "auto":
            raise ConfigError("partition.alpha: got 'auto' without the layers that it follows from; state a number")
        return float(self.alpha)
