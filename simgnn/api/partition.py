"""Makes the partition of an experiment's graph, and measures how good it is."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from simgnn.analysis.hit_rates import HitRates, hit_rates
from simgnn.api.experiments import PathLike, path_of
from simgnn.api.memory.chunk_memory import simulated_needs
from simgnn.api.predict import default_cluster, known_profile
from simgnn.emit.halo_cache.cached_rows import CachesHalo
from simgnn.emit.halo_cache.membership import HaloRows
from simgnn.errors import ConfigError
from simgnn.experiment.load import load_experiment
from simgnn.experiment.schema import Experiment
from simgnn.graph.graph import MASKS, Graph
from simgnn.hardware.price.device_times import DeviceTimes
from simgnn.hardware.price.transfer_rates import TransferRates
from simgnn.hardware.profile.profile import Profile
from simgnn.outputs import check_output_file, make_parent
from simgnn.partition.balance import RankLoads, rank_loads
from simgnn.partition.chunks.counts import ChunkCounts, counted, kept_counts
from simgnn.partition.chunks.partitioner import ChunkedPartitioner
from simgnn.partition.chunks.store import ChunkArtifact
from simgnn.partition.device_fit import FittedPartitioner
from simgnn.partition.folder import check_cache
from simgnn.partition.partition import partitioned
from simgnn.partition.statistics.file import save_partitions
from simgnn.partition.statistics.halo_rows import HALO_VERTICES, MOST_ROWS_IN_FILE, ROW_ORDER, numbered
from simgnn.partition.statistics.partition_stats import (
    DEGREES,
    DROPPED_BETWEEN,
    DROPPED_EDGES,
    DROPPED_ROWS,
    PartitionStats,
    Quality,
    TypeBalance,
    degree_table,
    type_balances,
)
from simgnn.partition.store import PartitionArtifact
from simgnn.planner.chunks import obtain_chunks, with_transfer_rates
from simgnn.planner.epoch_work import epoch_weights
from simgnn.planner.fit_partition import RankFit, rank_fits, start_statistics
from simgnn.planner.memory.chunk_number import (
    ChunkTrials,
    asks_for_number,
    chosen_number,
    device_room,
    graph_trials,
    in_chunks,
    in_program_order,
)
from simgnn.planner.prepare import STATISTICS, fitted_partition, full_graph_stats, read_graph, with_default_cluster
from simgnn.program.sizes import IntArray
from simgnn.progress import Progress, progress_of
from simgnn.report import page
from simgnn.report.results import amount, seconds
from simgnn.sampling.fetches.label_parts import Draws, LabelParts, label_parts

if TYPE_CHECKING:
    import pandas as pd

LISTS = ("balances", "types", "fit", "hit_rates", "chunks", "dropped", "labels", "counted")
"""Figures that have a table of their own."""
CONNECTIONS = {
    f"{key}_{measure}": f"connections {where}, {text}"
    for key, where in (("inner", "inside hosts"), ("outer", "between hosts"))
    for measure, text in (("sum", "all ranks"), ("max", "largest of a rank"), ("mean", "mean of a rank"))
}


@dataclass(frozen=True)
class Balance:
    """How evenly a partitioner loads the ranks of an edge-cut: the largest rank over the mean in owned vertices,
    in-edges, halo rows and the work of an epoch of the experiment's layers (without communication), of what ranks hold.
    ``choice``: what it balances. ``costs`` [P]: the cost of each rank, by the units of a partitioner that suits
    devices, if one was asked for; else None."""

    choice: str
    vertices: float
    edges: float
    halo_rows: float
    work: float
    cut_edges: int
    costs: tuple[float, ...] | None = None


HIT_RATE_COLUMNS = ("capacity of each level", "on the device", "in memory of the host", "both, fifo", "both, lru")
BALANCE_TITLE = "fullest rank over the mean (1.00: all ranks have as much)"
BALANCE_COLUMNS = ("balance", "vertices", "edges", "halo rows", "work", "cut edges")


@dataclass(frozen=True)
class Fit:
    """What a partitioner did to suit the devices of the ranks. ``devices`` [P]: their times and memory, as read off the
    hardware profile; ``ranks`` [P]: cost, halo rows, edges and memory of each rank, before and after; ``status``: how
    the choice of dropped halo rows ended."""

    status: str
    devices: tuple[DeviceTimes, ...]
    ranks: tuple[RankFit, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return all figures as plain values for JSON."""
        devices = [device.model_dump(mode="json") for device in self.devices]
        return {"status": self.status, "devices": devices, "ranks": [asdict(rank) for rank in self.ranks]}


@dataclass(frozen=True)
class DroppedFromRank:
    """What a rank does without, as its partitioner dropped halo rows: ``edges`` in-edges of its own rows,
    ``edges_between_hosts`` of them from vertices of another host, and ``halo_rows``."""

    rank: int
    edges: int
    edges_between_hosts: int
    halo_rows: int


DROPPED_COLUMNS = ("rank", "dropped edges", "of them between hosts", "dropped halo rows")
DEVICE_COLUMNS = ("rank", "device", "dense product", "sparse product", "from host", "to host", "inside", "memory")
FIT_COLUMNS = (
    "rank", "cost before", "cost", "halo rows before", "halo rows", "edges before", "edges", "memory before", "memory",
    "dropped edges",
)  # fmt: skip


@dataclass(frozen=True)
class Chunks:
    """The chunks of each partition, kept at ``path``. ``counts``: what they amount to and, if asked for, before them
    what fewer chunks would. ``rates``: bytes per second that decided between orders (None: there was nothing to
    decide). ``made_now``: they were not kept already. ``device_bytes``: for each of ``counts``, what training chunk by
    chunk holds on the fullest device, and ``fits``, whether all devices have room for it (None: the experiment does
    not train chunk by chunk, or no memory of devices is known)."""

    counts: tuple[ChunkCounts, ...]
    rates: TransferRates | None
    made_now: bool
    digest: str
    path: Path
    device_bytes: tuple[int, ...] | None = None
    fits: tuple[bool, ...] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return all figures as plain values for JSON."""
        rates = None if self.rates is None else self.rates.model_dump(mode="json")
        kept = {"made_now": self.made_now, "digest": self.digest, "path": str(self.path)}
        counts = [one.as_dict() for one in self.counts]
        if self.device_bytes is not None and self.fits is not None:
            for one, nbytes, fits in zip(counts, self.device_bytes, self.fits, strict=True):
                one |= {"device_bytes": nbytes, "fits": fits}
        return {"counts": counts, "rates": rates, **kept}


CHUNK_TITLE = "rows in a pass over a layer, by chunks of each rank; cost: time for each byte of a row"
CHUNK_COLUMNS = (
    "chunks", "V_ori / V", "V_ori", "V_p2p", "V_ru", "V_dd", "buffer rows", "order", "cost, initial", "cost"
)  # fmt: skip
MEMORY_COLUMNS = ("device memory", "fits")


LABEL_COLUMNS = ("part", "host", "vertices", *MASKS)
ROW_COLUMNS = ("partition", *(f"from {name}" for name in MASKS))
ROW_TITLE = "rows of other hosts in a pass over labelled vertices, drawn in batches (~: estimated by some batches)"
RATE_COLUMNS = ("host to device", "device to device", "used again in place")


@dataclass(frozen=True, repr=False)
class PartitionReport:
    """A partition that is kept at ``path``, and its quality. ``kind``: "edge-cut" or "vertex-cut"; ``balances``: of
    this partition and, if asked for, of what else its partitioner may balance; ``types``: balance by type of vertex.
    Both are None for a vertex-cut. ``fit``: what was done to suit the devices of the ranks (None: the partitioner does
    not look at them). ``dropped``: what each rank does without (None: the partitioner drops nothing). ``hit_rates``:
    of caches of halo rows, for several capacities; None where freshness keeps none. ``made_now``: it was not kept
    already. ``chunks``: of a partitioner that divides partitions into chunks, else None. ``labels``: labelled vertices
    by part and rows of other hosts that samples need, of this partition and, if asked for, of others; None unless parts
    are made around labelled vertices. ``counted``: what the partitioner counted while it divided, by name."""

    graph: str
    vertices: int
    edges: int
    partition: str
    kind: str
    ranks: int
    quality: Quality
    balances: tuple[Balance, ...] | None
    types: tuple[TypeBalance, ...] | None
    fit: Fit | None
    made_now: bool
    digest: str
    path: Path
    hit_rates: tuple[HitRates, ...] | None = None
    chunks: Chunks | None = None
    dropped: tuple[DroppedFromRank, ...] | None = None
    labels: tuple[LabelParts, ...] | None = None
    counted: Mapping[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return all figures as plain values for JSON."""
        plain = {key: getattr(self, key) for key in ("graph", "vertices", "edges", "partition", "kind", "ranks")}
        types = None if self.types is None else [asdict(balance) for balance in self.types]
        kept = {"made_now": self.made_now, "digest": self.digest, "path": str(self.path)}
        balances = None if self.balances is None else [asdict(balance) for balance in self.balances]
        fit = {} if self.fit is None else {"fit": self.fit.as_dict()}
        caches = {} if self.hit_rates is None else {"hit_rates": [asdict(rates) for rates in self.hit_rates]}
        chunks = {} if self.chunks is None else {"chunks": self.chunks.as_dict()}
        dropped = {} if self.dropped is None else {"dropped": [asdict(rank) for rank in self.dropped]}
        labels = {} if self.labels is None else {"labels": [asdict(one) for one in self.labels]}
        counted = {"counted": dict(self.counted)} if self.counted else {}
        quality = self.quality.as_dict()
        lists = {**fit, **dropped, **caches, **chunks, **labels, **counted}
        return {**plain, **quality, "balances": balances, "types": types, **lists, **kept}

    def table(self, by: Literal["partition", "type", "balance"] = "partition") -> "pd.DataFrame":
        """Return the figures of the partition as one row, to be concatenated with others, or a row for each type of
        vertex, or for each choice of what is balanced, this one first (none of both for a vertex-cut)."""
        # pandas: loaded when a table is made
        import pandas as pd

        lists: dict[str, tuple[Any, ...] | None] = {"type": self.types, "balance": self.balances}
        if by in lists:
            return pd.DataFrame([asdict(balance) for balance in lists[by] or ()])
        if by != "partition":
            raise ConfigError(f"table: got by = {by!r}, expected 'partition', 'type' or 'balance'")
        return pd.DataFrame([{key: value for key, value in self.as_dict().items() if key not in LISTS}])

    def lines(self) -> list[tuple[str, str]]:
        """Return (quantity, value as text) of every quantity that the partition has."""
        copies = "mirrors" if self.kind == "vertex-cut" else "halo rows"
        counted = [(key.replace("_", " "), _text(value)) for key, value in self.counted.items()]
        found = [
            (CONNECTIONS.get(key, key.replace("copies", copies).replace("_", " ")), _text(value))
            for key, value in self.as_dict().items()
            if value is not None and key not in LISTS
        ]
        return found + counted

    def type_lines(self) -> list[list[str]]:
        """Return type of vertex, vertices, imbalance, edges to them and imbalance as text, for each type."""
        keys = ("type", "vertices", "vertex_imbalance", "edges", "edge_imbalance")
        return [[_text(getattr(balance, key)) for key in keys] for balance in self.types or ()]

    def balance_lines(self) -> list[list[str]]:
        """Return the cells of ``BALANCE_COLUMNS`` as text, for this partition and for other choices."""
        rows = []
        for place, one in enumerate(self.balances or ()):
            mark = " (this one)" if not place and len(self.balances or ()) > 1 else ""
            figures = (one.vertices, one.edges, one.halo_rows, one.work)
            rows.append([one.choice + mark, *(f"{figure:.2f}" for figure in figures), f"{one.cut_edges:,}"])
        return rows

    def device_lines(self) -> list[list[str]]:
        """Return the cells of ``DEVICE_COLUMNS`` as text: times of the five operations on each rank's device."""
        rows = []
        for rank, device in enumerate(() if self.fit is None else self.fit.devices):
            times = (device.matmul_s, device.spmm_s, device.h2d_s, device.d2h_s, device.copy_s)
            rows.append([str(rank), device.device, *map(seconds, times), amount(device.memory_bytes)])
        return rows

    def fit_lines(self) -> tuple[list[str], list[list[str]]]:
        """Return columns and cells as text: each rank before and after halo rows were dropped to suit its device, and
        beside it the cost of each rank on the other partitions."""
        others = [one for one in (self.balances or ())[1:] if one.costs is not None]
        rows = []
        for one in () if self.fit is None else self.fit.ranks:
            numbers = (one.halo_rows_before, one.halo_rows, one.edges_before, one.edges)
            memory = (one.memory_bytes_before, one.memory_bytes)
            costs = [one.cost_before, one.cost]
            rows.append(
                [
                    str(one.rank),
                    *(f"{cost:,.4g}" for cost in costs),
                    *(f"{number:,}" for number in numbers),
                    *map(amount, memory),
                    f"{one.dropped_edges:,}",
                    *(f"{other.costs[one.rank]:,.4g}" for other in others if other.costs is not None),
                ]
            )
        return [*FIT_COLUMNS, *(f"cost: {other.choice}" for other in others)], rows

    def dropped_lines(self) -> list[list[str]]:
        """Return the cells of ``DROPPED_COLUMNS`` as text, for each rank."""
        return [[f"{number:,}" for number in asdict(rank).values()] for rank in self.dropped or ()]

    def hit_rate_lines(self) -> list[list[str]]:
        """Return the cells of ``HIT_RATE_COLUMNS`` as text, for each capacity."""
        return [[f"{value:.1%}" for value in asdict(rates).values()] for rates in self.hit_rates or ()]

    def label_lines(self) -> list[list[str]]:
        """Return the cells of ``LABEL_COLUMNS`` as text: labelled vertices of each part, by kind."""
        rows = []
        for one in (self.labels or ())[:1]:
            columns = (one.vertices, one.train, one.validation, one.test)
            for rank, (host, *counts) in enumerate(zip(one.hosts, *columns, strict=True)):
                rows.append([str(rank), str(host), *(f"{count:,}" for count in counts)])
        return rows

    def row_lines(self) -> list[list[str]]:
        """Return the cells of ``ROW_COLUMNS`` as text: rows of other hosts in one pass over each kind of labelled
        vertices, for this partition and for others; empty where nothing is sampled."""
        rows = []
        for place, one in enumerate(self.labels or ()):
            mark = " (this one)" if not place and len(self.labels or ()) > 1 else ""
            about = "" if one.exact else "~"
            cells = [f"{about}{one.rows_from[name]:,}" if name in one.rows_from else "-" for name in MASKS]
            rows += [[one.choice + mark, *cells]] if one.rows_from else []
        return rows

    def chunk_lines(self) -> list[list[str]]:
        """Return the cells of :meth:`chunk_columns` as text, for each number of chunks."""
        rows: list[list[str]] = []
        for one in () if self.chunks is None else self.chunks.counts:
            volumes = one.volumes
            numbers = (volumes.v_ori, volumes.v_p2p, volumes.v_ru, volumes.v_dd, one.buffer_rows)
            costs = map(seconds, (one.initial.cost, one.cost))
            rows.append(
                [str(one.chunks), f"{one.replication_factor:.2f}", *(f"{n:,}" for n in numbers), one.order, *costs]
            )
        held = None if self.chunks is None else self.chunks.device_bytes
        if held is not None and self.chunks is not None and self.chunks.fits is not None:
            for row, nbytes, fits in zip(rows, held, self.chunks.fits, strict=True):
                row += [amount(nbytes), "yes" if fits else "no"]
        return rows

    def chunk_columns(self) -> tuple[str, ...]:
        """Return the titles of columns of chunks; of memory only where it is known."""
        known = self.chunks is not None and self.chunks.device_bytes is not None
        return (*CHUNK_COLUMNS, *(MEMORY_COLUMNS if known else ()))

    def rate_lines(self) -> list[list[str]]:
        """Return the cells of ``RATE_COLUMNS`` as text, if rates decided the order of chunks."""
        rates = None if self.chunks is None else self.chunks.rates
        if rates is None:
            return []
        found = (rates.host_to_device_bytes_per_s, rates.device_to_device_bytes_per_s, rates.reuse_bytes_per_s)
        return [["-" if rate is None else f"{amount(rate)}/s" for rate in found]]

    def __repr__(self) -> str:
        share = f"replication factor {self.quality.replication_factor:.4g}"
        return f"PartitionReport({self.partition} of {self.graph} for {self.ranks} ranks; {share})"

    def _repr_html_(self) -> str:
        html = page.table(["partition", ""], self.lines())
        html += page.table(BALANCE_COLUMNS, self.balance_lines(), BALANCE_TITLE) if self.balances else ""
        return html + (page.table(self.chunk_columns(), self.chunk_lines(), CHUNK_TITLE) if self.chunks else "")


def make_partition(
    experiment: PathLike | Experiment,
    *,
    ranks: int | None = None,
    hardware: PathLike | None = None,
    set: Mapping[str, Any] | None = None,
    stats: PathLike | None = None,
    alternatives: bool = True,
    progress: Progress | Callable[[str], None] | None = None,
) -> PartitionReport:
    """Partition an experiment's graph, or find the partition that is kept, and measure how good it is. Predictions and
    runs of the experiment use the same.

    ``experiment``, ``ranks``, ``hardware``, ``set``: as in :func:`simgnn.load_experiment`; a profile matters to
    partitioners that suit the devices of the ranks, and says how many ranks there are. ``stats``: TOML file to write
    the statistics to, for ``graph.source = "stats:FILE"``. ``alternatives``: also partition by what else the
    partitioner may balance (METIS runs for each), to compare how evenly ranks are loaded, and count what fewer chunks
    would amount to. ``progress`` gets lines of
    text, as ``print`` does. Raises :class:`~simgnn.errors.SimgnnError` for a graph that cannot be read or
    partitioned."""
    given = experiment if isinstance(experiment, Experiment) else os.fspath(experiment)
    profile = None if hardware is None else os.fspath(hardware)
    loaded = load_experiment(given, set or {}, ranks=ranks, hardware=profile, trains=False)
    return make_partitions([loaded], path_of(stats, "--stats"), alternatives, progress)[0]


def make_partitions(
    experiments: Sequence[Experiment],
    stats: Path | None,
    alternatives: bool,
    progress: Progress | Callable[[str], None] | None,
) -> tuple[PartitionReport, ...]:
    """Partition a graph as each of ``experiments`` says, which differ in their ranks; all go to one file ``stats``. The
    other arguments are those of :func:`make_partition`."""
    source = experiments[0].graph.source
    if source.startswith(STATISTICS):
        raise ConfigError(
            f"graph.source: got '{source}', expected a graph: a statistics file holds a partition already"
        )
    if stats is not None:
        check_output_file(stats, "--stats")
        if stats.suffix == ".npz":
            raise ConfigError(f"--stats: got {stats}, expected a TOML file: arrays go to a .npz file beside it")
    check_cache()
    shown = progress_of(progress)
    graph = read_graph(experiments[0], None, shown)
    reports, statistics = [], []
    for experiment in experiments:
        profile = _profile_of(experiment)
        loaded = with_default_cluster(experiment, None if profile is None else default_cluster(profile))
        loaded, artifact = fitted_partition(with_transfer_rates(loaded, profile), graph, None, shown, profile)
        trials = _trials(loaded, graph, artifact, profile, shown)
        if trials is not None and asks_for_number(loaded):
            loaded = in_chunks(loaded, chosen_number(trials))
        chunks = obtain_chunks(loaded, graph, artifact, None, shown) if loaded.partition.chunked else None
        cut = artifact.kind == "edge-cut"
        if stats is not None:
            statistics += _counted(loaded, graph, artifact, chunks, shown)
        divisions = _divisions(loaded, graph, artifact, alternatives, shown.stage) if cut else []
        report = PartitionReport(
            graph=graph.name,
            vertices=graph.vertices,
            edges=graph.edges,
            partition=loaded.partition.label,
            kind=artifact.kind,
            ranks=artifact.ranks,
            quality=artifact.quality,
            balances=_balances(loaded, graph, artifact, divisions) if cut else None,
            types=type_balances(graph, artifact.partition.owner, artifact.ranks) if cut else None,
            fit=_fit(loaded, graph, artifact, shown) if loaded.partition.fits_devices else None,
            made_now=artifact.made,
            digest=artifact.digest,
            path=artifact.path,
            hit_rates=_hit_rates(loaded, artifact) if cut and loaded.freshness.caches_halo else None,
            chunks=None
            if chunks is None
            else _chunks(loaded, graph, artifact, chunks, alternatives, trials, shown.stage),
            dropped=_dropped(artifact.stats),
            labels=_labels(loaded, graph, divisions, shown.stage) if cut and loaded.partition.around_labels else None,
            counted=artifact.counted,
        )
        reports.append(report)
    if stats is not None:
        make_parent(stats)
        save_partitions(statistics, stats)
    return tuple(reports)


def _counted(
    experiment: Experiment, graph: Graph, artifact: PartitionArtifact, chunks: ChunkArtifact | None, progress: Progress
) -> list[PartitionStats]:
    """Return the statistics of a partition as a file holds them: with what made it, the degrees of the graph, its
    chunks and, if the experiment caches halo rows, the vertices of these. Where it was made to suit devices, add those
    of the parts that it started from, by which a file serves other devices, too."""
    made_by = experiment.partition.resolved(experiment.seed).stated()
    if artifact.kind != "edge-cut":
        return [replace(artifact.stats, made_by=made_by)]
    degrees = {DEGREES: degree_table(graph.csr)}
    tables = {**artifact.stats.tables, **degrees, **({} if chunks is None else chunks.tables)}
    rows, caches = int(artifact.stats.halo.rows.sum()), experiment.freshness.caches_halo
    if caches and rows <= MOST_ROWS_IN_FILE:
        tables[HALO_VERTICES] = numbered(full_graph_stats(experiment, artifact).tables[HALO_VERTICES])
    elif caches:
        progress.stage(_too_many(rows, "caches cannot be predicted from this one"))
    found = [replace(artifact.stats, made_by=made_by, tables=tables)]
    if experiment.partition.fits_devices:
        start = start_statistics(experiment, graph, None, progress)
        if ROW_ORDER in start.tables:
            found.append(replace(start, tables={**start.tables, **degrees}))
        else:
            progress.stage(_too_many(int(start.halo.rows.sum()), "it serves these devices only"))
    return found


def _too_many(rows: int, consequence: str) -> str:
    return f"statistics: {rows:,} halo rows are more than the {MOST_ROWS_IN_FILE:,} that a file lists: {consequence}"


def _profile_of(experiment: Experiment) -> Profile | None:
    """Return the hardware profile that a prediction of the experiment would use, if the partition depends on it, or
    that the experiment names."""
    asks = experiment.partition.fits_devices or experiment.partition.chunked
    if experiment.hardware.profile is None and not asks:
        return None
    known = known_profile(experiment)
    return None if known is None else known.profile


def _fit(experiment: Experiment, graph: Graph, artifact: PartitionArtifact, progress: Progress) -> Fit:
    """Describe what the experiment's partitioner did to suit devices."""
    policy = cast(FittedPartitioner, experiment.partition)
    assert policy.devices is not None
    return Fit(artifact.status or "", policy.devices, rank_fits(experiment, graph, artifact, None, progress))


def _chunks(
    experiment: Experiment,
    graph: Graph,
    parts: PartitionArtifact,
    kept: ChunkArtifact,
    others: bool,
    trials: ChunkTrials | None,
    stage: Callable[[str], None],
) -> Chunks:
    """Describe the ``kept`` chunks of ``parts`` and, with ``others``, what each power of two below their number would
    amount to. ``trials``: what tells their memory (None: nothing does)."""
    policy = cast(ChunkedPartitioner, experiment.partition)
    found = []
    for fewer in (2**power for power in range((kept.chunks - 1).bit_length()) if others):
        stage(f"partition: what {fewer} chunks would give")
        found.append(counted(graph, parts, policy.settings(fewer)))
    found.append(kept_counts(kept, graph.vertices))
    numbers = [one.chunks for one in found]
    held = None if trials is None else tuple(int(trials.held(number).device.max()) for number in numbers)
    fits = None if trials is None else tuple(map(trials.fits, numbers))
    return Chunks(tuple(found), policy.rates, kept.made, kept.digest, kept.path, held, fits)


def _trials(
    experiment: Experiment, graph: Graph, parts: PartitionArtifact, profile: Profile | None, progress: Progress
) -> ChunkTrials | None:
    """Return what tells the memory of training by chunks of ``parts``; None for experiments that do not train so, for
    graphs without labels, and where the number is stated and no memory of devices is known."""
    facts = graph.facts()
    if experiment.communication.moves != "chunks" or not (facts.train_vertices and facts.feature_width):
        return None
    if profile is None and not asks_for_number(experiment) and not experiment.placement.device_bytes:
        return None
    room = device_room(experiment, profile)
    needs = in_program_order if profile is None else simulated_needs(profile)
    return graph_trials(experiment, graph, parts, full_graph_stats(experiment, parts), needs, room, progress)


def _dropped(stats: PartitionStats) -> tuple[DroppedFromRank, ...] | None:
    """Return what each rank does without; None for a partitioner that drops nothing."""
    if DROPPED_EDGES not in stats.tables:
        return None
    none = np.zeros(stats.ranks, dtype=np.int64)
    counts = (stats.tables[DROPPED_EDGES], stats.tables.get(DROPPED_BETWEEN, none), stats.tables[DROPPED_ROWS])
    return tuple(DroppedFromRank(rank, *map(int, each)) for rank, each in enumerate(zip(*counts, strict=True)))


def _hit_rates(experiment: Experiment, artifact: PartitionArtifact) -> tuple[HitRates, ...]:
    """Compute the hit rates of caches of halo rows in the partition ``artifact``, for several capacities."""
    stats = full_graph_stats(experiment, artifact)
    halo = HaloRows.of(stats.halo, np.asarray(stats.tables[HALO_VERTICES]), stats.hosts)
    return tuple(hit_rates(cast(CachesHalo, experiment.freshness), halo, experiment.model.layers))


class Division(NamedTuple):
    """A choice of what is balanced, as a short name, the owner of each vertex by it, int32 [V], and the work of an
    epoch as :func:`simgnn.planner.epoch_work.epoch_weights` gives it. ``apart``: edges between hosts are still to be
    left out."""

    choice: str
    owner: NDArray[np.int32]
    weights: Mapping[str, float]
    apart: bool = False


def _divisions(
    experiment: Experiment, graph: Graph, artifact: PartitionArtifact, others: bool, stage: Callable[[str], None]
) -> list[Division]:
    """Return the edge-cut in ``artifact`` and, with ``others``, its partitioner's alternatives; one that cannot be made
    here is left out, and ``stage`` says why."""
    hosts = np.asarray(experiment.rank_hosts(), dtype=np.int64)
    weights = epoch_weights(experiment, graph.facts(), stage)
    found: list[Division] = []
    for choice, policy in experiment.partition.alternatives():
        if not found:
            found.append(Division(choice, artifact.partition.owner, weights))
            continue
        if not others:
            break
        stage(f"partition: what {_other(experiment, choice)} would give")
        try:
            owner = partitioned(policy.weighed(lambda: weights), graph, hosts, experiment.seed).owner
        except ConfigError as error:
            stage(f"partition: left out: {error}")
        else:
            found.append(Division(choice, owner, weights, policy.drops_between_hosts))
    return found


def _balances(
    experiment: Experiment, graph: Graph, artifact: PartitionArtifact, divisions: Sequence[Division]
) -> tuple[Balance, ...]:
    """Compute the balance of each edge-cut in ``divisions``, of which the first is that in ``artifact``."""
    hosts = np.asarray(experiment.rank_hosts(), dtype=np.int64)
    found = []
    for place, one in enumerate(divisions):
        loads = rank_loads(graph, one.owner, artifact.ranks, one.weights, hosts if one.apart else None)
        if not place and DROPPED_EDGES in artifact.stats.tables:
            gone, lost = (artifact.stats.tables[name] for name in (DROPPED_ROWS, DROPPED_EDGES))
            loads = loads.without(gone, lost, one.weights.get("edges", 0.0))
        costs = _costs(experiment, loads, hosts)
        found.append(Balance(one.choice, **loads.imbalances(), cut_edges=loads.cut_edges, costs=costs))
    return tuple(found)


def _labels(
    experiment: Experiment, graph: Graph, divisions: Sequence[Division], stage: Callable[[str], None]
) -> tuple[LabelParts, ...]:
    """Count the labelled vertices of each part in ``divisions`` and, on mini-batches, what samples from them need."""
    sampling, draws = experiment.sampling, None
    if sampling is not None:
        draws = Draws(sampling.fanouts, sampling.sizes_of(experiment.ranks), experiment.seed)
        stage("partition: rows of other hosts that samples need")
    hosts = np.asarray(experiment.rank_hosts(), dtype=np.int64)
    return tuple(label_parts(one.choice, graph, one.owner, hosts, draws) for one in divisions)


def _other(experiment: Experiment, choice: str) -> str:
    """Name an alternative of the experiment's partitioner."""
    if experiment.partition.fits_devices or experiment.partition.around_labels:
        return choice
    return f"{experiment.partition.label} with balance = {choice}"


def _costs(experiment: Experiment, loads: RankLoads, hosts: IntArray) -> tuple[float, ...] | None:
    """Return the cost of each rank with these loads; None if the experiment's partitioner does not look at devices."""
    if not experiment.partition.fits_devices:
        return None
    policy = cast(FittedPartitioner, experiment.partition)
    return tuple(policy.costs(loads.vertices, loads.edges, loads.halo_edges, hosts).tolist())


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}"
    return str(value)
