"""``simgnn sample``: write an experiment's mini-batches to disk, and tell what they would move."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simgnn.cli.options import (
    EpochsOption,
    ExperimentArgument,
    JsonOption,
    RanksOption,
    SetOption,
    experiment_of,
    path_option,
)
from simgnn.errors import ConfigError

if TYPE_CHECKING:
    from simgnn.experiment.schema import Experiment


def command(
    experiment: ExperimentArgument,
    out: Annotated[
        Path | None, path_option("--out", "DIR", "Folder of the batches, new or continued; default: batching.storage.")
    ] = None,
    overrides: SetOption = None,
    ranks: RanksOption = None,
    epochs: EpochsOption = None,
    only: Annotated[
        list[int] | None,
        typer.Option("--only-rank", metavar="R", help="Write only this rank's batches. Repeatable.", min=0),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option("--threads", metavar="N", help="Sampling threads; default: every core.", min=1, max=4096),
    ] = None,
    hot_rows: Annotated[
        str | None,
        typer.Option(
            "--hot-rows",
            metavar="N,N,...",
            help="Tell what a cache of so many hot rows on each rank would save, for each N.",
            show_default=False,
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace batches made from other settings.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Sample an experiment's mini-batches ahead of time, and tell their sizes.

    Writes every batch of every epoch and rank to DIR. Example:
    [bold]simgnn sample vanilla --ranks 4 --epochs 10 --set batching.kind=seeded
    --out batches[/bold]

    A batch is decided by the seed, the rank, the epoch and its number alone:
    threads, interruptions and who writes what change no byte. An interrupted
    call goes on where it stopped, more --epochs continue DIR, and several
    processes may share the work with --only-rank. The digest tells two folders
    apart. simulate and run take what they need from DIR, and add what is not
    there, with --set batching.storage=DIR.

    batching.kind is seeded (fan-outs 25, 10) or sampled (15, 10, 5);
    batching.fanouts counts from the seed vertices and has one entry a layer;
    batching.batch_size is that of a rank (batching.global_batch: of all ranks,
    divided evenly); batching.split is even (all ranks train
    on equally many vertices) or local (each on those that it owns);
    batching.last=drop ends an epoch when a rank has no full batch left.

    [bold]input rows[/bold]: vertices whose features a batch needs, each once.
    [bold]duplicates[/bold]: edges whose source the batch held already.
    [bold]remote[/bold]: rows that another rank owns, and must send.
    [bold]frequency[/bold]: in how many batches of one rank and epoch a remote
    row is needed; what a cache of the most frequent rows would save.

    [bold]--hot-rows 0,1000,10000[/bold] tells, without sampling anew, what is pulled
    from other hosts when each rank keeps that many of the rows that its batches
    of an epoch need most often: exact numbers, by rank pair with --json. Rows
    of the own host are read from memory that its ranks share, so it takes
    several hosts (--set cluster.hosts=4).
    [bold]rows pulled[/bold]: by batches, which the cache lacks.
    [bold]rows cached[/bold]: pulled to fill the caches, anew in each epoch
    (placement.hot_scope=run: one cache, chosen from all batches, filled once).
    [bold]buffers[/bold]: this epoch's cache, the next one's (placement.hot_scope=run: the
    one cache), and as many batches as the schedule stages (schedule.kind
    prefetch: schedule.window; else 1).

    With placement.kind = store the fetches of placement.hot_rows are planned
    too, into DIR/hot-N: what each batch gathers, what each rank sends.
    """
    # loaded when the command runs: its help starts fast
    from simgnn.cli.tables.batches import print_report, report
    from simgnn.cli.tables.console import Reporter, print_json
    from simgnn.cli.tables.fetches import check_caches, hot_row_counts, print_fetches, tell_fetches
    from simgnn.partition.folder import check_cache
    from simgnn.planner.batch_sizes import check_training_vertices, sampling_plan
    from simgnn.planner.prepare import obtain_partition, read_graph, with_default_cluster
    from simgnn.sampling.batches.presample import check_free, presample

    sizes = [] if hot_rows is None else hot_row_counts(hot_rows)
    loaded = with_default_cluster(experiment_of(experiment, overrides, ranks=ranks, epochs=epochs, trains=False), None)
    _check(loaded, only)
    check_caches(loaded, sizes)
    folder, named_by = _folder(loaded, out)
    check_free(folder, named_by)
    check_cache()
    reporter = Reporter(quiet=as_json)
    graph = read_graph(loaded, None, reporter.stage)
    check_training_vertices(graph)
    artifact = obtain_partition(loaded, graph, None, reporter.stage)
    plan = sampling_plan(loaded, graph, artifact.partition)
    with reporter.counting(
        "batches", sum(plan.batches(rank) for rank in range(plan.ranks)) * loaded.train.epochs
    ) as at:
        made = presample(
            plan,
            artifact.digest,
            folder,
            loaded.train.epochs,
            ranks=sorted(set(only)) if only else None,
            threads=threads,
            force=force,
            option=named_by,
            done=lambda done, of: at.at(done, total=of),
        )
    told = report(made, plan, loaded.rank_hosts(), graph.name, loaded.batching.label)
    told |= tell_fetches(loaded, graph, plan, made, artifact.digest, sizes, threads, reporter)
    if as_json:
        print_json(told)
    else:
        print_report(told)
        print_fetches(told)


def _folder(experiment: "Experiment", out: Path | None) -> tuple[Path, str]:
    """Where batches go, and what names the place."""
    if out is not None:
        return out, "--out"
    storage = None if experiment.sampling is None else experiment.sampling.storage
    if storage is None:
        raise ConfigError("--out: missing; expected the folder that the batches go to: --out DIR, or batching.storage")
    return Path(storage), "batching.storage"


def _check(experiment: "Experiment", only: list[int] | None) -> None:
    # loaded when the command runs: its help starts fast
    from simgnn.planner.prepare import STATISTICS

    problems, sampling = [], experiment.sampling
    if sampling is None:
        problems.append(
            f"batching.kind: got '{experiment.batching.label}', expected seeded or sampled: full-graph training has no "
            "batches; try --set batching.kind=seeded"
        )
    if experiment.graph.source.startswith(STATISTICS):
        problems.append(f"graph.source: got '{experiment.graph.source}', expected a graph: statistics hold no edges")
    if experiment.partition.cut != "edge-cut":
        problems.append(
            f"partition.kind: got '{experiment.partition.label}', expected an edge-cut (metis, random, block-row): "
            "sampling needs an owner of every row"
        )
    if only and max(only) >= experiment.ranks:
        problems.append(f"--only-rank: got {max(only)}, expected a rank of 0..{experiment.ranks - 1}")
    if problems:
        raise ConfigError(problems)
    assert sampling is not None
    sampling.sizes_of(experiment.ranks)  # raises where a rank would have none
