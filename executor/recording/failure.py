"""Reports failures of a run: every rank writes a note of its failure, and the launcher reports the one cause."""

import json
import re
import site
import sysconfig
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import simgnn
from simgnn.errors import BackendError, SimgnnError
from simgnn.program.kinds import GROUP_KINDS, OpKind
from simgnn.program.ops import Op
from simgnn.tomlfile import write_atomically

if TYPE_CHECKING:
    from executor.state.buffers import Now

SOURCE_PLACE = re.compile(r"\[[^\]]*\.(?:cc|cpp|h|cu):\d+\]\s*")
CHATTER = "Check the logs"
"""Begin of the advice at the end of Gloo's messages, which names logs that do not exist here."""
OUT_OF_MEMORY = ("MemoryError", "OutOfMemoryError", "_ArrayMemoryError")
"""Names of the out-of-memory errors of Python, torch and NumPy, recognised without loading torch."""
Kind = Literal["cause", "lost-peer"]


class Note(NamedTuple):
    """A rank's report of its failure."""

    rank: int
    kind: Kind
    message: str


class LostPeerError(BackendError):
    """Raised when a collective fails because another rank is gone or silent: a consequence, not the cause."""


class NonFiniteError(BackendError):
    """Raised on all ranks alike when the loss is not finite any more."""


def place_of(rank: int, now: "Now", op: str) -> str:
    """Describe where an op failed. Epochs count from 1, as in all that users read."""
    return f"rank {rank}, epoch {now.epoch + 1}, op '{op}'"


def op_failure(op: Op | None, now: "Now", rank: int, error: Exception) -> BackendError:
    """Return the error of a failed op, with its place. A failed communication means that another rank is gone."""
    if op is None:
        return BackendError(f"rank {rank}: {error}")
    where = place_of(rank, now, op.name)
    message = _first_line(error)
    if (op.kind in GROUP_KINDS or op.kind is OpKind.PEER_READ) and _is_transport(error):
        return _lost(where, message)
    if type(error).__name__ in OUT_OF_MEMORY or "can't allocate memory" in message:
        return BackendError(f"{where}: out of memory ({message}); use more ranks or narrower layers")
    return BackendError(f"{where}: {type(error).__name__}: {message}{_place(error)}")


def outside_ops(rank: int, error: Exception) -> Exception:
    """Return the error of a rank outside an op. An error of the communication backend, such as in a barrier or a sum of
    the driver's own, means that another rank is gone."""
    if isinstance(error, SimgnnError) or not _is_transport(error):
        return error
    return _lost(f"rank {rank}", _first_line(error))


def _lost(where: str, message: str) -> LostPeerError:
    reason = message.partition(CHATTER)[0].rstrip(" .")
    return LostPeerError(
        f"{where}: lost contact with another rank ({reason}); it died, or was silent for longer than train.timeout"
    )


def _place(error: Exception) -> str:
    """Return the place in a user's own code where an error was raised; empty if it was in simgnn or in a library."""
    libraries = (*site.getsitepackages(), sysconfig.get_path("stdlib"))
    known = [Path(__file__).parents[1], Path(simgnn.__file__).parent, *map(Path, libraries)]
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        path = Path(frame.f_code.co_filename)
        if path.is_file() and not any(path.is_relative_to(folder) for folder in known):
            return f" (in {frame.f_code.co_qualname}, at {path}:{line})"
    return ""


def write_failure(folder: Path, rank: int, error: BaseException) -> None:
    """Write a :class:`Note` of an error for the launcher."""
    kind: Kind = "lost-peer" if isinstance(error, LostPeerError) else "cause"
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / f"rank-{rank}.failure.json", json.dumps(Note(rank, kind, str(error))._asdict()))


def read_failures(folder: Path) -> list[Note]:
    """Return the notes of all ranks, causes first."""
    notes = [Note(**json.loads(path.read_text())) for path in sorted(folder.glob("rank-*.failure.json"))]
    return sorted(notes, key=lambda note: note.kind != "cause")


def clear_failures(folder: Path) -> None:
    """Remove the notes of an earlier attempt."""
    for path in folder.glob("rank-*.failure.json"):
        path.unlink(missing_ok=True)


def _is_transport(error: Exception) -> bool:
    """Return whether an error comes from the communication backend, not from a handler's own work."""
    words = ("gloo", "connection", "timed out", "timeout", "nccl", "peer")
    return isinstance(error, RuntimeError) and any(word in str(error).lower() for word in words)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # the place in the backend's own sources helps nobody
    return SOURCE_PLACE.sub("", lines[0])[:300] if lines else type(error).__name__
