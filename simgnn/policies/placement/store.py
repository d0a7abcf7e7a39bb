"""Input rows in a store: each host keeps its own in memory that its ranks share, batches pull the others."""

from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from simgnn.policies.base import Policy

MOST_HOT_ROWS = 2**31 - 1  # slots are int32


class Store(Policy):
    """Feature store (DistDGL: Zheng et al., IA3 2020) with a cache of hot rows on each rank's device (RapidGNN).

    ``hot_rows``: rows of other hosts that a rank keeps for an epoch, those that most of its batches need; 0: none. They
    are chosen from batches that are known before training begins.
    """

    slot: ClassVar[str] = "placement"

    kind: Literal["store"] = "store"
    hot_rows: int = Field(default=0, ge=0, le=MOST_HOT_ROWS, description="rows of other hosts kept on a rank's device")


def staged_rows(cached: NDArray[np.int64], largest: NDArray[np.int64], window: int) -> NDArray[np.int64]:
    """Input rows that buffers on a device hold: the cache, the next epoch's, and ``window`` staged batches.

    ``cached``: rows of the largest cache; ``largest``: input rows of the largest batch; any shapes that broadcast.
    Source: RapidGNN's device bound (specs/rapidgnn.md 6); the rows of the cache are those that it really has, which may
    be fewer than ``hot_rows``.
    """
    return 2 * cached + window * largest
