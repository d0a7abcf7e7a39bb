"""Checks output paths before the work begins, so that no work is lost to a bad path."""

import errno
import os
import shutil
import tempfile
from pathlib import Path

from simgnn.errors import ConfigError

PATH_FAULTS = frozenset(
    {errno.EACCES, errno.EEXIST, errno.EINVAL, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOENT,
     errno.ENOTDIR, errno.ENOTEMPTY, errno.EPERM, errno.EROFS, errno.EXDEV}
)  # fmt: skip
"""OS errors that another path avoids. A full disk is not among them."""


def named_path(text: str, option: str) -> Path:
    """Return the path that a command line gives for ``option``. Raises :class:`ConfigError` if it is empty, such as an
    unset variable of a script, since an empty path would mean the current folder."""
    if not text:
        raise ConfigError(
            f"{option}: got '', expected a path: name one (. is the current folder), or leave the option out"
        )
    return Path(text)


def check_output_folder(path: Path, option: str) -> None:
    """Raise :class:`ConfigError`, which names ``option``, unless the folder ``path`` can be created or replaced."""
    _check(path, option, folder=True)


def check_output_file(path: Path, option: str) -> None:
    """Raise :class:`ConfigError`, which names ``option``, unless the file ``path`` can be written."""
    _check(path, option, folder=False)


def free_room(path: Path) -> str:
    """Describe the free space of the file system that ``path`` lies on, or would lie on."""
    there = next((folder for folder in (path, *path.parents) if folder.is_dir()), Path("/"))
    try:
        return f"{shutil.disk_usage(there).free:,} bytes are free there; make room"
    except OSError as error:
        return f"its free space is not known ({error.strerror})"


def make_parent(path: Path) -> None:
    """Create the folder that contains ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)


def _check(path: Path, option: str, folder: bool) -> None:
    try:
        if path.is_dir() and not folder:
            raise ConfigError(f"{option}: got {path}, which is a folder; expected a file: name one in it")
        if path.exists() and not path.is_dir() and folder:
            raise ConfigError(f"{option}: got {path}, which is a file; expected a folder that is new or empty")
        whole = path.resolve()
        missing, parent = whole.name, whole.parent
        while not parent.exists() and parent != parent.parent:
            missing, parent = parent.name, parent.parent
        if not parent.is_dir():
            raise ConfigError(f"{option}: got {path}, but {parent} is a file; expected a path below folders")
        # made, not asked for: permissions say nothing of /proc or of a read-only mount
        os.rmdir(tempfile.mkdtemp(prefix=f".{missing}.", dir=parent))
    except (OSError, ValueError, RuntimeError) as error:  # Python tells a zero byte and a loop of links so
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigError(
            f"{option}: got {path}, which cannot be written ({reason}); expected a path where files can be made: "
            "name another"
        ) from None
