"""What a call of the feature store read and moved, counted from the tensors that were handed over."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from executor.handlers.context import Sent

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Traffic:
    """``rows_local``: rows read in place; ``rows_remote`` int64 [M]: rows that each other host held.

    ``payload``: bytes int64 [P] from this rank to each other, by class: "NAME_ids" and "NAME_rows" of the rows NAME. A
    pair with bytes is one message of its class. ``control_bytes``: of the counts that went ahead.
    """

    rows_local: int
    rows_remote: IntArray
    payload: Mapping[str, IntArray] = field(default_factory=dict)
    control_bytes: int = 0

    @property
    def sent(self) -> Sent:
        """The sums, as ops tell them."""
        total = sum(int(nbytes.sum()) for nbytes in self.payload.values())
        messages = sum(int(np.count_nonzero(nbytes)) for nbytes in self.payload.values())
        return Sent(total, 0, self.control_bytes, messages)


def pair_bytes(rows: Sequence[int], size: int, rank: int) -> IntArray:
    """Bytes int64 [P] of ``rows`` of ``size`` bytes to each rank; what stays here is not sent."""
    nbytes = np.asarray(rows, dtype=np.int64) * size
    nbytes[rank] = 0
    return nbytes


def remote_rows(part: torch.Tensor, host: int, parts: int) -> IntArray:
    """Rows int64 [M] by the partition ``part`` int64 [k] of each, those of this host left out."""
    rows = torch.bincount(part, minlength=parts).numpy()
    rows[host] = 0
    return rows
