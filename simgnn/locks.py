"""A folder that one process at a time writes to, and one that goes with its process."""

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from simgnn.errors import ConfigError

LOCK = ".lock"


@contextmanager
def locked_folder(folder: Path, option: str, otherwise: str = "name another folder") -> Iterator[None]:
    """Hold ``folder``, which is made where it is not there, and removed again where nothing was put into it.

    The lock ends with the process that holds it, however it ends. Raises :class:`ConfigError` where another process
    holds it; ``option`` is what named the folder, ``otherwise`` what to do if not wait, for the message.
    """
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
    """A temporary folder that is removed in the end. Those of processes that were killed are removed first: they are
    this user's, and their lock is held by nobody."""
    _sweep(prefix)
    # it gets the name by which it is found only once it is locked
    made = Path(tempfile.mkdtemp(prefix=f".{prefix}"))
    with (made / LOCK).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        folder = made.rename(made.with_name(made.name.removeprefix(".")))
        try:
            yield folder
        finally:
            shutil.rmtree(folder)


def _sweep(prefix: str) -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        try:
            found = folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
                continue
            with (folder / LOCK).open("r+") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
        except OSError:  # without a lock, or held: perhaps not ours to remove
            continue


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
                raise ConfigError(_in_use(path, file, option, otherwise)) from None
            if not _is(file, path):
                continue  # its last holder has removed it: whoever comes next would lock another one
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield
            return


def _is(file: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _in_use(path: Path, file: IO[str], option: str, otherwise: str) -> str:
    file.seek(0)
    holder = file.read().strip()
    return (
        f"{option}: {path.parent} is in use by {f'process {holder}' if holder else 'another process'}; wait for it, or "
        f"{otherwise}"
    )
