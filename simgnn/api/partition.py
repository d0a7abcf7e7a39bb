"""Makes the partition of an experiment's graph, and measures how good it is."""

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from simgnn.api.experiments import PathLike, path_of
from simgnn.errors import ConfigError
from simgnn.experiment.load import load_experiment
from simgnn.experiment.schema import Experiment
from simgnn.outputs import check_output_file, make_parent
from simgnn.partition.folder import check_cache
from simgnn.partition.statistics.file import save_stats
from simgnn.partition.statistics.partition_stats import DEGREES, Quality, TypeBalance, degree_table, type_balances
from simgnn.planner.prepare import STATISTICS, obtain_partition, read_graph, with_default_cluster
from simgnn.progress import Progress, progress_of
from simgnn.report import page

if TYPE_CHECKING:
    import pandas as pd

CONNECTIONS = {
    f"{key}_{measure}": f"connections {where}, {text}"
    for key, where in (("inner", "inside hosts"), ("outer", "between hosts"))
    for measure, text in (("sum", "all ranks"), ("max", "largest of a rank"), ("mean", "mean of a rank"))
}


@dataclass(frozen=True, repr=False)
class PartitionReport:
    """A partition that is kept at ``path``, and its quality. ``kind``: "edge-cut" or "vertex-cut"; ``types``: balance
    by type of vertex, None for a vertex-cut, whose edges belong to no type; ``made_now``: it was not kept already."""

    graph: str
    vertices: int
    edges: int
    partition: str
    kind: str
    ranks: int
    quality: Quality
    types: tuple[TypeBalance, ...] | None
    made_now: bool
    digest: str
    path: Path

    def as_dict(self) -> dict[str, Any]:
        """Return all figures as plain values for JSON."""
        plain = {key: getattr(self, key) for key in ("graph", "vertices", "edges", "partition", "kind", "ranks")}
        types = None if self.types is None else [asdict(balance) for balance in self.types]
        kept = {"made_now": self.made_now, "digest": self.digest, "path": str(self.path)}
        return {**plain, **self.quality.as_dict(), "types": types, **kept}

    def table(self, by: Literal["partition", "type"] = "partition") -> "pd.DataFrame":
        """Return the figures of the partition as one row, to be concatenated with others, or a row for each type of
        vertex (none for a vertex-cut)."""
        # pandas: loaded when a table is made
        import pandas as pd

        if by not in ("partition", "type"):
            raise ConfigError(f"table: got by = {by!r}, expected 'partition' or 'type'")
        if by == "type":
            return pd.DataFrame([asdict(balance) for balance in self.types or ()])
        return pd.DataFrame([{key: value for key, value in self.as_dict().items() if key != "types"}])

    def lines(self) -> list[tuple[str, str]]:
        """Return (quantity, value as text) of every quantity that the partition has."""
        copies = "mirrors" if self.kind == "vertex-cut" else "halo rows"
        return [
            (CONNECTIONS.get(key, key.replace("copies", copies).replace("_", " ")), _text(value))
            for key, value in self.as_dict().items()
            if value is not None and key != "types"
        ]

    def type_lines(self) -> list[list[str]]:
        """Return type of vertex, vertices, imbalance, edges to them and imbalance as text, for each type."""
        keys = ("type", "vertices", "vertex_imbalance", "edges", "edge_imbalance")
        return [[_text(getattr(balance, key)) for key in keys] for balance in self.types or ()]

    def __repr__(self) -> str:
        share = f"replication factor {self.quality.replication_factor:.4g}"
        return f"PartitionReport({self.partition} of {self.graph} for {self.ranks} ranks; {share})"

    def _repr_html_(self) -> str:
        return page.table(["partition", ""], self.lines())


def make_partition(
    experiment: PathLike | Experiment,
    *,
    ranks: int | None = None,
    set: Mapping[str, Any] | None = None,
    stats: PathLike | None = None,
    progress: Progress | Callable[[str], None] | None = None,
) -> PartitionReport:
    """Partition an experiment's graph, or find the partition that is kept, and measure how good it is. Predictions and
    runs of the experiment use the same.

    ``experiment``, ``ranks``, ``set``: as in :func:`simgnn.load_experiment`. ``stats``: TOML file to write the
    statistics to, for ``graph.source = "stats:FILE"``. ``progress`` gets lines of text, as ``print`` does. Raises
    :class:`~simgnn.errors.SimgnnError` for a graph that cannot be read or partitioned."""
    given = experiment if isinstance(experiment, Experiment) else os.fspath(experiment)
    loaded = with_default_cluster(load_experiment(given, set or {}, ranks=ranks, trains=False), None)
    if loaded.graph.source.startswith(STATISTICS):
        raise ConfigError(
            f"graph.source: got '{loaded.graph.source}', expected a graph: a statistics file holds a partition already"
        )
    written = path_of(stats, "--stats")
    if written is not None:
        check_output_file(written, "--stats")
        if written.suffix == ".npz":
            raise ConfigError(f"--stats: got {written}, expected a TOML file: arrays go to a .npz file beside it")
    check_cache()
    shown = progress_of(progress)
    graph = read_graph(loaded, None, shown)
    artifact = obtain_partition(loaded, graph, None, shown)
    if written is not None:
        make_parent(written)
        tables = artifact.stats.tables
        if artifact.kind == "edge-cut":
            tables = {**tables, DEGREES: degree_table(graph.csr)}
        made_by = loaded.partition.resolved(loaded.seed).stated()
        save_stats(replace(artifact.stats, made_by=made_by, tables=tables), written)
    return PartitionReport(
        graph=graph.name,
        vertices=graph.vertices,
        edges=graph.edges,
        partition=loaded.partition.label,
        kind=artifact.kind,
        ranks=artifact.ranks,
        quality=artifact.quality,
        types=type_balances(graph, artifact.partition.owner, artifact.ranks) if artifact.kind != "vertex-cut" else None,
        made_now=artifact.made,
        digest=artifact.digest,
        path=artifact.path,
    )


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}"
    return str(value)
