"""Choose the bits of groups of messages: small errors in what receivers compute, against a short slowest message.

The variance of a group is ``beta / (2**bits - 1)**2``. With its share of what it is if all groups have the fewest bits,
and the share of the time of the slowest message in what it is if all have the most, the solver minimises

    weight x variance + (1 - weight) x time

Beyond a bound on the time, messages do not depend on one another: within it each takes, one after the other, the
upgrade of a group to its next number of bits that lowers variance the most for its bytes. The bounds that matter are
the times after each upgrade of each message. Source of the objective: AdaQP (Wan, Zhao and Wu, MLSys 2023), which calls
an integer program. The method is our own: within a message it misses the optimum by less than one group.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numba import njit
from numpy.typing import NDArray

from simgnn.program.sizes import IntArray

Floats = NDArray[np.float64]
TRIED_BOUNDS = 32
"""How many of the best bounds on the time are tried with what still fits into messages that an upgrade was too large
for."""


@dataclass(frozen=True)
class Links:
    """The time of a message on each link, [links]: seconds a byte, and seconds a message."""

    byte_s: Floats
    message_s: Floats

    def times(self, nbytes: Floats | IntArray) -> Floats:
        """Seconds of a message of ``nbytes`` [.., links] on each link."""
        return np.asarray(self.byte_s * nbytes + self.message_s)


@dataclass(frozen=True)
class Groups:
    """Groups of rows in the messages of one exchange. ``beta`` float64 [G]: variance of a group if a row's range were
    one step; ``rows`` int64 [G]; ``link`` int64 [G]: the link of its message. ``bits``: the numbers of bits to choose
    from, ascending; ``row_bytes``: bytes of a row with each of them."""

    beta: Floats
    rows: IntArray
    link: IntArray
    links: Links
    bits: Sequence[int]
    row_bytes: Sequence[int]

    @cached_property
    def shares(self) -> Floats:
        """The variance of a group of beta 1 with each number of bits."""
        return np.array([1 / (2**bits - 1) ** 2 for bits in self.bits])

    def message_bytes(self, chosen: IntArray) -> IntArray:
        """Bytes on each link, int64 [links]; ``chosen`` int64 [G]: positions in ``bits``."""
        nbytes = self.rows * np.asarray(self.row_bytes, dtype=np.int64)[chosen]
        return np.bincount(self.link, nbytes, minlength=len(self.links.byte_s)).astype(np.int64)

    def variance(self, chosen: IntArray) -> float:
        """Variance of all groups together."""
        return float(np.sum(self.beta * self.shares[chosen]))

    def slowest_s(self, chosen: IntArray) -> float:
        """Seconds of the slowest message."""
        used = np.unique(self.link)
        return float(self.links.times(self.message_bytes(chosen))[used].max(initial=0.0))

    @cached_property
    def bounds(self) -> tuple[float, float]:
        """The largest variance, and the time of the slowest message with most bits."""
        fewest = np.zeros(len(self.beta), dtype=np.int64)
        return self.variance(fewest), self.slowest_s(fewest + len(self.bits) - 1)

    def objective(self, chosen: IntArray, weight: float) -> float:
        """What the solver minimises; ``weight`` is that of the variance, 0 to 1."""
        variance, slowest = self.bounds
        of_variance = self.variance(chosen) / variance if variance else 0.0
        return weight * of_variance + (1 - weight) * (self.slowest_s(chosen) / slowest if slowest else 0.0)


def choose_bits(groups: Groups, weight: float) -> NDArray[np.uint8]:
    """Return the bits of each group, uint8 [G]: a pure function, never worse than equal bits for all groups."""
    count = len(groups.beta)
    if not count:
        return np.empty(0, dtype=np.uint8)
    upgrades = _Upgrades(groups)
    found = [upgrades.within(bound) for bound in upgrades.best_bounds(weight)]
    found += [np.full(count, level, dtype=np.int64) for level in range(len(groups.bits))]
    rated = [(groups.objective(chosen, weight), groups.slowest_s(chosen), place) for place, chosen in enumerate(found)]
    return np.asarray(groups.bits, dtype=np.uint8)[found[min(rated)[2]]]


class _Upgrades:
    """All steps of groups to the next number of bits that lower variance, by link, then those of the largest drop of
    variance a byte first. That drop shrinks with each step of a group, so that its steps are in order."""

    def __init__(self, groups: Groups) -> None:
        self.groups = groups
        steps = len(groups.bits) - 1
        count, fewer = len(groups.beta), np.asarray(groups.row_bytes, dtype=np.int64)
        group, level = np.tile(np.arange(count), steps), np.repeat(np.arange(1, steps + 1), count)
        drop = groups.beta[group] * (groups.shares[level - 1] - groups.shares[level])
        more = groups.rows[group] * (fewer[level] - fewer[level - 1])
        gain = np.divide(drop, more, out=np.full(len(drop), np.inf), where=more > 0)
        order = np.lexsort((group, level, -gain, groups.link[group]))
        order = order[drop[order] > 0]
        self.group, self.level, self.drop, self.more = group[order], level[order], drop[order], more[order]
        self.link = groups.link[self.group]
        self.least = groups.message_bytes(np.zeros(count, dtype=np.int64))

    def best_bounds(self, weight: float) -> list[float]:
        """The bounds on the time of a message with the least objective, those first, of all that could matter."""
        groups, links = self.groups, self.groups.links
        variance, slowest = groups.bounds
        before = np.cumsum(self.more) - self.more
        first = np.searchsorted(self.link, self.link, side="left")
        nbytes = self.least[self.link] + before - before[first] + self.more
        times = links.byte_s[self.link] * nbytes + links.message_s[self.link]
        order = np.argsort(times, kind="stable")
        ended, dropped = times[order], np.concatenate([[0.0], np.cumsum(self.drop[order])])
        start = groups.slowest_s(np.zeros(len(groups.beta), dtype=np.int64))
        bounds = np.unique(np.concatenate([[start], ended[ended > start]]))
        left = variance - dropped[np.searchsorted(ended, bounds, side="right")]
        of_variance = left / variance if variance else np.zeros_like(left)
        rated = weight * of_variance + (1 - weight) * (bounds / slowest if slowest else 0 * bounds)
        return [float(bound) for bound in bounds[np.lexsort((bounds, rated))][:TRIED_BOUNDS]]

    def within(self, bound: float) -> IntArray:
        """Positions in the numbers of bits, int64 [G], with which no message takes longer than ``bound``."""
        links, chosen = self.groups.links, np.zeros(len(self.groups.beta), dtype=np.int64)
        _upgrade(
            self.group, self.level, self.link, self.more, links.byte_s, links.message_s,
            bound * (1 + 1e-12), chosen, self.least.copy(),
        )  # fmt: skip
        return chosen


@njit(nogil=True, cache=True)
def _upgrade(group, level, link, more, byte_s, message_s, bound, chosen, nbytes):  # type: ignore[no-untyped-def]
    """Take each upgrade whose message still ends within ``bound``; changes ``chosen`` and ``nbytes``."""
    for place in range(len(group)):
        one, on = group[place], link[place]
        if chosen[one] == level[place] - 1 and byte_s[on] * (nbytes[on] + more[place]) + message_s[on] <= bound:
            chosen[one] = level[place]
            nbytes[on] += more[place]
