"""Reading ``.npz`` archives that may have been cut off or changed on their way."""

import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

DAMAGE = (
    OSError, ValueError, EOFError, KeyError, IndexError, RuntimeError, MemoryError, struct.error, zlib.error,
    zipfile.BadZipFile,
)  # fmt: skip
"""What NumPy and its archives raise for a file that is not whole; encrypted members and sizes that no memory holds are
among them."""


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of an ``.npz``, without pickle. Raises ValueError, with the reason, where it cannot be read."""
    try:
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError("it is no archive of arrays")
        with archive:
            return {name: np.asarray(archive[name]) for name in archive.files}
    except DAMAGE as error:
        raise ValueError(str(error) or type(error).__name__) from error
