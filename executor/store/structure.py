"""The structure of a host in memory that its ranks share."""

from collections.abc import Callable

from executor.state.context import GroupHandle
from executor.store.arrays import shared_arrays
from simgnn.partition.local.serving import Serving
from simgnn.sampling.draw.parted import HostStructure


def share_structure(
    make: Callable[[], HostStructure], serving: Serving, rank: int, group: GroupHandle
) -> HostStructure:
    """The structure of this rank's host; every rank calls it. ``make``: called by the first rank of each host only.

    Raises :class:`~simgnn.errors.BackendError` where shared memory is missing or too small; on all ranks when anything
    fails on one.
    """
    host = serving.hosts[rank]
    arrays = shared_arrays(lambda: make().arrays(), serving.writer(host), group)
    return HostStructure.from_arrays(host, arrays)
