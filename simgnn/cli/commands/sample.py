"""``simgnn sample``: write an experiment's mini-batches to disk, and report what they would move."""

from pathlib import Path
from typing import Annotated

import typer

from simgnn.cli import options as opt
from simgnn.cli.tables.console import Reporter, print_json


def command(
    experiment: opt.ExperimentArgument,
    out: Annotated[
        Path | None,
        opt.path_option("--out", "DIR", "Folder of the batches, new or continued; default: batching.storage."),
    ] = None,
    overrides: opt.SetOption = None,
    ranks: opt.RanksOption = None,
    epochs: opt.EpochsOption = None,
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
    as_json: opt.JsonOption = False,
) -> None:
    """Sample an experiment's mini-batches ahead of time, and report their sizes.

    Writes every batch of every epoch and rank to DIR. Example:
    [bold]simgnn sample vanilla --ranks 4 --epochs 10 --set batching.kind=seeded --out batches[/bold]

    A batch depends only on the seed, the rank, the epoch and its number, not on threads, interruptions or the process
    that writes it. An interrupted call continues where it stopped, more --epochs extend DIR, and several processes may
    share the work with --only-rank. Digests of different batches differ. With --set batching.storage=DIR simulate and
    run take what they need from DIR, and add what is missing.

    batching.kind is seeded (fan-outs 25, 10) or sampled (15, 10, 5); batching.fanouts counts from the seed vertices and
    has one entry a layer; batching.batch_size is that of a rank (batching.global_batch: of all ranks, divided evenly);
    batching.split is even (all ranks train on equally many vertices) or local (each on those that it owns);
    batching.last=drop ends an epoch when a rank has no full batch left.

    [bold]input rows[/bold]: vertices whose features a batch needs, each once.
    [bold]duplicates[/bold]: edges whose source the batch held already.
    [bold]remote[/bold]: rows that another rank owns, and must send.
    [bold]frequency[/bold]: in how many batches of one rank and epoch a remote row is needed; the higher, the
    more transfers a cache saves.

    [bold]--hot-rows 0,1000,10000[/bold] reports, without sampling anew, what is pulled from other hosts when each rank
    keeps that many of the rows that its batches of an epoch need most often, by rank pair with --json. Ranks of a host
    share the memory of its rows, so it takes several hosts (--set cluster.hosts=4).
    [bold]rows pulled[/bold]: fetched for batches, because the cache does not hold them.
    [bold]rows cached[/bold]: fetched to fill the caches, anew in each epoch (placement.hot_scope=run: one cache, chosen
    from all batches, filled once).
    [bold]buffers[/bold]: this epoch's cache, the next one's (placement.hot_scope=run: the one cache), and as many
    batches as the schedule stages (schedule.kind prefetch: schedule.window; else 1).

    With placement.kind = store the fetches of placement.hot_rows are planned too, into DIR/hot-N: what each batch
    gathers, what each rank sends.
    """
    # loaded when the command runs: its help starts fast
    from simgnn.api.samples import sample
    from simgnn.cli.tables import samples

    sizes = [] if hot_rows is None else samples.hot_row_counts(hot_rows)
    loaded = opt.experiment_of(experiment, overrides, ranks=ranks, epochs=epochs, trains=False)
    report = sample(loaded, out, only or (), threads, sizes, force, Reporter(quiet=as_json))
    if as_json:
        print_json(report)
    else:
        samples.print_batches(report)
        samples.print_fetches(report)
