"""``simgnn export``: write a trained model as a plain PyTorch module."""

from pathlib import Path
from typing import Annotated

import typer

from simgnn.cli.options import JsonOption, RunArgument, WeightsOption, path_option
from simgnn.cli.tables.console import note, print_json


def command(
    run: RunArgument,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="pyg|torch",
            help="pyg: layers of PyTorch Geometric. torch: plain torch, nothing else to install.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, path_option("--out", "FILE.py", "Module to write; its weights go to FILE.pt.")],
    weights: WeightsOption = "last",
    force: Annotated[bool, typer.Option("--force", help="Replace files of an earlier export.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write the trained model of a run as a plain PyTorch module, to be used without simgnn.

    The module repeats what training did to graph and features, and gives the scores of the run. Its docstring shows how
    to use it. Layers of your own are copied beside it, into FILE_layers.py. Example:
    [bold]simgnn export runs/mine --to pyg --out model.py[/bold]
    """
    # loaded when the command runs: its help starts fast
    from simgnn.api.take_home import export_run, which_weights

    notes: list[str] = []
    export_run(run, to, which_weights(weights), out, force, notes.append if as_json else note)
    if as_json:
        print_json({"module": str(out), "weights": str(out.with_suffix(".pt")), "notes": notes})
