"""Flows of the network as columns, the paths that they take, and which class of flows crosses which link.

A class is a set of equal flows that begin together. The cost of adding one grows with its links, not with the number of
classes, as each link has spare places. When they are used up, :func:`build` rebuilds everything without ended classes.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numba as nb
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
LINKS = 4
"""Number of links for which each class that may still join has room."""

FITS, LINK_FULL, FULL = 0, 1, 2


class Crossings(NamedTuple):
    """``first`` [classes + 1], ``link``, ``take``: links of each class, and what one unit of its rate takes of each.

    ``begin`` [links + 1], ``length`` [links], ``crossing``: classes on each link (ended ones too), by cap and join.
    ``root`` [links]: the lowest link of each link's component. A component is links that classes connect, ended ones
    included. ``load``, ``rising`` [links]: sum of ``take`` and number of the classes that have not ended.
    """

    first: Ints
    link: Ints
    take: Floats
    begin: Ints
    length: Ints
    crossing: Ints
    root: Ints
    load: Floats
    rising: Ints


class Paths(NamedTuple):
    """Paths as a CSR: ``link[pointer[p]:pointer[p + 1]]`` are the links of path p, ``share`` what it takes of each."""

    pointer: Ints
    link: Ints
    share: Floats


@nb.njit(cache=True)
def build(
    path: Ints, weight: Floats, cap: Floats, used: int, count: int, room: int, spare: int, paths: Paths, links: int
) -> Crossings:
    """Build the :class:`Crossings` of the first ``used`` classes, sorted by cap, with places for ``room`` classes.

    Each link has room for twice as many classes as cross it among the first ``count``, and ``spare`` more.
    """
    length = np.zeros(links, dtype=np.int64)
    total = 0
    for k in range(count):
        for origin in range(paths.pointer[path[k]], paths.pointer[path[k] + 1]):
            length[paths.link[origin]] += 1
            total += 1
    begin = np.zeros(links + 1, dtype=np.int64)
    for i in range(links):
        begin[i + 1] = begin[i] + 2 * length[i] + spare
        length[i] = 0
    found = Crossings(
        np.zeros(room + 1, dtype=np.int64),
        np.empty(2 * total + LINKS * room, dtype=np.int64),
        np.empty(2 * total + LINKS * room),
        begin,
        length,
        np.empty(begin[links], dtype=np.int64),
        np.arange(links),
        np.zeros(links),
        np.zeros(links, dtype=np.int64),
    )
    insert(path, weight, cap, 0, used, paths, found)
    return found


@nb.njit(cache=True)
def fits(path: Ints, used: int, count: int, paths: Paths, crossings: Crossings) -> int:
    """Check that there is room for the classes numbered ``used`` to ``count`` - 1; return FITS, LINK_FULL or FULL."""
    more = np.zeros(crossings.length.size, dtype=np.int64)
    total = crossings.first[used]
    for k in range(used, count):
        for origin in range(paths.pointer[path[k]], paths.pointer[path[k] + 1]):
            here = paths.link[origin]
            more[here] += 1
            total += 1
            if crossings.begin[here] + crossings.length[here] + more[here] > crossings.begin[here + 1]:
                return LINK_FULL
    return FITS if count < crossings.first.size and total <= crossings.link.size else FULL


@nb.njit(cache=True)
def insert(path: Ints, weight: Floats, cap: Floats, used: int, count: int, paths: Paths, crossings: Crossings) -> None:
    """Add the classes numbered ``used`` to ``count`` - 1. There must be room for them."""
    first, link, take, begin, length, crossing, root, load, rising = crossings
    for k in range(used, count):
        at = first[k]
        for origin in range(paths.pointer[path[k]], paths.pointer[path[k] + 1]):
            here = paths.link[origin]
            link[at] = here
            take[at] = weight[k] * paths.share[origin]
            load[here] += take[at]
            rising[here] += 1
            place = begin[here] + length[here]
            while place > begin[here] and cap[crossing[place - 1]] > cap[k]:
                crossing[place] = crossing[place - 1]
                place -= 1
            crossing[place] = k
            length[here] += 1
            a, b = link[first[k]], here
            while root[a] != a:
                a = root[a]
            while root[b] != b:
                b = root[b]
            root[max(a, b)] = min(a, b)
            at += 1
        first[k + 1] = at
    for i in range(root.size):
        root[i] = root[root[i]]  # roots are lower than what hangs on them, so theirs are final


@nb.njit(cache=True)
def join(
    order: Ints, used: int, count: int, dirty: Bools, path: Ints, weight: Floats, cap: Floats, paths: Paths,
    crossings: Crossings,
) -> Ints:  # fmt: skip
    """Add the classes numbered ``used`` to ``count`` - 1 (room: see :func:`fits`); set ``dirty`` for their components.

    Returns ``order`` with the new classes merged in: sorted by cap, equal ones in the order in which they joined.
    """
    insert(path, weight, cap, used, count, paths, crossings)
    for i in range(dirty.size):
        if dirty[i]:
            dirty[crossings.root[i]] = True
    for k in range(used, count):
        dirty[crossings.root[crossings.link[crossings.first[k]]]] = True
    fresh = np.arange(used, count)
    sort_by(fresh, cap)
    merged = np.empty(order.size + fresh.size, dtype=np.int64)
    a = b = 0
    for i in range(merged.size):
        if b == fresh.size or (a < order.size and cap[order[a]] <= cap[fresh[b]]):
            merged[i] = order[a]
            a += 1
        else:
            merged[i] = fresh[b]
            b += 1
    return merged


@nb.njit(cache=True)
def sort_by(classes: Ints, value: Floats | Ints) -> None:
    """Sort classes by a value, stably, in place. (Numba takes seconds to compile np.argsort, and these are few.)"""
    other = classes.copy()
    width = 1
    while width < classes.size:
        for low in range(0, classes.size, 2 * width):
            middle, high = min(low + width, classes.size), min(low + 2 * width, classes.size)
            a, b = low, middle
            for i in range(low, high):
                if b == high or (a < middle and value[classes[a]] <= value[classes[b]]):
                    other[i] = classes[a]
                    a += 1
                else:
                    other[i] = classes[b]
                    b += 1
        classes[:] = other
        width *= 2


@nb.njit(cache=True)
def remove(classes: Ints, order: Ints, ended: Bools, dirty: Bools, crossings: Crossings) -> Ints:
    """Mark classes as ended and their components as changed (``dirty``). Return ``order`` without these classes."""
    first, link, take = crossings.first, crossings.link, crossings.take
    for k in classes:
        ended[k] = True
        dirty[crossings.root[link[first[k]]]] = True
        for q in range(first[k], first[k + 1]):
            crossings.load[link[q]] -= take[q]
            crossings.rising[link[q]] -= 1
    left = np.empty(order.size - classes.size, dtype=np.int64)
    count = 0
    for k in order:
        if not ended[k]:
            left[count] = k
            count += 1
    return left


class Flows(NamedTuple):
    """The columns of a :class:`FlowTable`, one row for each class: ``weight`` flows with one path, cap (bytes/s) and
    remaining size (bytes).

    ``remaining``: bytes at ``since`` (ticks); ``born``: when the class began to share; ``end``: when it ends at its
    current ``rate`` (bytes/s). Its flows are number ``low`` to ``high`` - 1 of the message batch ``owner``.
    """

    path: Ints
    weight: Floats
    cap: Floats
    remaining: Floats
    rate: Floats
    since: Ints
    born: Ints
    end: Ints
    owner: Ints
    low: Ints
    high: Ints
    ended: Bools


class PathTable:
    """Paths over links, each stored once, with how much of each link one unit of a flow's rate takes."""

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[int, float], ...], int] = {}
        self._fresh: list[tuple[tuple[int, float], ...]] = []
        self._arrays = Paths(np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0))

    def intern(self, shares: Mapping[int, float]) -> int:
        """Return the number of the path that takes ``shares`` of links (link -> share); add the path if it is new."""
        row = tuple(sorted(shares.items()))
        if row not in self._known:
            self._known[row] = len(self._arrays.pointer) - 1 + len(self._fresh)
            self._fresh.append(row)
        return self._known[row]

    def extend(self, paths: Paths) -> int:
        """Add paths without a search for equal ones; return the number of the first."""
        pointer, link, share = self.build()
        self._arrays = Paths(
            np.concatenate((pointer, pointer[-1] + paths.pointer[1:])),
            np.concatenate((link, paths.link)),
            np.concatenate((share, paths.share)),
        )
        return len(pointer) - 1

    def crossed(self, path: int) -> tuple[tuple[int, float], ...]:
        """Links of a path, each with how much of it one unit of a flow's rate takes."""
        pointer, link, share = self.build()
        part = slice(pointer[path], pointer[path + 1])
        return tuple(zip(link[part].tolist(), share[part].tolist(), strict=True))

    def build(self) -> Paths:
        """Return all paths added so far, in CSR form."""
        fresh, self._fresh = self._fresh, []
        if fresh:
            lengths = np.array([len(row) for row in fresh], dtype=np.int64)
            link = np.array([i for row in fresh for i, _ in row], dtype=np.int64)
            share = np.array([x for row in fresh for _, x in row], dtype=np.float64)
            self.extend(Paths(np.append(0, np.cumsum(lengths)), link, share))
        return self._arrays


ROOM = 64
"""Number of spare rows beyond twice the flowing classes, and of spare places for each link."""
MOST_SPARE = 4096


class FlowTable:
    """Classes of flows, one row each. A class keeps its row until the table is rebuilt because there is no room for new
    classes. ``order``: rows of the flowing classes, sorted by cap, equal ones in the order in which they joined."""

    crossings: Crossings

    def __init__(self, links: int) -> None:
        self._links = links
        self._used = self._count = 0
        self._spare = ROOM
        self.order: Ints = np.zeros(0, dtype=np.int64)
        self._dirty: Bools = np.zeros(links, dtype=np.bool_)
        self.paths = PathTable()
        kinds: list[Any] = [np.int64, *[np.float64] * 4, *[np.int64] * 6, np.bool_]
        self.columns = Flows(*(np.zeros(0, dtype=kind) for kind in kinds))
        self._lay_out(0)

    def join(self, now: int, path: Ints, weight: Floats, cap: Floats, size: Floats, owner: int, low: Ints) -> None:
        """Append classes of flows that begin now; ``low`` [n + 1]: bounds of their flows. Call :meth:`settle` after."""
        count = len(path)
        if self._count + count > len(self.columns.path):
            self._enter()
            self._lay_out(count)
        rows = slice(self._count, self._count + count)
        fresh: tuple[Any, ...] = (path, weight, cap, size, -1.0, now, now, now, owner, low[:-1], low[1:], False)
        for column, value in zip(self.columns, fresh, strict=True):
            column[rows] = value
        self._count += count

    def leave(self, classes: Ints) -> None:
        """Remove classes that have ended."""
        self.order = remove(classes, self.order, self.columns.ended, self._dirty, self.crossings)

    def settle(self) -> Bools:
        """Insert appended classes. Returns bool [links], true at the ``root`` of components with new or ended ones."""
        self._enter()
        dirty, self._dirty = self._dirty, np.zeros(self._links, dtype=np.bool_)
        return dirty

    def _enter(self) -> None:
        if self._used == self._count:
            return
        path, weight, cap, paths = *self.columns[:3], self.paths.build()
        found = fits(path, self._used, self._count, paths, self.crossings)
        if found != FITS:
            if found == LINK_FULL:
                self._spare = min(2 * self._spare, MOST_SPARE)
            self._lay_out(0)
            path, weight, cap = self.columns[:3]
        self.order = join(self.order, self._used, self._count, self._dirty, path, weight, cap, paths, self.crossings)
        self._used = self._count

    def _lay_out(self, more: int) -> None:
        """Rebuild the table without ended classes, with twice the rows that the others and ``more`` new ones need."""
        joining = np.arange(self._used, self._count)
        rows = np.concatenate((self.order, joining))
        room = 2 * (len(rows) + more) + ROOM
        columns: list[Any] = [np.zeros(room, dtype=column.dtype) for column in self.columns]
        for fresh, column in zip(columns, self.columns, strict=True):
            fresh[: len(rows)] = column[rows]
        self.columns = Flows(*columns)
        self._used, self._count = len(self.order), len(rows)
        self.order = np.arange(self._used)
        # Links of dirty components stay dirty, whatever their component is called now.
        touched = self._dirty[self.crossings.root] if hasattr(self, "crossings") else self._dirty
        path, weight, cap, paths = *self.columns[:3], self.paths.build()
        self.crossings = build(path, weight, cap, self._used, self._count, room, self._spare, paths, self._links)
        self._dirty = np.zeros(self._links, dtype=np.bool_)
        self._dirty[self.crossings.root[touched]] = True
