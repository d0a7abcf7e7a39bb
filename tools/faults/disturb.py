"""Starts ``simgnn run``, disturbs it at a chosen moment, and waits until all of its processes have ended."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from simgnn.errors import BackendError
from simgnn.record.rundir import RunDirectory
from tools.faults.draw import Fault, Setup, mini_batches
from tools.list_predictions import overrides

MARK = "SIMGNN_FAULT"
"""Environment variable by whose value all processes of a run are found, whoever adopted them."""
LIMIT_S = 900.0
"""Seconds for a run that nobody disturbs."""
DISK_BYTES = 64 << 20
POLL_S = 0.0005


@dataclass(frozen=True)
class Length:
    """Epochs of a run, and epochs between checkpoints. One epoch follows the last checkpoint before the end."""

    epochs: int
    between: int

    @classmethod
    def of(cls, setup: Setup) -> "Length":
        """Return a length that takes seconds; mini-batches take longer."""
        return cls(16, 3) if mini_batches(setup.system) else cls(61, 6)


def command_of(setup: Setup, folder: Path, timeout_s: float, *more: str) -> list[str]:
    """Return the command that trains the small experiment of a system into ``folder``. ``timeout_s``: how long ranks
    wait for a silent one (``train.timeout``); ``more``: further options."""
    length = Length.of(setup)
    settings = [
        *overrides(setup.system),
        f"cluster.hosts={setup.hosts}",
        f"cluster.ranks_per_host={setup.ranks_per_host}",
        f"train.epochs={length.epochs}",
        f"train.checkpoint_every={length.between}",
        f"train.timeout={timeout_s}",
        "model.hidden=32",
    ]
    words = [word for setting in settings for word in ("--set", setting)]
    return [sys.executable, "-m", "simgnn", "run", setup.system, *words, "--out", str(folder), *more]


class Started:
    """A command under way, and every process that it started. ``screen``: file that gets what it prints."""

    def __init__(self, command: Sequence[str], screen: Path) -> None:
        self.mark, self.screen = uuid.uuid4().hex, screen
        with screen.open("wb") as file:
            self.process = subprocess.Popen(
                command, env={**os.environ, MARK: self.mark}, stdin=subprocess.DEVNULL, stdout=file, stderr=file
            )

    @property
    def said(self) -> str:
        return self.screen.read_text(encoding="utf-8", errors="replace")

    @property
    def over(self) -> bool:
        return self.process.poll() is not None

    def alive(self) -> dict[psutil.Process, dict[str, str]]:
        """Return the processes that have not ended, with their environment variables."""
        found = {}
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                variables = process.environ()  # of a zombie: none, or an error
                if variables.get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found[process] = variables
        return found

    def executor(self) -> psutil.Process:
        """Return the process that starts the ranks."""
        (found,) = (
            process for process in psutil.Process(self.process.pid).children() if "executor" in process.cmdline()
        )
        return found

    def rank(self, rank: int) -> psutil.Process:
        """Return the process of a rank."""
        (found,) = (process for process in self.executor().children() if process.environ().get("RANK") == str(rank))
        return found

    def end(self) -> None:
        """Kill all processes that are left."""
        for process in self.alive():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()

    def wait(self, limit_s: float, meanwhile: Callable[[], None] = lambda: None) -> tuple[float, list[str]]:
        """Wait until every process has ended; return the seconds, and what the processes are that were left after
        ``limit_s``, which are then killed. ``meanwhile`` is called again and again."""
        begin = time.monotonic()
        try:
            while time.monotonic() - begin < limit_s:
                meanwhile()
                # all processes are looked at only after the first one has ended: that costs processor time
                if self.over and not self.alive():
                    return time.monotonic() - begin, []
                time.sleep(0.02)
        except BaseException:
            self.end()
            raise
        left = [_described(process, variables) for process, variables in self.alive().items()]
        self.end()
        return time.monotonic() - begin, left


def _described(process: psutil.Process, variables: dict[str, str]) -> str:
    with suppress(psutil.Error):
        name = f"rank {variables['RANK']}" if "RANK" in variables else " ".join(process.cmdline()[:5])
        return f"process {process.pid} ({name}, {process.status()})"
    return f"process {process.pid}"


def reaches(started: Started, fault: Fault, folder: Path) -> bool:
    """Wait for the moment of a fault; return whether it came: whether the run did not end before."""
    length = Length.of(fault.setup)
    run, checkpoints = RunDirectory(folder), folder / "checkpoint"
    saved = list(range(length.between, length.epochs, length.between))
    middle = (0.25 + fault.share / 2) * length.epochs
    being_saved = checkpoints / f"epoch-{saved[int(fault.share * len(saved))]}"
    came: dict[str, Callable[[], bool]] = {
        "meeting": lambda: any((folder / "trace").glob(".rendezvous-*")),
        "first-epoch": run.losses.is_file,
        "middle": lambda: saved_epochs(checkpoints) >= middle,
        "checkpoint": being_saved.is_dir,
        "last-epoch": lambda: saved_epochs(checkpoints) >= saved[-1],
    }
    while not came[fault.moment]():
        if started.over:
            return False
        time.sleep(POLL_S if (folder / "trace").is_dir() else 0.02)
    time.sleep(fault.delay_s)
    return not started.over


def saved_epochs(checkpoints: Path) -> int:
    """Return the epochs that the last complete checkpoint has trained, 0 if there is none."""
    try:
        return int(json.loads((checkpoints / "latest.json").read_text())["epoch"])
    except FileNotFoundError:
        return 0


def strike(started: Started, fault: Fault, folder: Path) -> Callable[[], None]:
    """Cause a fault in a run; return what has to be done again and again until the run has ended.

    Raises :class:`psutil.NoSuchProcess` or ValueError where the process has ended meanwhile."""
    match fault.kind:
        case "rank-killed":
            started.rank(fault.rank).kill()
        case "rank-stopped":
            started.rank(fault.rank).suspend()
        case "executor-killed":
            started.executor().kill()
        case "launcher-killed":
            started.process.send_signal(signal.SIGKILL)
        case "launcher-terminated":
            started.process.send_signal(signal.SIGTERM)
        case "launcher-interrupted":
            started.process.send_signal(signal.SIGINT)
        case "directory-deleted":
            delete(folder)
        case "disk-full":
            fill(folder.parent)
            # the run makes room itself when it deletes its last but one checkpoint
            return lambda: fill(folder.parent)
    return lambda: None


def delete(folder: Path) -> None:
    """Delete a folder that others write to: until it is gone."""
    while folder.exists():
        shutil.rmtree(folder, ignore_errors=True)


def fill(folder: Path) -> None:
    """Take all room of the file system of ``folder`` with a file in it."""
    with suppress(OSError), (folder / "filler").open("ab", buffering=0) as file:
        for size in (1 << 20, 1 << 12):
            with suppress(OSError):  # no room for so much
                while file.write(bytes(size)) == size:
                    pass


def make_room(folder: Path) -> None:
    """Undo :func:`fill`."""
    (folder / "filler").unlink(missing_ok=True)


@contextmanager
def mounted(folder: Path, size_bytes: int = DISK_BYTES) -> Iterator[Path]:
    """Mount a small file system at the new folder ``folder`` in a ``with`` block.

    Raises :class:`BackendError` where that is not allowed."""
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder)]
    try:
        made = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:  # no such command
        raise BackendError(f"no file system can be mounted at {folder} ({error})") from error
    if made.returncode:
        raise BackendError(f"no file system can be mounted at {folder} ({made.stderr.strip()}); it takes root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
