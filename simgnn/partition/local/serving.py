"""Which rank serves the rows that a host holds to which rank, and what travels between them by that rule."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from simgnn.errors import ConfigError

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Serving:
    """Partition q lies in the memory of host q, which all its ranks see. ``hosts`` [P]: the host 0..M-1 of each rank.

    Any rank of a host could serve its rows; the j-th rank of a host asks the j-th of another one (modulo how many that
    has), so that the load spreads evenly. Raises :class:`ConfigError` where a host has no rank.
    """

    hosts: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.hosts or set(self.hosts) != set(range(max(self.hosts) + 1)):
            raise ConfigError(f"cluster: got the hosts {self.hosts} of ranks; expected 0..M-1, each with a rank")

    @property
    def ranks(self) -> int:
        """P."""
        return len(self.hosts)

    @property
    def parts(self) -> int:
        """M."""
        return max(self.hosts) + 1

    @cached_property
    def members(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each host, ascending."""
        return tuple(tuple(r for r, host in enumerate(self.hosts) if host == q) for q in range(self.parts))

    def writer(self, part: int) -> int:
        """The one rank that writes to a partition's rows: the first of its host."""
        return self.members[part][0]

    @cached_property
    def servers(self) -> IntArray:
        """int64 [P, M]: the rank that serves a partition (column) to a rank (row); itself, for its own host."""
        place = [self.members[host].index(rank) for rank, host in enumerate(self.hosts)]
        return np.array([[m[place[r] % len(m)] for m in self.members] for r in range(self.ranks)], dtype=np.int64)
