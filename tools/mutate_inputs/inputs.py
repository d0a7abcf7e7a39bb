"""The valid inputs that are damaged: each a folder of small files, and the command that reads them."""

import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from simgnn.errors import SimgnnError
from tools.mutate_inputs.attempt import Limits, attempt, limit_memory

KINDS = (
    "toml", "graph", "side", "record", "checkpoint", "model", "suite", "profile", "statistics", "batches",
)  # fmt: skip
MOST_BYTES = 2 * 2**30
"""Memory that making or damaging an input may take."""
CACHE = "cache"
"""Folder beside an input's files that SIMGNN_CACHE names."""
TRAINING = """\
[train]
epochs = 2

[cluster]
hosts = 1
ranks_per_host = 2

[hardware]
profile = """
"""What all experiments have at their end, but for the name of the profile."""
EXPERIMENT = f"""\
extends = "vanilla"
name = "small"
seed = 3

[graph]
source = "synthetic:communities"
vertices = 60
edges = 240
classes = 3
feature_width = 5

[model]
hidden = 4

{TRAINING}"cpu-25gbe-4"
"""
MINI_BATCHES = f"""\
name = "batches"

[graph]
source = "synthetic:communities"
vertices = 120
edges = 600
classes = 3
feature_width = 5

[model]
layers = 2
hidden = 4

[batching]
batch_size = 12
fanouts = [3, 2]

{TRAINING}"vm-epyc-2"
"""
"""Appended to the line that names a system with mini-batches."""
GRAPH_OF_FILES = f"""\
extends = "vanilla"
name = "files"

[model]
hidden = 4

{TRAINING}"cpu-25gbe-4"

[graph]
"""


@dataclass(frozen=True)
class Input:
    """Valid files in ``folder`` and the ``command`` that reads them there. ``files``: patterns of those that may be
    damaged. ``share``: how often it is drawn, relative to others of its kind. ``unseal``: called on a damaged copy in
    half of the attempts, to renew or remove digests, which would else hide what is behind them. ``scores``: the command
    judges what it read, so that status 1 may be its verdict. ``sound``: exit status on
    undamaged files."""

    kind: str
    name: str
    folder: Path
    command: tuple[str, ...]
    files: tuple[str, ...]
    share: float = 1.0
    unseal: Callable[[Path], None] | None = None
    scores: bool = False
    sound: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)

    def damaged_files(self, folder: Path) -> list[Path]:
        """List the files of a copy that may be damaged."""
        found = {path for pattern in self.files for path in folder.glob(pattern) if path.is_file()}
        return sorted(path for path in found if path.stat().st_size)


def new_folder(root: Path, kind: str, name: str, files: Mapping[str, str | bytes]) -> Path:
    """Make the folder of an input with files of text or bytes."""
    folder = root / f"{kind}-{name}"
    for path, content in files.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content.encode() if isinstance(content, str) else content)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def environment_of(folder: Path, more: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a command in a folder: its cache lies there, and nothing outside is found."""
    outside = {"SIMGNN_DATA": str(folder / "absent"), "SIMGNN_HWPROFILES": "", "HOME": str(folder)}
    return {"SIMGNN_CACHE": str(folder / CACHE), "OMP_NUM_THREADS": "1", **outside, **more}


def carry_out(folder: Path, *commands: Sequence[str]) -> None:
    """Run commands in the folder of an input that is being made. Raises :class:`SimgnnError` if one fails."""
    for command in commands:
        output = folder.with_name(f"{folder.name}.output")
        done = attempt(command, folder, environment_of(folder, {}), output, Limits(300.0))
        if done.status != 0:
            raise SimgnnError(f"{folder.name}: simgnn {' '.join(command)} failed, so that nothing can be damaged:\n"
                              + done.output)  # fmt: skip
        output.unlink()


def in_fork(work: Callable[[], str]) -> str:
    """Call a function in a process of its own, with bounded memory and time, and return its text: it may import what
    attempts must not inherit, and read damaged files. Raises :class:`SimgnnError` with its traceback if it fails."""
    ours, theirs = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        said = b"-it was ended"
        try:
            signal.alarm(300)
            limit_memory(MOST_BYTES)
            said = b"+" + work().encode(errors="backslashreplace")
        except BaseException:
            said = b"-" + traceback.format_exc().encode(errors="backslashreplace")[-4000:]
        finally:
            os.write(theirs, said[:60_000])  # what a pipe holds
            os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as stream:
        said = stream.read()
    os.waitpid(child, 0)
    if said[:1] != b"+":
        raise SimgnnError(f"an input could not be made or damaged:\n{said[1:].decode(errors='replace')}")
    return said[1:].decode(errors="replace")
