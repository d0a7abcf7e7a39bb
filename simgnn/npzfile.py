"""Reads ``.npz`` archives and ``.npy`` arrays that may have been cut off or damaged."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

HEADER_BYTES = 128
"""Files up to this size hold no elements; an empty array cannot be memory-mapped."""


def read_npy(path: Path, *, mapped: bool = False) -> NDArray[Any]:
    """Read an ``.npy`` file without pickle; ``mapped``: as a read-only memory map. Raises ValueError with a reason."""
    try:
        mode: Literal["r"] | None = "r" if mapped and path.stat().st_size > HEADER_BYTES else None
        array = np.load(path, mmap_mode=mode, allow_pickle=False)
    except Exception as error:  # as in read_npz
        raise ValueError(str(error) or type(error).__name__) from error
    if not isinstance(array, np.ndarray):
        array.close()
        raise ValueError("it is an .npz archive, not an .npy array")
    return array


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """Read all arrays of an ``.npz`` archive without pickle. Raises ValueError with a reason if it cannot be read."""
    try:
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError("it is not an .npz archive")
        with archive:
            return {name: np.asarray(archive[name]) for name in archive.files}
    # damage makes the parser of headers raise TokenError, TypeError or OverflowError, and each way of compression a
    # kind of its own, such as LZMAError, that is derived from nothing but Exception
    except Exception as error:
        raise ValueError(str(error) or type(error).__name__) from error
