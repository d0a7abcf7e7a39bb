"""``simgnn infer``: scores and classes of all vertices, by a trained model."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from simgnn.cli.options import JsonOption, RunArgument, WeightsOption, path_option
from simgnn.cli.tables.console import Reporter, note, print_json


def command(
    run: RunArgument,
    out: Annotated[Path, path_option("--out", "FILE.parquet", "Table to write.")],
    graph: Annotated[
        str | None,
        typer.Option(
            "--graph", metavar="FILE", help="Another graph, named like graph.source. Default: the run's own.",
            show_default=False,
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Option of --graph, such as graph.vertices=100. Repeatable."),
    ] = None,
    ranks: Annotated[int, typer.Option("--ranks", metavar="P", help="Number of ranks, on this machine.")] = 1,
    weights: WeightsOption = "last",
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Write scores and classes of all vertices to a Parquet file, computed by the trained model of a run.

    Columns: vertex, class (predicted), score_0, score_1, ... With several labels a vertex, class lists those whose
    score is above 0. A model trained without labels gives vertex, embedding_0, embedding_1, ... The graph may be
    another one with as many features. Each vertex reads all its in-neighbours, also where the run trained on
    mini-batches. An earlier FILE is replaced. Example:
    [bold]simgnn infer runs/mine --ranks 2 --out scores.parquet[/bold]
    """
    # loaded when the command runs: its help starts fast
    from simgnn.api.take_home import infer_run, which_weights

    found = infer_run(run, graph, overrides or (), ranks, which_weights(weights), out, Reporter(quiet=as_json))
    if as_json:
        print_json({**asdict(found), "out": str(found.out)})
        return
    if found.accuracy is not None:
        told = ", ".join(f"{split} {value:.4f}" for split, value in found.accuracy.items() if value is not None)
        note(f"{found.metric}: {told}")
    what = "embeddings" if found.embeds else "scores"
    note(f"wrote the {what} of {found.vertices:,} vertices to {found.out}, by the weights after epoch {found.epoch}")
