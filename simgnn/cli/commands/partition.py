"""``simgnn partition``: partition a graph once, and report how good the partition is."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

from simgnn.cli.options import ExperimentArgument, JsonOption, RanksOption, SetOption, experiment_of, path_option
from simgnn.cli.tables.console import Reporter, print_json
from simgnn.errors import ConfigError
from simgnn.outputs import check_output_file, make_parent
from simgnn.report.terminal import print_table

CONNECTIONS = {
    f"{key}_{measure}": f"connections {where}, {text}"
    for key, where in (("inner", "inside hosts"), ("outer", "between hosts"))
    for measure, text in (("sum", "all ranks"), ("max", "largest of a rank"), ("mean", "mean of a rank"))
}


def command(
    experiment: ExperimentArgument,
    overrides: SetOption = None,
    ranks: RanksOption = None,
    as_json: JsonOption = False,
    save_stats: Annotated[
        Path | None,
        path_option("--stats", "FILE", "Also write the partition's statistics, for stats:FILE sources."),
    ] = None,
) -> None:
    """Partition an experiment's graph and report how good the partition is.

    The partition is kept and used again by simulate and run. Example:
    [bold]simgnn partition vanilla --ranks 4 --set partition.kind=random[/bold]

    An edge-cut (metis, random, block-row) divides vertices: a rank holds copies of remote ones, its halo rows. A
    vertex-cut (ebv; to compare with: hdrf, dbh, random-edges) divides edges: a vertex has its master on one rank and
    mirrors on others.

    [bold]replication factor[/bold]: rows that all ranks hold, over vertices.
    [bold]imbalance[/bold]: the fullest rank over the mean of all; for an edge-cut also by type of vertex (train,
    validation, test, none).
    [bold]connections[/bold] of a rank: rows that it sends or receives in one synchronisation; summed over ranks, each
    copy counts at both ends.

    EBV with partition.gamma above 0 keeps the copies of a vertex on one host. Compare the connections between hosts for
    gamma = 0 and 0.1: [bold]simgnn partition vanilla --set partition.kind=ebv --set partition.gamma=0 --set
    cluster.hosts=2 --set cluster.ranks_per_host=4[/bold]. EBV also takes partition.edge_order (degree-sum, input,
    random), partition.master (host-majority, balanced, hash, first), partition.alpha and partition.beta (weights of the
    balance of edges and of rows).

    METIS balances what partition.balance names: vertices, edges, train, validation, test. DistDGL's partition balances
    every type of vertex and its edges: [bold]--set 'partition.balance=["train","validation","test","edges"]'[/bold]
    With partition.across=hosts METIS divides the graph among hosts first, and then each host's part among its ranks.
    """
    # loaded when the command runs: its help starts fast
    from simgnn.partition.folder import check_cache
    from simgnn.partition.statistics.file import save_stats as write_stats
    from simgnn.partition.statistics.partition_stats import DEGREES, degree_table, type_balances
    from simgnn.planner.prepare import STATISTICS, obtain_partition, read_graph, with_default_cluster

    loaded = with_default_cluster(experiment_of(experiment, overrides, ranks=ranks, trains=False), None)
    if loaded.graph.source.startswith(STATISTICS):
        raise ConfigError(
            f"graph.source: got '{loaded.graph.source}', expected a graph: a statistics file holds a partition already"
        )
    if save_stats is not None:
        check_output_file(save_stats, "--stats")
        if save_stats.suffix == ".npz":
            raise ConfigError(f"--stats: got {save_stats}, expected a TOML file: arrays go to a .npz file beside it")
    check_cache()
    reporter = Reporter(quiet=as_json)
    graph = read_graph(loaded, None, reporter.stage)
    artifact = obtain_partition(loaded, graph, None, reporter.stage)
    if save_stats is not None:
        make_parent(save_stats)
        tables = artifact.stats.tables
        if artifact.kind == "edge-cut":
            tables = {**tables, DEGREES: degree_table(graph.csr)}
        stats = replace(artifact.stats, made_by=loaded.partition.resolved(loaded.seed).stated(), tables=tables)
        write_stats(stats, save_stats)
    types = None  # the edges of a vertex-cut belong to no type of vertex
    if artifact.kind != "vertex-cut":
        types = [asdict(balance) for balance in type_balances(graph, artifact.partition.owner, artifact.ranks)]
    measured: dict[str, Any] = {
        "graph": graph.name,
        "vertices": graph.vertices,
        "edges": graph.edges,
        "partition": loaded.partition.label,
        "kind": artifact.kind,
        "ranks": artifact.ranks,
        **artifact.quality.as_dict(),
        "types": types,
        "made_now": artifact.made,
        "digest": artifact.digest,
        "path": str(artifact.path),
    }
    if as_json:
        print_json(measured)
        return
    copies = "mirrors" if artifact.kind == "vertex-cut" else "halo rows"
    rows = [
        [CONNECTIONS.get(key, key.replace("copies", copies).replace("_", " ")), _text(value)]
        for key, value in measured.items()
        if value is not None and key != "types"
    ]
    print_table("", ["partition", ""], rows, left=2)
    if types:
        columns = ["type of vertex", "vertices", "imbalance", "edges to them", "imbalance"]
        keys = ("type", "vertices", "vertex_imbalance", "edges", "edge_imbalance")
        print_table("balance by type of vertex", columns, [[_text(entry[key]) for key in keys] for entry in types])


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}"
    return str(value)
