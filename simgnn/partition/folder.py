"""Artefact folders: named arrays on disk that one process writes once, with digests; all processes map them."""

import errno
import fcntl
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from simgnn.errors import BackendError, ConfigError
from simgnn.graph.store import npy_header
from simgnn.hardware.profile.library import CACHE_NAME
from simgnn.npzfile import npy_is_whole, read_npy
from simgnn.outputs import check_output_folder
from simgnn.seal import file_digest, json_digest

FORMAT = 4
MANIFEST = "artifact.json"
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class CorruptArtifactError(ConfigError):
    """Raised when an artefact is incomplete, has another format, or differs from its digest."""


@dataclass(frozen=True)
class ArtifactFolder:
    """One artefact on disk: ``details`` (plain values) and named arrays. Its manifest has the SHA-256 of each array."""

    path: Path
    what: str
    details: Mapping[str, Any]
    files: Mapping[str, str]

    @classmethod
    def open(cls, path: Path, what: str) -> "ArtifactFolder":
        """Read the manifest of an artefact, not its arrays. Raises :class:`CorruptArtifactError`."""
        try:
            manifest = json.loads((path / MANIFEST).read_text())
            sealed = manifest.pop("sha256")
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise _corrupt(path, f"{path} is not a complete {what} artefact ({error})") from error
        found = manifest.get("what"), manifest.get("format")
        if found != (what, FORMAT):
            fault = f"holds a {found[0]!r} artefact of format {found[1]!r}; expected {what!r} of format {FORMAT}"
            raise _corrupt(path, f"{path} {fault}")
        if sealed != json_digest(manifest):
            raise _corrupt(path, f"{path / MANIFEST} was changed after it was written")
        return cls(path, what, manifest["details"], manifest["files"])

    def array(self, name: str) -> NDArray[Any]:
        """Return the array ``name``, memory-mapped and read-only."""
        file = self.path / f"{name}.npy"
        try:
            return np.asarray(read_npy(file, mapped=True))
        except ValueError as error:
            raise _corrupt(self.path, f"{file} cannot be read ({error})") from error

    def verify(self, prefix: str = "") -> "ArtifactFolder":
        """Check the digests of all files whose names start with ``prefix``. Raises :class:`CorruptArtifactError`."""
        for name in (name for name in self.files if name.startswith(prefix)):
            file = self.path / f"{name}.npy"
            try:
                # the length first: a file that was made longer may take hours to read
                damaged = not npy_is_whole(file) or file_digest(file) != self.files[name]
            except (OSError, ValueError) as error:
                raise _corrupt(self.path, f"{file} cannot be read ({error})") from error
            if damaged:
                raise _corrupt(self.path, f"{file} is damaged: its SHA-256 differs from the one in the manifest")
        return self


def _corrupt(path: Path, fault: str) -> CorruptArtifactError:
    return CorruptArtifactError(f"{fault}; delete {path} and make it again")


class OpenedArtifact:
    """Base class for readers of artefacts; ``what`` is the kind of artefact that a class reads."""

    what: ClassVar[str]

    def __init__(self, folder: ArtifactFolder) -> None:
        self.folder = folder

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the folder ``path`` and check its digests. Raises :class:`CorruptArtifactError`."""
        return cls(ArtifactFolder.open(path, cls.what).verify())


@dataclass
class ArtifactWriter:
    """Writes the arrays of an artefact into a temporary folder, which is renamed when the artefact is complete."""

    path: Path
    files: dict[str, str] = field(default_factory=dict)

    def array(self, name: str, array: NDArray[Any]) -> None:
        """Write one array; ``name`` may have folders ("rank-0/owned")."""
        file = self.path / f"{name}.npy"
        file.parent.mkdir(parents=True, exist_ok=True)
        np.save(file, np.ascontiguousarray(array), allow_pickle=False)
        self.files[name] = file_digest(file)

    def written(self, name: str) -> NDArray[Any]:
        """Return an array that was written already, memory-mapped and read-only."""
        return np.asarray(read_npy(self.path / f"{name}.npy", mapped=True))

    @contextmanager
    def stream(self, name: str, dtype: DTypeLike) -> Iterator[Callable[[NDArray[Any]], None]]:
        """Write a one-dimensional array in pieces: yields the function that appends a piece."""
        file = self.path / f"{name}.npy"
        file.parent.mkdir(parents=True, exist_ok=True)
        plain, length = np.dtype(dtype), 0
        with file.open("wb") as stream:
            stream.write(npy_header(plain, (0,)))

            def append(piece: NDArray[Any]) -> None:
                nonlocal length
                length += len(piece)
                stream.write(np.ascontiguousarray(piece, dtype=plain).data)

            yield append
            stream.seek(0)
            stream.write(npy_header(plain, (length,)))
        self.files[name] = file_digest(file)


def obtain(path: Path, what: str, make: Callable[[ArtifactWriter], Mapping[str, Any]]) -> tuple[ArtifactFolder, bool]:
    """Open the artefact at ``path``, or make it; the second value is True when this call made it. One process makes it
    while others wait for its lock; ``make`` writes arrays and returns the details. The folder gets its name when it is
    complete. A damaged artefact is made again, with a warning. Raises :class:`BackendError` when the disk is full."""
    if path.exists():
        with suppress(CorruptArtifactError):  # looked at again below, under the lock
            return ArtifactFolder.open(path, what).verify(), False
    with _locked(path):
        if path.exists():
            try:
                return ArtifactFolder.open(path, what).verify(), False
            except CorruptArtifactError as reason:
                logging.getLogger(__name__).warning("made again: %s", reason)
                shutil.rmtree(path)
        making = path.with_name(f".{path.name}.making")
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(parents=True)
        try:
            writer = ArtifactWriter(making)
            details = make(writer)
            manifest = {"format": FORMAT, "what": what, "details": dict(details), "files": writer.files}
            (making / MANIFEST).write_text(
                json.dumps({**manifest, "sha256": json_digest(manifest)}, indent=1, sort_keys=True)
            )
            os.replace(making, path)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            raise BackendError(
                f"{path.parent}: no room for the {what} artefact {path.name} ({error.strerror}); free disk space, or "
                f"name another folder ({CACHE_NAME}, or the option or key that named it). Finished artefacts stay valid"
            ) from error
        finally:
            shutil.rmtree(making, ignore_errors=True)
    return ArtifactFolder.open(path, what), True


def write_npz(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write a compressed ``.npz`` of arrays, completely or not at all."""
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.npz")
    try:
        np.savez_compressed(temporary, **arrays)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def cache_folder(cache: Path | None) -> Path:
    """Return the cache folder: ``cache``, else ``$SIMGNN_CACHE``, else ``~/.cache/simgnn``."""
    named = os.environ.get(CACHE_NAME)
    return cache or (Path(named).expanduser() if named else Path.home() / ".cache" / "simgnn")


def check_cache(cache: Path | None = None) -> None:
    """Check that the cache folder exists or can be made; raises :class:`ConfigError` otherwise. It may be read-only."""
    folder = cache_folder(cache)
    if not os.path.isdir(folder):
        check_output_folder(folder, CACHE_NAME)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    lock = path.with_name(f".{path.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        stream = lock.open("w")  # never deleted: a lock file that vanishes under a waiter locks nothing
    except OSError as error:
        raise ConfigError(
            f"{path.name} cannot be kept in {path.parent} ({error.strerror}); expected a writable folder: "
            f"name another ({CACHE_NAME}, or the option or key that named it)"
        ) from error
    with stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield
