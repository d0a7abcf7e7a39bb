"""Folders that one process at a time writes to, and temporary folders that are removed when their process has ended."""

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from simgnn.errors import ConfigError

LOCK = ".lock"


@contextmanager
def locked_folder(folder: Path, option: str, otherwise: str = "name another folder") -> Iterator[None]:
    """Hold the lock of ``folder`` in a ``with`` block. A missing folder is created, and removed at the end if it is
    empty. The lock is released if the process dies. Raises :class:`ConfigError` if another process holds it; the
    message names ``option``, which named the folder, and ``otherwise``, what to do instead of waiting."""
    path, made = folder / LOCK, not folder.is_dir()
    with _held(path, option, otherwise):
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
            if made and folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()


@contextmanager
def scratch_folder(prefix: str) -> Iterator[Path]:
    """Create a temporary folder and remove it at the end of the ``with`` block. First remove the folders that killed
    processes of this user left behind, whose locks nobody holds."""
    for leftover in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with suppress(OSError):  # without a lock, or held: perhaps not ours to remove
            found = leftover.lstat()
            if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid():
                with (leftover / LOCK).open("r+") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(leftover)
    # it gets the name by which it is found only once it is locked
    made = Path(tempfile.mkdtemp(prefix=f".{prefix}"))
    with (made / LOCK).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        folder = made.rename(made.with_name(made.name.removeprefix(".")))
        try:
            yield folder
        finally:
            shutil.rmtree(folder)


@contextmanager
def _held(path: Path, option: str, otherwise: str) -> Iterator[None]:
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("a+")
        except FileNotFoundError:
            continue  # its last holder removed the folder
        except OSError as error:
            raise ConfigError(
                f"{option}: {path.parent} cannot be written ({error.strerror}); expected a folder where files can be "
                "made: name another"
            ) from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                holder = file.read().strip()
                raise ConfigError(
                    f"{option}: {path.parent} is in use by {f'process {holder}' if holder else 'another process'}; "
                    f"wait for it, or {otherwise}"
                ) from None
            try:
                if not os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    continue
            except FileNotFoundError:
                continue  # its last holder has removed it: whoever comes next would lock another one
            file.truncate(0)
            with suppress(OSError):  # no room: others are not told who holds the lock
                os.write(file.fileno(), str(os.getpid()).encode())
            yield
            return
