"""The flows of the network as columns, and the paths that they take as one CSR."""

from collections.abc import Mapping

import numpy as np

from simgnn.sim.network.link_crossings import (
    FITS,
    LINK_FULL,
    Bools,
    Crossings,
    Floats,
    Ints,
    Paths,
    build,
    fits,
    join,
    remove,
)
from simgnn.sim.network.max_min import Flows


class PathTable:
    """Paths over links, each kept once, with how much of each link one unit of a flow's rate takes."""

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[int, float], ...], int] = {}
        self._fresh: list[tuple[tuple[int, float], ...]] = []
        self._arrays = Paths(np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0))

    def intern(self, shares: Mapping[int, float]) -> int:
        """Number of the path that takes ``shares`` of links (link -> share)."""
        row = tuple(sorted(shares.items()))
        if row not in self._known:
            self._known[row] = len(self._arrays.pointer) - 1 + len(self._fresh)
            self._fresh.append(row)
        return self._known[row]

    def extend(self, paths: Paths) -> int:
        """Add paths that are not looked for among those that are there; number of the first."""
        pointer, link, share = self.build()
        self._arrays = Paths(
            np.concatenate((pointer, pointer[-1] + paths.pointer[1:])),
            np.concatenate((link, paths.link)),
            np.concatenate((share, paths.share)),
        )
        return len(pointer) - 1

    def links(self, path: int) -> tuple[int, ...]:
        """Links of a path."""
        return tuple(link for link, _ in self.crossed(path))

    def crossed(self, path: int) -> tuple[tuple[int, float], ...]:
        """Links of a path, each with what one unit of a flow's rate takes of it."""
        pointer, link, share = self.build()
        part = slice(pointer[path], pointer[path + 1])
        return tuple(zip(link[part].tolist(), share[part].tolist(), strict=True))

    def build(self) -> Paths:
        """The paths seen so far."""
        fresh, self._fresh = self._fresh, []
        if fresh:
            lengths = np.array([len(row) for row in fresh], dtype=np.int64)
            link = np.array([i for row in fresh for i, _ in row], dtype=np.int64)
            share = np.array([x for row in fresh for _, x in row], dtype=np.float64)
            self.extend(Paths(np.append(0, np.cumsum(lengths)), link, share))
        return self._arrays


_COLUMNS = ("path", "weight", "cap", "remaining", "rate", "since", "born", "end", "owner", "low", "high", "ended")
_FLOATS = ("weight", "cap", "remaining", "rate")
ROOM = 64
"""Room for so many classes more than twice those that flow, and for so many of each link."""
MOST_SPARE = 4096


class FlowTable:
    """One row a class: ``weight`` flows of one path, one cap (bytes/s) and one remaining size (bytes).

    ``remaining`` holds at ``since`` (ticks); ``born`` is when the class began to share, ``end`` when it will have moved
    its bytes at its present ``rate``. ``owner``, ``low``, ``high``: flows low..high of that message batch. A class
    keeps its row until the table is laid out anew, when there is no room for those that join. ``order``: the rows of
    classes that flow, sorted by cap, equal ones as they joined.
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

    def __init__(self, links: int) -> None:
        self._links = links
        self._used = self._count = 0
        self._spare = ROOM
        self.order: Ints = np.zeros(0, dtype=np.int64)
        self._dirty: Bools = np.zeros(links, dtype=np.bool_)
        self.paths = PathTable()
        for name in _COLUMNS:
            kind = np.bool_ if name == "ended" else np.float64 if name in _FLOATS else np.int64
            setattr(self, name, np.zeros(0, dtype=kind))
        self.crossings: Crossings
        self.columns: Flows
        self._lay_out(0)

    def join(self, now: int, path: Ints, weight: Floats, cap: Floats, size: Floats, owner: int, low: Ints) -> None:
        """Append classes that begin to share now (``low``: one entry more than classes); :meth:`settle` must follow."""
        count = len(path)
        if self._count + count > len(self.path):
            self._enter()
            self._lay_out(count)
        rows = slice(self._count, self._count + count)
        fresh = (path, weight, cap, size, -1.0, now, now, now, owner, low[:-1], low[1:], False)
        for name, value in zip(_COLUMNS, fresh, strict=True):
            getattr(self, name)[rows] = value
        self._count += count

    def leave(self, classes: Ints) -> None:
        """Classes have ended."""
        self.order = remove(classes, self.order, self.ended, self._dirty, self.crossings)

    def settle(self) -> Bools:
        """Let joined classes in; returns the components that they and those that have ended change, bool [links]."""
        self._enter()
        dirty, self._dirty = self._dirty, np.zeros(self._links, dtype=np.bool_)
        return dirty

    def _enter(self) -> None:
        if self._used == self._count:
            return
        paths = self.paths.build()
        found = fits(self.path, self._used, self._count, paths, self.crossings)
        if found != FITS:
            if found == LINK_FULL:
                self._spare = min(2 * self._spare, MOST_SPARE)
            self._lay_out(0)
        self.order = join(
            self.order, self._used, self._count, self._dirty, self.path, self.weight, self.cap, paths, self.crossings
        )
        self._used = self._count

    def _lay_out(self, more: int) -> None:
        """Give what flows, and joins, rows without gaps; room for ``more``, and as many again."""
        joining = np.arange(self._used, self._count)
        rows = np.concatenate((self.order, joining))
        room = 2 * (len(rows) + more) + ROOM
        for name in _COLUMNS:
            column = getattr(self, name)
            fresh = np.zeros(room, dtype=column.dtype)
            fresh[: len(rows)] = column[rows]
            setattr(self, name, fresh)
        self.columns = Flows(*(getattr(self, name) for name in Flows._fields))
        self._used, self._count = len(self.order), len(rows)
        self.order = np.arange(self._used)
        # Links of dirty components stay dirty, whatever their component is called now.
        touched = self._dirty[self.crossings.root] if hasattr(self, "crossings") else self._dirty
        paths = self.paths.build()
        self.crossings = build(
            self.path, self.weight, self.cap, self._used, self._count, room, self._spare, paths, self._links
        )
        self._dirty = np.zeros(self._links, dtype=np.bool_)
        self._dirty[self.crossings.root[touched]] = True
