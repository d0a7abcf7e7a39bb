"""``simgnn export``: write a trained model as a plain PyTorch module, or a program as execution traces."""

from pathlib import Path
from typing import Annotated

import typer

from simgnn.cli.options import JsonOption, RunArgument, WeightsOption, path_option
from simgnn.cli.tables.console import note, print_json

CHAKRA = "chakra"


def command(
    run: RunArgument,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="pyg|torch|chakra",
            help="pyg: layers of PyTorch Geometric. torch: plain torch, nothing else to install. chakra: execution "
            "traces of the program, which network simulators replay.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path, path_option("--out", "FILE.py|DIR", "Module to write, its weights go to FILE.pt; of chakra a new folder.")
    ],
    weights: WeightsOption = "last",
    epoch: Annotated[
        int | None,
        typer.Option("--epoch", metavar="N", min=1, help="Of chakra: the epoch; default: a typical one.",
                     show_default=False),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files of an earlier export.")] = False,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Write the trained model of a run as a plain PyTorch module, to be used without simgnn.

    The module repeats what training did to graph and features, and gives the scores of the run. Its docstring shows how
    to use it. Layers of your own are copied beside it, into FILE_layers.py. Example:
    [bold]simgnn export runs/mine --to pyg --out model.py[/bold]

    With --to chakra, of a prediction or a run: one epoch of its program with its times, a file for each rank, as
    MLCommons Chakra describes them (docs/explain.md). Example:
    [bold]simgnn export runs/mine --to chakra --out traces[/bold]
    """
    if to == CHAKRA:
        _export_traces(run, out, weights, epoch, force, as_json)
        return
    # loaded when the command runs: its help starts fast
    from simgnn.api.take_home import export_run, which_weights
    from simgnn.errors import ConfigError

    if epoch is not None:
        raise ConfigError(f"--epoch: got {epoch} with --to {to}, expected it with --to chakra alone; leave it out")
    notes: list[str] = []
    export_run(run, to, which_weights(weights), out, force, notes.append if as_json else note)
    if as_json:
        print_json({"module": str(out), "weights": str(out.with_suffix(".pt")), "notes": notes})


def _export_traces(run: Path, out: Path, weights: str, epoch: int | None, force: bool, as_json: bool) -> None:
    # loaded when the command runs: its help starts fast
    from simgnn.api.reports.execution_traces import export_traces
    from simgnn.errors import ConfigError

    if weights != "last" or force:
        raise ConfigError("--weights, --force: got them with --to chakra, which has no weights and needs a new folder")
    found = export_traces(run, out, epoch)
    if as_json:
        print_json({"files": list(map(str, found.files)), "epoch": found.epoch, "nodes": found.nodes})
        return
    note(f"wrote epoch {found.epoch} of {len(found.files)} ranks ({found.nodes:,} nodes) to {out}")
