"""Serving rule: which rank sends the rows of a host to which other rank, and how many rows they exchange."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from simgnn.errors import ConfigError

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Serving:
    """Serving rule between ranks. Ranks of host q share partition q in memory. ``hosts`` [P]: host 0..M-1 of each rank.

    Any rank of a host could serve its rows; the j-th rank of a host asks the j-th of another host (modulo that host's
    number of ranks), so that load spreads evenly. Raises :class:`ConfigError` when a host has no rank.
    """

    hosts: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.hosts or set(self.hosts) != set(range(max(self.hosts) + 1)):
            raise ConfigError(f"cluster: got {self.hosts} as hosts of the ranks; expected 0..M-1, each with a rank")

    @property
    def ranks(self) -> int:
        """Number of ranks P."""
        return len(self.hosts)

    @property
    def parts(self) -> int:
        """Number of hosts and partitions M."""
        return max(self.hosts) + 1

    @cached_property
    def members(self) -> tuple[tuple[int, ...], ...]:
        """Ranks of each host, ascending."""
        return tuple(tuple(r for r, host in enumerate(self.hosts) if host == q) for q in range(self.parts))

    def writer(self, part: int) -> int:
        """Return the one rank that writes a partition's rows: the first of its host."""
        return self.members[part][0]

    @cached_property
    def servers(self) -> IntArray:
        """The rank that serves a partition (column) to a rank (row), int64 [P, M]; ranks serve themselves."""
        place = [self.members[host].index(rank) for rank, host in enumerate(self.hosts)]
        return np.array([[m[place[r] % len(m)] for m in self.members] for r in range(self.ranks)], dtype=np.int64)
