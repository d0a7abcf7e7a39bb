"""Fills in what a partitioner that suits devices asks for: the devices of a hardware profile, the program's memory."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from simgnn.errors import ConfigError
from simgnn.experiment.schema import Experiment
from simgnn.graph.graph import GraphFacts
from simgnn.hardware.price.device_times import DeviceTimes, device_times
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.profile.profile import Profile
from simgnn.model.spec import LayerSpec
from simgnn.partition.device_fit import SHARES, FittedPartitioner, LayerWidths, PartMemory
from simgnn.partition.statistics.halo_rows import HALO_VERTICES, MOST_ROWS_IN_FILE, ROW_NONZEROS, numbered
from simgnn.partition.statistics.partition_stats import PartitionStats
from simgnn.planner.make_plan import Planned, plan
from simgnn.planner.memory.largest_cache import without_caches
from simgnn.planner.memory.program_memory import fixed_bytes, program_bytes
from simgnn.program.program import Program
from simgnn.program.sizes import IntArray, Route
from simgnn.progress import Progress

if TYPE_CHECKING:
    from simgnn.graph.graph import Graph
    from simgnn.partition.local.edge_cut import LocalGraph
    from simgnn.partition.store import PartitionArtifact


def with_fitted_partition(
    experiment: Experiment, graph: "Graph", profile: Profile | None, cache: Path | None, progress: Progress
) -> Experiment:
    """Return the experiment with a partitioner that knows the devices of its ranks, if it asks for them: their times
    and memory by the hardware ``profile``, and the memory of parts where one may not fit.

    Raises :class:`ConfigError` without a profile, :class:`HardwareError` for one that lacks an operation."""
    if not experiment.partition.fits_devices:
        return experiment
    # Numba: loaded when a graph is prepared
    from simgnn.partition.store import partition_artifact

    policy, hosts = cast(FittedPartitioner, experiment.partition), np.asarray(experiment.rank_hosts(), dtype=np.int64)
    devices = fitting_devices(experiment, profile)  # raises before minutes go into the parts
    base = partition_artifact(graph, policy.starts_from(hosts), hosts, experiment.seed, cache, progress)
    return fitted_to(experiment, base.stats, devices, progress)


def fitting_devices(experiment: Experiment, profile: Profile | None) -> tuple[DeviceTimes, ...]:
    """Return the devices that the experiment's partitioner suits: those that it states, or of the hardware profile."""
    devices = cast(FittedPartitioner, experiment.partition).devices or devices_of(experiment, profile)
    if len(devices) != experiment.ranks:
        raise ConfigError(
            f"partition.devices: got {len(devices)}, expected {experiment.ranks}, one for each rank; remove it to read "
            "them off the hardware profile"
        )
    return devices


def fitted_to(
    experiment: Experiment, starts: PartitionStats, devices: Sequence[DeviceTimes], progress: Progress
) -> Experiment:
    """Return the experiment with a partitioner that knows the ``devices`` of its ranks, the memory that these may take
    and, where a part may not fit, that of parts. ``starts``: the parts that it starts from."""
    policy, hosts = cast(FittedPartitioner, experiment.partition), np.asarray(experiment.rank_hosts(), dtype=np.int64)
    planned = _planned(experiment, starts)
    policy = policy.fitted(devices, [_widths(layer) for layer in planned.layers])
    if experiment.placement.device_bytes:
        policy = policy.within(experiment.placement.device_bytes)
    if policy.memory is None and _is_short(policy, planned.program, starts, hosts, experiment.seed):
        progress.stage(f"partition: how much memory {experiment.partition.label} can save")
        policy = policy.remembering(_part_memory(experiment, planned.program, starts, on_cpu(devices)))
    return experiment.model_copy(update={"partition": policy})


def start_statistics(experiment: Experiment, graph: "Graph", cache: Path | None, progress: Progress) -> PartitionStats:
    """Return the statistics of the parts that the experiment's fitted partitioner starts from, with a number for each
    halo row, so that it can be carried out on them without the graph; without these numbers if there are too many."""
    # Numba: loaded when a graph is prepared
    from simgnn.partition.store import partition_artifact

    policy, hosts = cast(FittedPartitioner, experiment.partition), np.asarray(experiment.rank_hosts(), dtype=np.int64)
    start = policy.starts_from(hosts).resolved(experiment.seed)
    base = partition_artifact(graph, policy.starts_from(hosts), hosts, experiment.seed, cache, progress)
    stats = replace(base.stats, made_by=start.stated())
    if int(stats.halo.rows.sum()) > MOST_ROWS_IN_FILE:
        return stats
    halos = [np.asarray(cast("LocalGraph", base.local(rank)).halo, dtype=np.int64) for rank in range(base.ranks)]
    tables = {**stats.tables, **policy.row_tables(graph, base.partition.owner, halos, hosts)}
    vertices = np.concatenate(halos)
    tables[HALO_VERTICES] = numbered(vertices)
    if graph.sparse_rows is not None:
        tables[ROW_NONZEROS] = np.diff(graph.sparse_rows.indptr).astype(np.int64)[vertices]
    return replace(stats, tables=tables)


def devices_of(experiment: Experiment, profile: Profile | None) -> tuple[DeviceTimes, ...]:
    """Read times and memory of the ranks' devices off a hardware profile. Raises :class:`ConfigError` without one."""
    kind = experiment.partition.label
    if profile is None:
        raise ConfigError(
            f"partition.kind: got '{kind}' without a hardware profile, expected one: parts follow from times and "
            "memory of the ranks' devices; name it with --hardware (hardware.profile), measure this machine with "
            "`simgnn calibrate`, or state partition.devices"
        )
    machine = Machine.place(profile, experiment.rank_hosts(), experiment.hardware.threads)
    return device_times(machine)


def check_fitted(experiment: Experiment, profile: Profile | None) -> None:
    """Raise :class:`ConfigError` where the partition of a statistics file was made for other devices than those of the
    hardware ``profile``: other halo rows would be dropped for these."""
    if not experiment.partition.fits_devices:
        return
    policy = cast(FittedPartitioner, experiment.partition)
    made_for, stated = policy.devices, experiment.placement.device_bytes
    if policy.budget_bytes != stated:
        raise ConfigError(
            f"placement.device_bytes: got {stated}, but the partition in '{experiment.graph.source}' was made with "
            f"{policy.budget_bytes} (0: no budget): which halo rows are dropped may depend on it; state that number, "
            "or divide the graph again with yours (simgnn partition --stats FILE)"
        )
    if made_for is None:
        return
    here = devices_of(experiment, profile)
    differ = [rank for rank, (one, other) in enumerate(zip(made_for, here, strict=False)) if one != other]
    if differ or len(made_for) != len(here):
        there = made_for[differ[0]].device if differ else f"{len(made_for)} devices"
        found = here[differ[0]].device if differ else f"{len(here)}"
        where = f"rank {differ[0]} on '{there}'" if differ else there
        raise ConfigError(
            f"graph.source: got '{experiment.graph.source}', whose partition was made for {where}, expected one for "
            f"the devices of the hardware profile ('{found}', or other times or memory): which halo rows are dropped "
            "depends on them; divide the graph again with this profile (simgnn partition --hardware PROFILE --stats "
            "FILE)"
        )


def on_cpu(devices: Sequence[DeviceTimes]) -> NDArray[np.bool_]:
    """Return which ranks have a CPU as their device, bool [P]."""
    return np.array([device.kind == "cpu" for device in devices])


@dataclass(frozen=True)
class RankFit:
    """What a partitioner did to suit the device of a rank: its cost, in units of the partitioner, halo rows, edges and
    memory of the program in bytes, of the part as it was made and without the halo rows that it drops (``..._before``,
    and after). Neither has edges between hosts where the partitioner drops those of all ranks. ``budget_bytes``: memory
    of the device, less what is reserved, or ``placement.device_bytes`` if that is less."""

    rank: int
    device: str
    cost_before: float
    cost: float
    halo_rows_before: int
    halo_rows: int
    edges_before: int
    edges: int
    dropped_edges: int
    memory_bytes_before: int
    memory_bytes: int
    budget_bytes: int


def rank_fits(
    experiment: Experiment, graph: "Graph", artifact: "PartitionArtifact", cache: Path | None, progress: Progress
) -> tuple[RankFit, ...]:
    """Compare the parts of ``artifact``, made by the experiment's fitted partitioner, with those that it started
    from, rank by rank."""
    # Numba: loaded when a graph is prepared
    from simgnn.partition.store import partition_artifact

    policy = cast(FittedPartitioner, experiment.partition)
    assert policy.devices is not None
    budgets = policy.budgets()
    stats, hosts = artifact.stats, np.asarray(experiment.rank_hosts(), dtype=np.int64)
    base = partition_artifact(graph, policy.starts_from(hosts), hosts, experiment.seed, cache, progress)
    part_of = policy.placed(base.stats.edges, hosts, experiment.seed)
    cut = stats.tables["cut_edges"]
    halo, halo_before, cpu = stats.halo_rows(), base.stats.halo_rows()[part_of], on_cpu(policy.devices)
    lost = base.stats.edges[part_of] - stats.edges
    before = policy.costs(stats.rows, stats.edges + lost, cut + lost, hosts)
    after = policy.costs(stats.rows, stats.edges, cut, hosts)
    memory_before = program_bytes(_planned(experiment, base.stats).program, cpu)[part_of]
    memory = program_bytes(_planned(experiment, stats).program, cpu)
    return tuple(
        RankFit(
            rank=rank,
            device=policy.devices[rank].device,
            cost_before=float(before[rank]),
            cost=float(after[rank]),
            halo_rows_before=int(halo_before[rank]),
            halo_rows=int(halo[rank]),
            edges_before=int(stats.edges[rank] + lost[rank]),
            edges=int(stats.edges[rank]),
            dropped_edges=int(lost[rank]),
            memory_bytes_before=int(memory_before[rank]),
            memory_bytes=int(memory[rank]),
            budget_bytes=int(budgets[rank]),
        )
        for rank in range(artifact.ranks)
    )


def _planned(experiment: Experiment, stats: PartitionStats) -> Planned:
    """Plan an epoch on a partition. A graph without features or labels, which can be divided but not trained on, counts
    as if it had the model's hidden width and one class. Caches of halo rows are empty: what dropping halo rows leaves
    free is theirs (CaPGNN, memory with C_i = 0)."""
    experiment = without_caches(experiment)
    return plan(experiment, replace(stats, facts=_trainable(experiment, stats.facts)))


def _trainable(experiment: Experiment, facts: GraphFacts) -> GraphFacts:
    widths = experiment.model.widths(facts.feature_width, facts.classes)
    return replace(
        facts,
        feature_width=facts.feature_width or widths[1],
        classes=max(facts.classes, 1),
        train_vertices=max(facts.train_vertices, 1),
    )


def _widths(layer: LayerSpec) -> LayerWidths:
    return LayerWidths(layer.prepared_width or layer.width_in, layer.width_in, layer.width_out)


def _is_short(policy: FittedPartitioner, program: Program, stats: PartitionStats, hosts: IntArray, seed: int) -> bool:
    """Whether the program needs more memory with all halo rows than the device of any rank has."""
    assert policy.devices is not None
    needed = program_bytes(program, on_cpu(policy.devices))[policy.placed(stats.edges, hosts, seed)]
    return bool(np.any(needed > policy.budgets()))


def _part_memory(
    experiment: Experiment, program: Program, stats: PartitionStats, cpu: NDArray[np.bool_]
) -> list[PartMemory]:
    """Plan the epoch anew with fewer halo rows and edges, and return the memory that this leaves to each part."""

    def memory(share: float, without_edges: bool) -> IntArray:
        return program_bytes(_planned(experiment, _with_less(stats, share, without_edges)).program, cpu)

    table = np.array([memory(share, False) for share in SHARES])
    table = np.maximum.accumulate(table[::-1])[::-1]  # the plan may choose otherwise; with less it never needs more
    cut = np.asarray(stats.table("cut_edges", "the memory of a part"), dtype=np.int64)
    saved = np.minimum(table[0] - memory(1.0, True), table[-1] - memory(0.0, True)).clip(min=0)
    fixed = fixed_bytes(program)
    return [
        PartMemory(
            at_shares=tuple(float(nbytes) for nbytes in table[:, part]),
            edge_bytes=float(saved[part] / cut[part]) if cut[part] else 0.0,
            fixed_bytes=float(fixed),
        )
        for part in range(stats.ranks)
    ]


def _with_less(stats: PartitionStats, share: float, without_edges: bool) -> PartitionStats:
    """Return statistics with a ``share`` of the halo rows of each pair of ranks; ``without_edges``: also without the
    edges from halo rows."""
    halo, tables = stats.halo, dict(stats.tables)
    rows = np.ceil(halo.rows * share).astype(np.int64)  # upwards: memory is estimated from above
    if "halo_feature_nonzeros" in tables:
        tables["halo_feature_nonzeros"] = np.ceil(tables["halo_feature_nonzeros"] * share).astype(np.int64)
    edges = stats.edges
    if without_edges:
        cut = np.asarray(tables["cut_edges"], dtype=np.int64)
        edges, tables["cut_edges"] = edges - cut, 0 * cut
        tables["block_edges"] = np.diag(np.diag(tables["block_edges"]))
    return replace(stats, halo=Route(halo.source, halo.target, rows), edges=edges, tables=tables)
