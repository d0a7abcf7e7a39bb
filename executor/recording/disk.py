"""Reports a run directory that cannot be written any more: its disk is full, or it was deleted during the run."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from simgnn.errors import BackendError
from simgnn.outputs import free_room
from simgnn.record.rundir import RunDirectory

LATEST = "latest.json"
"""Name of the file that names the last complete checkpoint."""
ALMOST_FULL_BYTES = 1 << 20
"""Free bytes below which a run that broke off says that its disk is full."""


class StorageError(BackendError):
    """Raised where a file of the run directory cannot be written."""


@contextmanager
def writing(path: Path, draft: Path | None = None, own: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Raise :class:`StorageError` if the block, which writes ``path``, fails for any reason of the file system. Then
    its ``draft`` is removed. ``own``: errors by which a library reports a full disk, beside OSError."""
    failures: tuple[type[Exception], ...] = (OSError, *own)
    try:
        yield
    except failures as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        message = f"{path} cannot be written ({reason}); {free_room(path)}"
        if draft is not None:
            with suppress(OSError):
                draft.unlink()
        raise StorageError(message) from error


def storage_fault(root: Path) -> str:
    """Return why nothing can be written into the run directory ``root``, or "" if it can."""
    if not RunDirectory(root).plan.is_dir():
        return f"the run directory {root} is gone: it was deleted, moved or unmounted while the run trained"
    with suppress(OSError):
        if shutil.disk_usage(root).free < ALMOST_FULL_BYTES:
            return f"the disk of the run directory {root} is full; {free_room(root)}"
    return ""


def check_run_directory(root: Path) -> None:
    """Raise :class:`StorageError` if the run directory is gone, before anything creates parts of it anew."""
    if not RunDirectory(root).plan.is_dir():
        raise StorageError(storage_fault(root))


def remedy(checkpoints: Path) -> str:
    """Return how to go on with a run that broke off, whose checkpoints are in the folder ``checkpoints``."""
    if (checkpoints / LATEST).is_file():
        return "Go on from its last checkpoint with --resume."
    return "It has no checkpoint (train.checkpoint_every); start it again."
