"""Reading of files from outside: whatever goes wrong becomes an error that names the file, never a traceback."""

import json
import os
import stat
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from simgnn.errors import GraphError, SimgnnError
from simgnn.memory import check_memory

MOST_REASON = 300
"""Characters of a library's own message that are passed on: some repeat the data that they could not read."""
_KINDS = (
    (stat.S_ISDIR, "folder"),
    (stat.S_ISFIFO, "pipe"),
    (stat.S_ISSOCK, "socket"),
    (stat.S_ISCHR, "device"),
    (stat.S_ISBLK, "device"),
)


def reason_of(fault: BaseException) -> str:
    """Return the first line of an exception's message, shortened; without a message, the name of its class."""
    lines = str(fault).strip().splitlines()
    if isinstance(fault, KeyError):
        lines = [f"no entry {fault}"]
    text = lines[0] if lines else type(fault).__name__
    return text if len(text) <= MOST_REASON else text[: MOST_REASON - 3] + "..."


def fault_of_import(error: BaseException) -> str:
    """Describe what importing a user's module raised, and where: "ValueError: no such mode (/home/me/mine.py:3)"."""
    ran = [at for at in traceback.extract_tb(error.__traceback__) if at.name == "<module>"]
    at = error if isinstance(error, SyntaxError) else ran[-1] if ran else None
    where = "" if at is None else f" ({at.filename}:{at.lineno})"
    return f"{summary_of(error)}{where}"


def summary_of(error: BaseException) -> str:
    """Return the type of an error and the first line of its text."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def check_regular(path: Path, error: type[SimgnnError] = GraphError) -> None:
    """Raise ``error`` unless ``path`` is a regular file: reading a pipe or a device may never end."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as fault:  # ValueError: a zero byte in the name
        reason = (isinstance(fault, OSError) and fault.strerror) or reason_of(fault)
        raise error(f"{shown_path(path)}: cannot be read ({reason}); expected a file") from fault
    if not stat.S_ISREG(mode):
        kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "special file")
        raise error(f"{path}: is a {kind}, expected a regular file: copy the data into one")


def read_text(path: Path, error: type[SimgnnError], remedy: str) -> str:
    """Return the text (UTF-8) of a regular file that fits in memory; otherwise raise ``error``, which ends with
    ``remedy``. Raises OSError where it is missing or may not be read, and ValueError where it is no text."""
    if path.exists():
        check_regular(path, error)
        check_memory(path.stat().st_size, f"{path}: reading it", remedy, error)
    return path.read_text(encoding="utf-8")


def expanded(text: str) -> Path:
    """Return the path ``text`` with ``~`` replaced by the home folder; where there is none, as it is written."""
    try:
        return Path(text).expanduser()
    except RuntimeError:  # no user of that name
        return Path(text)


def followed(path: Path) -> Path:
    """Return ``path`` as an absolute one without links. A loop of links stays, as reading it says what is wrong."""
    return Path(os.path.realpath(path))  # Path.resolve raises a RuntimeError there


def shown_path(path: Path | str) -> str:
    """Format a path for a message: characters that cannot be printed, such as a zero byte, are escaped."""
    text = str(path)
    return text if text.isprintable() else repr(text)


@contextmanager
def outside_data(
    path: Path,
    what: str,
    *,
    remedy: str = "is it cut off? write or fetch it again",
    error: type[SimgnnError] = GraphError,
    folder: bool = False,
) -> Iterator[None]:
    """Check that ``path`` is a regular file (or a ``folder``), and turn whatever the block raises while it reads it
    into ``error``.

    The block may call any library: on damaged data these raise exceptions of many kinds. The message names the file,
    what it should have been (``what``, such as "Parquet file"), the library's reason and the ``remedy``. Errors of
    simgnn's own pass unchanged."""
    if not folder:
        check_regular(path, error)
    try:
        yield
    except SimgnnError:
        raise
    except MemoryError as fault:
        raise error(f"{path}: reading this {what} takes more memory than there is: make it smaller, or {remedy}") from (
            fault
        )
    except RecursionError as fault:
        raise error(f"{path}: not a readable {what} (nested too deep): {remedy}") from fault
    except Exception as fault:
        raise error(f"{path}: not a readable {what} ({reason_of(fault)}): {remedy}") from fault


def read_json(path: Path, what: str, *, remedy: str, error: type[SimgnnError] = GraphError) -> Any:
    """Read a JSON file. Raises ``error``, see :func:`outside_data`, also where it is missing."""
    with outside_data(path, what, remedy=remedy, error=error):
        return json.loads(read_text(path, error, remedy))
