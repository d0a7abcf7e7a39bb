"""Takes the trained model of a run out of simgnn, for ``simgnn export``."""

from collections.abc import Callable
from pathlib import Path

from simgnn.cli.executor_process import start_executor
from simgnn.errors import ConfigError
from simgnn.outputs import check_output_file
from simgnn.record.trained import Which, open_trained

MODULE = ".py"


def which_weights(text: str) -> Which:
    """Return the weights that ``--weights`` names. Raises :class:`ConfigError` for another word."""
    if text not in ("last", "best"):
        raise ConfigError(
            f"--weights: got '{text}', expected last or best (the epoch with the best validation accuracy)"
        )
    return "last" if text == "last" else "best"


def export_run(run: Path, target: str, which: Which, out: Path, force: bool, tell: Callable[[str], None]) -> None:
    """Write the trained model of a finished run as a plain PyTorch module ``out``, with its weights beside it.

    ``target``: "pyg" or "torch"; ``tell`` is called with sentences for the user. Raises :class:`ConfigError` for a run
    without the model, and for an ``out`` that is no Python file or exists, unless ``force`` is set."""
    if target not in ("pyg", "torch"):
        raise ConfigError(f"--to: got '{target}', expected pyg (layers of PyTorch Geometric) or torch (plain torch)")
    check_output_file(out, "--out")
    if out.suffix != MODULE or not out.stem.isidentifier():
        raise ConfigError(f"--out: got {out}, expected a Python module to write, such as {out.with_name('model.py')}")
    trained = open_trained(run, which)
    files = [out, out.with_suffix(".pt")]
    files += [out.with_name(f"{out.stem}_layers.py")] if trained.described.own_layers is not None else []
    taken = [str(file) for file in files if file.exists()]
    if taken and not force:
        raise ConfigError(f"--out: {', '.join(taken)} exists already; name another file, or replace it with --force")
    arguments = ["--to", target, "--weights", which, "--out", str(out)]
    start_executor(run, arguments, tell, command="export")
