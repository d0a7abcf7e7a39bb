"""``simgnn partition``: partition a graph once, and report how good the partition is."""

from pathlib import Path
from typing import Annotated

import typer

from simgnn.cli.options import ExperimentArgument, HardwareOption, JsonOption, SetOption, experiment_of, path_option
from simgnn.cli.tables.console import Reporter, print_json
from simgnn.errors import ConfigError
from simgnn.report.terminal import print_table


def command(
    experiment: ExperimentArgument,
    overrides: SetOption = None,
    hardware: HardwareOption = None,
    ranks: Annotated[
        str | None,
        typer.Option(
            "--ranks",
            metavar="P[,P...]",
            show_default=False,
            help="Total number of processes over all hosts, of which there is one unless --set says more; several "
            "numbers: a partition for each.",
        ),
    ] = None,
    as_json: JsonOption = False,
    save_stats: Annotated[
        Path | None,
        path_option("--stats", "FILE", "Also write the statistics of all these partitions, for stats:FILE sources."),
    ] = None,
    alternatives: Annotated[
        bool, typer.Option(help="Also partition by METIS's other balances, to show what they would give.")
    ] = True,
) -> None:
    """Partition an experiment's graph and report how good the partition is.

    The partition is kept and used again by simulate and run. Example:
    [bold]simgnn partition vanilla --ranks 2,4,8 --stats graph.toml[/bold]

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

    METIS balances the work of an epoch (partition.balance=auto): flops and bytes of the experiment's layers, as one
    weight for a vertex and one for an in-edge. The table of balances shows what balancing vertices or edges alone would
    give. A list balances each quantity by itself: vertices, edges, train, validation, test; DistDGL's partition every
    type of vertex and its edges: [bold]--set 'partition.balance=["train","validation","test","edges"]'[/bold]
    With freshness.kind=refresh-interval it also shows how many halo rows caches of several sizes would hold, beside
    those that caches which evict rows would hit (fifo, lru).
    With partition.across=hosts METIS divides the graph among hosts first, and then each host's part among its ranks.

    RAPA drops halo rows of little influence, with their edges, where a device is slow or full, until the costs of all
    ranks are even. It reads times and memory of the devices off the hardware profile and prints what it did to each
    rank, beside METIS by vertices and edges, which loses nothing: [bold]simgnn partition vanilla --set
    partition.kind=rapa --hardware mixed-pcie3-8[/bold]

    metis-chunks divides each partition of METIS into chunks, which a device trains one at a time (HongTu). It prints
    rows that move in a pass over a layer by number of chunks: what chunks need (V_ori), each row of a batch once
    (V_p2p), without rows that stay on a device (V_ru), and rows read from peers (V_dd); and the cost of the order of
    chunks as divided and as chosen: [bold]simgnn partition vanilla --set partition.kind=metis-chunks --set
    partition.chunks=8 --hardware a100-nvlink-4[/bold]

    khop-blocks divides by blocks of vertices around labelled ones (ByteGNN). It prints labelled vertices by part and,
    on mini-batches, the rows of other hosts in one pass over each kind of labelled vertices, beside METIS and random:
    [bold]simgnn partition distdgl --set partition.kind=khop-blocks --set cluster.hosts=4 --set
    cluster.ranks_per_host=1[/bold]
    """
    # loaded when the command runs: its help starts fast
    from simgnn.api.partition import (
        BALANCE_COLUMNS,
        BALANCE_TITLE,
        CHUNK_TITLE,
        DEVICE_COLUMNS,
        DROPPED_COLUMNS,
        HIT_RATE_COLUMNS,
        LABEL_COLUMNS,
        RATE_COLUMNS,
        ROW_COLUMNS,
        ROW_TITLE,
        make_partitions,
    )

    counts = rank_counts(ranks)
    loaded = [experiment_of(experiment, overrides, ranks=one, hardware=hardware, trains=False) for one in counts]
    reports = make_partitions(loaded, save_stats, alternatives, Reporter(quiet=as_json))
    if as_json:
        print_json(reports[0].as_dict() if len(reports) == 1 else {"partitions": [one.as_dict() for one in reports]})
        return
    for report in reports:
        print_table("", ["partition", ""], report.lines(), left=2)
        if report.balances:
            print_table(BALANCE_TITLE, BALANCE_COLUMNS, report.balance_lines())
        if report.fit is not None:
            print_table("devices of the ranks, by the hardware profile", DEVICE_COLUMNS, report.device_lines())
            print_table(f"what suits them (costs: {report.fit.status})", *report.fit_lines())
        if report.dropped:
            print_table("edges that no rank holds", DROPPED_COLUMNS, report.dropped_lines())
        if report.types:
            columns = ["type of vertex", "vertices", "imbalance", "edges to them", "imbalance"]
            print_table("balance by type of vertex", columns, report.type_lines())
        if report.labels is not None:
            print_table("labelled vertices by part", LABEL_COLUMNS, report.label_lines())
        if report.row_lines():
            print_table(ROW_TITLE, ROW_COLUMNS, report.row_lines())
        if report.chunks is not None:
            print_table(CHUNK_TITLE, report.chunk_columns(), report.chunk_lines())
        if report.rate_lines():
            print_table("rates that decide the order of chunks", RATE_COLUMNS, report.rate_lines())
        if report.hit_rates:
            print_table("halo rows read from caches, share of all", HIT_RATE_COLUMNS, report.hit_rate_lines())


def rank_counts(text: str | None) -> list[int | None]:
    """Read the value of ``--ranks``: numbers with commas between them; None: that of the experiment."""
    if text is None:
        return [None]
    counts = [int(part) if part.strip().isdecimal() else 0 for part in text.split(",")]
    if min(counts) < 1 or len(set(counts)) < len(counts):
        raise ConfigError(f"--ranks: got '{text}', expected different numbers of ranks, at least 1, such as 4 or 2,4,8")
    return [*counts]
