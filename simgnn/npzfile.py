"""Reads ``.npz`` archives and ``.npy`` arrays that may have been cut off or damaged, or may be hostile."""

import math
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from simgnn.memory import GIB, check_memory
from simgnn.outside import check_regular, reason_of
from simgnn.progress import CountedFile

HEADER_BYTES = 128
"""Files up to this size hold no elements; an empty array cannot be memory-mapped."""
MOST_RATIO = 300
"""Times its packed size that a large archive may have when it is unpacked; arrays of data reach some tens."""
LARGE_BYTES = 2**28
"""Unpacked size up to which an archive may be packed as tightly as it likes."""
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def read_npy(path: Path, *, mapped: bool = False) -> NDArray[Any]:
    """Read an ``.npy`` file without pickle; ``mapped``: as a read-only memory map. Raises ValueError with a reason,
    also where its header declares more than it holds, before memory is taken."""
    try:
        check_regular(path)
        # a map is refused where the file is too short for it
        mode: Literal["r"] | None = "r" if path.stat().st_size > HEADER_BYTES else None
        array = np.load(path, mmap_mode=mode, allow_pickle=False)
    except Exception as error:  # as in read_npz
        raise ValueError(reason_of(error)) from error
    if not isinstance(array, np.ndarray):
        array.close()
        raise ValueError("it is an .npz archive, not an .npy array")
    if mapped or mode is None:
        return array
    check_memory(array.nbytes, f"{path}: reading it", "use a machine with more memory")
    return np.array(array)


def npy_is_whole(path: Path) -> bool:
    """Return whether an ``.npy`` file is as long as its header declares. Raises ValueError for a file that is none."""
    array = read_npy(path, mapped=True)
    held = path.stat().st_size
    return array.offset + array.nbytes == held if isinstance(array, np.memmap) else held <= HEADER_BYTES


def read_npz(path: Path, report: Callable[[int], Any] = lambda done: None) -> dict[str, NDArray[Any]]:
    """Read all arrays of an ``.npz`` archive without pickle. ``report`` is called with how many bytes of the file have
    been read. Raises ValueError with a reason if it cannot be read, and :class:`~simgnn.errors.GraphError` if it does
    not fit into memory; both before memory is taken."""
    try:
        check_regular(path)
        if not zipfile.is_zipfile(path):
            raise ValueError("it is not an .npz archive")
        _check_archive(path)
    except Exception as error:
        raise ValueError(reason_of(error)) from error
    check_memory(_unpacked_bytes(path), f"{path}: reading it", "use a machine with more memory, or fewer features")
    try:
        with CountedFile(path, report) as stream, np.load(stream, allow_pickle=False) as archive:
            return {name: np.asarray(archive[name]) for name in archive.files}
    # damage makes the parser of headers raise TokenError, TypeError or OverflowError, and each way of compression a
    # kind of its own, such as LZMAError, that is derived from nothing but Exception
    except Exception as error:
        raise ValueError(reason_of(error)) from error


def check_unpacked(path: Path) -> None:
    """Raise ValueError if the zip archive ``path`` unpacks to so many times its size that it must be a trap."""
    unpacked, packed = _unpacked_bytes(path), path.stat().st_size
    if unpacked > max(LARGE_BYTES, MOST_RATIO * packed):
        raise ValueError(
            f"it unpacks to {unpacked / GIB:.1f} GiB, {unpacked // packed:,} times its size, as no data do; if that is "
            "meant, save it without compression"
        )


def _unpacked_bytes(path: Path) -> int:
    with zipfile.ZipFile(path) as archive:
        return sum(entry.file_size for entry in archive.infolist())


def _check_archive(path: Path) -> None:
    """Raise an exception unless the archive is of a plausible size and its arrays hold what their headers declare."""
    check_unpacked(path)
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            with archive.open(entry) as stream:
                if stream.read(len(np.lib.format.MAGIC_PREFIX)) != np.lib.format.MAGIC_PREFIX:
                    continue
                version = tuple(stream.read(2))
                if version not in _HEADERS:
                    raise ValueError(f"'{entry.filename}' has the .npy version {version}; expected 1.0 or 2.0")
                shape, _, dtype = _HEADERS[version](stream)
                held = entry.file_size - stream.tell()
                if not dtype.hasobject and math.prod(shape) * dtype.itemsize != held:
                    raise ValueError(
                        f"'{entry.filename}' declares shape {list(shape)} of {dtype}, but holds {held:,} bytes"
                    )
