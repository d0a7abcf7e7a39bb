"""Reading ``.npz`` archives that may have been cut off or changed on their way."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of an ``.npz``, without pickle. Raises ValueError, with the reason, where it cannot be read."""
    try:
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError("it is no archive of arrays")
        with archive:
            return {name: np.asarray(archive[name]) for name in archive.files}
    # no list of kinds is whole: of damage the parser of headers raises TokenError, TypeError or OverflowError, and each
    # way of compression a kind of its own, LZMAError or ZstdError, that is derived from nothing but Exception
    except Exception as error:
        raise ValueError(str(error) or type(error).__name__) from error
