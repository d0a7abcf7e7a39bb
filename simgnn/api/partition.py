"""Makes the partition of an experiment's graph, and measures how good it is."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from simgnn.api.experiments import PathLike, path_of
from simgnn.errors import ConfigError
from simgnn.experiment.load import load_experiment
from simgnn.experiment.schema import Experiment
from simgnn.graph.graph import Graph
from simgnn.outputs import check_output_file, make_parent
from simgnn.partition.balance import rank_loads
from simgnn.partition.folder import check_cache
from simgnn.partition.partition import partitioned
from simgnn.partition.statistics.file import save_partitions
from simgnn.partition.statistics.partition_stats import DEGREES, Quality, TypeBalance, degree_table, type_balances
from simgnn.partition.store import PartitionArtifact
from simgnn.planner.epoch_work import epoch_weights, with_weights
from simgnn.planner.prepare import STATISTICS, obtain_partition, read_graph, with_default_cluster
from simgnn.progress import Progress, progress_of
from simgnn.report import page

if TYPE_CHECKING:
    import pandas as pd

LISTS = ("balances", "types")
"""Figures that have a table of their own."""
CONNECTIONS = {
    f"{key}_{measure}": f"connections {where}, {text}"
    for key, where in (("inner", "inside hosts"), ("outer", "between hosts"))
    for measure, text in (("sum", "all ranks"), ("max", "largest of a rank"), ("mean", "mean of a rank"))
}


@dataclass(frozen=True)
class Balance:
    """How evenly a partitioner loads the ranks of an edge-cut: the largest rank over the mean in owned vertices,
    in-edges, halo rows and the work of an epoch of the experiment's layers (without communication). ``choice``: what it
    balances."""

    choice: str
    vertices: float
    edges: float
    halo_rows: float
    work: float
    cut_edges: int


BALANCE_TITLE = "fullest rank over the mean (1.00: all ranks have as much)"
BALANCE_COLUMNS = ("balance", "vertices", "edges", "halo rows", "work", "cut edges")


@dataclass(frozen=True, repr=False)
class PartitionReport:
    """A partition that is kept at ``path``, and its quality. ``kind``: "edge-cut" or "vertex-cut"; ``balances``: of
    this partition and, if asked for, of what else its partitioner may balance; ``types``: balance by type of vertex.
    Both are None for a vertex-cut. ``made_now``: it was not kept already."""

    graph: str
    vertices: int
    edges: int
    partition: str
    kind: str
    ranks: int
    quality: Quality
    balances: tuple[Balance, ...] | None
    types: tuple[TypeBalance, ...] | None
    made_now: bool
    digest: str
    path: Path

    def as_dict(self) -> dict[str, Any]:
        """Return all figures as plain values for JSON."""
        plain = {key: getattr(self, key) for key in ("graph", "vertices", "edges", "partition", "kind", "ranks")}
        types = None if self.types is None else [asdict(balance) for balance in self.types]
        kept = {"made_now": self.made_now, "digest": self.digest, "path": str(self.path)}
        balances = None if self.balances is None else [asdict(balance) for balance in self.balances]
        return {**plain, **self.quality.as_dict(), "balances": balances, "types": types, **kept}

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
        return [
            (CONNECTIONS.get(key, key.replace("copies", copies).replace("_", " ")), _text(value))
            for key, value in self.as_dict().items()
            if value is not None and key not in LISTS
        ]

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

    def __repr__(self) -> str:
        share = f"replication factor {self.quality.replication_factor:.4g}"
        return f"PartitionReport({self.partition} of {self.graph} for {self.ranks} ranks; {share})"

    def _repr_html_(self) -> str:
        html = page.table(["partition", ""], self.lines())
        return html + (page.table(BALANCE_COLUMNS, self.balance_lines(), BALANCE_TITLE) if self.balances else "")


def make_partition(
    experiment: PathLike | Experiment,
    *,
    ranks: int | None = None,
    set: Mapping[str, Any] | None = None,
    stats: PathLike | None = None,
    alternatives: bool = True,
    progress: Progress | Callable[[str], None] | None = None,
) -> PartitionReport:
    """Partition an experiment's graph, or find the partition that is kept, and measure how good it is. Predictions and
    runs of the experiment use the same.

    ``experiment``, ``ranks``, ``set``: as in :func:`simgnn.load_experiment`. ``stats``: TOML file to write the
    statistics to, for ``graph.source = "stats:FILE"``. ``alternatives``: also partition by what else the partitioner
    may balance (METIS runs for each), to compare how evenly ranks are loaded. ``progress`` gets lines of text, as
    ``print`` does. Raises :class:`~simgnn.errors.SimgnnError` for a graph that cannot be read or partitioned."""
    given = experiment if isinstance(experiment, Experiment) else os.fspath(experiment)
    loaded = load_experiment(given, set or {}, ranks=ranks, trains=False)
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
    reports, counted = [], []
    for experiment in experiments:
        loaded = with_weights(with_default_cluster(experiment, None), graph.facts(), shown.stage)
        artifact = obtain_partition(loaded, graph, None, shown)
        cut = artifact.kind == "edge-cut"
        degrees = {DEGREES: degree_table(graph.csr)} if cut and stats is not None else {}
        made_by = loaded.partition.resolved(loaded.seed).stated()
        counted.append(replace(artifact.stats, made_by=made_by, tables={**artifact.stats.tables, **degrees}))
        report = PartitionReport(
            graph=graph.name,
            vertices=graph.vertices,
            edges=graph.edges,
            partition=loaded.partition.label,
            kind=artifact.kind,
            ranks=artifact.ranks,
            quality=artifact.quality,
            balances=_balances(loaded, graph, artifact, alternatives, shown.stage) if cut else None,
            types=type_balances(graph, artifact.partition.owner, artifact.ranks) if cut else None,
            made_now=artifact.made,
            digest=artifact.digest,
            path=artifact.path,
        )
        reports.append(report)
    if stats is not None:
        make_parent(stats)
        save_partitions(counted, stats)
    return tuple(reports)


def _balances(
    experiment: Experiment, graph: Graph, artifact: PartitionArtifact, others: bool, stage: Callable[[str], None]
) -> tuple[Balance, ...]:
    """Compute the balance of the edge-cut in ``artifact`` and, with ``others``, of its partitioner's alternatives."""
    hosts = np.asarray(experiment.rank_hosts(), dtype=np.int64)
    weights = epoch_weights(experiment, graph.facts(), stage)
    found = []
    for place, (choice, policy) in enumerate(experiment.partition.alternatives()):
        if place and not others:
            break
        if place:
            stage(f"partition: what {experiment.partition.label} with balance = {choice} would give")
            owner = partitioned(policy.weighed(lambda: weights), graph, hosts, experiment.seed).owner
        else:
            owner = artifact.partition.owner
        loads = rank_loads(graph, owner, artifact.ranks, weights)
        found.append(Balance(choice, **loads.imbalances(), cut_edges=loads.cut_edges))
    return tuple(found)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}"
    return str(value)
