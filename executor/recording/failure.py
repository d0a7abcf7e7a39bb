"""Reports failures of a run: every rank writes a note of its failure, and the launcher reports the one cause."""

import json
import re
import site
import sysconfig
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn

import simgnn
from executor.recording.disk import StorageError, storage_fault
from simgnn.errors import BackendError, SimgnnError
from simgnn.policy import Policy, PolicyError, RefusedRowsError
from simgnn.record.rundir import RunDirectory
from simgnn.registry import file_of
from simgnn.tomlfile import write_atomically

SOURCE_PLACE = re.compile(r"\[[^\]]*\.(?:cc|cpp|h|cu):\d+\]\s*")
CHATTER = "Check the logs"
"""Begin of the advice at the end of Gloo's messages, which names logs that do not exist here."""
OUT_OF_MEMORY = ("MemoryError", "OutOfMemoryError", "_ArrayMemoryError")
"""Names of the out-of-memory errors of Python, torch and NumPy, recognised without loading torch."""
STORE_ERROR = "DistStoreError"
"""Name of torch's error where ranks cannot use the file through which they meet, recognised without loading torch."""
Kind = Literal["cause", "bad-rows", "short-memory", "lost-peer"]


class Note(NamedTuple):
    """A rank's report of its failure."""

    rank: int
    kind: Kind
    message: str


class LostPeerError(BackendError):
    """Raised when a collective fails because another rank is gone or silent: a consequence, not the cause."""


class BadRowsError(BackendError):
    """Raised where rows of a run have values that a policy cannot work on: the run ends as with other bad input."""

    exit_status = 2


class ShortOfMemoryError(BackendError):
    """Raised where a rank holds more than its budget, or a host lacks room for the rows of its ranks: the run ends as
    an experiment does that is predicted not to fit."""

    exit_status = 3


class NonFiniteError(BackendError):
    """Raised on all ranks alike when the loss is not finite any more."""


def raise_at(where: str, error: BaseException, passes: type[BaseException] = BackendError) -> NoReturn:
    """Raise what :func:`failure_of` returns for the error of an op, or of the choice of one."""
    found = failure_of(where, error, passes)
    raise found from error.__cause__ if found is error else error


def failure_of(where: str, error: BaseException, passes: type[BaseException] = Exception) -> BaseException:
    """Return what a rank reports of an error: its place ``where``, and the method and file of a user's own code.

    An error of the communication backend in any op or outside ops means that another rank is gone. Errors of the class
    ``passes`` without code of a user stay as they are, since they are the same on all ranks or bugs of ours."""
    message, own = _first_line(error), place_of(error)
    if not own and _is_transport(error):
        reason = message.partition(CHATTER)[0].rstrip(" .")
        return LostPeerError(
            f"{where}: lost contact with another rank ({reason}); it died, or was silent for longer than train.timeout"
        )
    if type(error).__name__ in OUT_OF_MEMORY or "can't allocate memory" in message:
        return BackendError(f"{where}: out of memory ({message}); use more ranks or narrower layers")
    unplaced = isinstance(error, passes) and not own and not isinstance(error, PolicyError)
    if unplaced or isinstance(error, KeyboardInterrupt):
        return error
    kind = BadRowsError if isinstance(error, RefusedRowsError) else BackendError
    return kind(f"{where}: {error if isinstance(error, SimgnnError) else f'{type(error).__name__}: {message}'}{own}")


def explained(root: Path, error: BaseException, launched: bool = False) -> BaseException:
    """Return the error of a rank, or why the run directory cannot be written any more: that is the cause of an error
    in writing, and may be why another rank is gone, or cannot be met. ``launched``: a launcher has read the directory
    before, so that whatever fails without it fails for want of it."""
    gone = not RunDirectory(root).plan.is_dir()
    if isinstance(error, StorageError) and not gone:
        return error
    may_be = isinstance(error, StorageError | LostPeerError) or type(error).__name__ == STORE_ERROR
    found = storage_fault(root) if may_be or (launched and gone) else ""
    return StorageError(found) if found else error


def place_of(error: BaseException) -> str:
    """Return the place in a user's own code where an error was raised; empty if it was in simgnn or in a library."""
    own = _policy_folders(Policy)
    libraries = map(Path, (*site.getsitepackages(), sysconfig.get_path("stdlib")))
    known = [Path(__file__).parents[1], Path(simgnn.__file__).parent, *libraries]
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        path = Path(frame.f_code.co_filename)
        if path.is_file() and (path.parent in own or not any(path.is_relative_to(folder) for folder in known)):
            return f" (in {frame.f_code.co_qualname}, at {path}:{line})"
    return ""


def _policy_folders(base: type[Any]) -> set[Path]:
    """Return the folders of users' policies that derive from ``base``; installed ones lie among libraries."""
    own = set() if base.__module__.startswith("simgnn.") else {Path(file_of(base)).parent}
    return own.union(*map(_policy_folders, base.__subclasses__()))


def write_failure(folder: Path, rank: int, error: BaseException) -> None:
    """Write a :class:`Note` of an error for the launcher, unless the disk is full: then the exit status says that."""
    kinds: dict[type[BaseException], Kind] = {
        LostPeerError: "lost-peer", BadRowsError: "bad-rows", ShortOfMemoryError: "short-memory"
    }  # fmt: skip
    kind: Kind = next((kind for cause, kind in kinds.items() if isinstance(error, cause)), "cause")
    with suppress(OSError):
        folder.mkdir(exist_ok=True)
        write_atomically(folder / f"rank-{rank}.failure.json", json.dumps(Note(rank, kind, str(error))._asdict()))


def read_failures(folder: Path) -> list[Note]:
    """Return the notes of all ranks, causes first."""
    notes = [Note(**json.loads(path.read_text())) for path in sorted(folder.glob("rank-*.failure.json"))]
    return sorted(notes, key=lambda note: note.kind == "lost-peer")


def clear_failures(folder: Path) -> None:
    """Remove the notes of an earlier attempt."""
    for path in folder.glob("rank-*.failure.json"):
        path.unlink(missing_ok=True)


def _is_transport(error: BaseException) -> bool:
    """Return whether an error comes from the communication backend, not from a handler's own work."""
    words = ("gloo", "connection", "timed out", "timeout", "nccl", "peer")
    return isinstance(error, RuntimeError) and any(word in str(error).lower() for word in words)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # the place in the backend's own sources helps nobody
    return SOURCE_PLACE.sub("", lines[0])[:300] if lines else type(error).__name__
