"""The flows of the network as columns, and the paths that they take as one CSR."""

from collections.abc import Mapping

import numpy as np

from simgnn.sim.maxmin import Bools, Crossings, Floats, Ints, cross, end_classes


class PathTable:
    """Paths over links, each kept once. ``share`` is how much of a link one unit of a flow's rate takes."""

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[int, float], ...], int] = {}
        self._rows: list[tuple[tuple[int, float], ...]] = []
        self.pointer: Ints = np.zeros(1, dtype=np.int64)
        self.link: Ints = np.zeros(0, dtype=np.int64)
        self.share: Floats = np.zeros(0)
        self._built = 0

    def intern(self, shares: Mapping[int, float]) -> int:
        """Number of the path that takes ``shares`` of links (link -> share)."""
        row = tuple(sorted(shares.items()))
        if row not in self._known:
            self._known[row] = len(self._rows)
            self._rows.append(row)
        return self._known[row]

    def links(self, path: int) -> tuple[int, ...]:
        """Links of a path."""
        return tuple(link for link, _ in self._rows[path])

    def build(self) -> None:
        """Bring the arrays up to date with the paths seen so far."""
        fresh = self._rows[self._built :]
        if not fresh:
            return
        lengths = np.array([len(row) for row in fresh], dtype=np.int64)
        self.pointer = np.concatenate((self.pointer, self.pointer[-1] + np.cumsum(lengths)))
        self.link = np.concatenate((self.link, np.array([i for row in fresh for i, _ in row], dtype=np.int64)))
        self.share = np.concatenate((self.share, np.array([x for row in fresh for _, x in row], dtype=np.float64)))
        self._built = len(self._rows)


_COLUMNS = ("path", "weight", "cap", "remaining", "rate", "since", "born", "end", "owner", "low", "high")


class FlowTable:
    """One row a class: ``weight`` flows of one path, one cap (bytes/s) and one remaining size (bytes), sorted by cap.

    ``remaining`` holds at ``since`` (ticks); ``born`` is when the class began to share, ``end`` when it will have moved
    its bytes at its present ``rate``. ``owner``, ``low``, ``high``: flows low..high of that message batch. A class that
    has ``ended`` keeps its row until others join.
    """

    def __init__(self, links: int) -> None:
        self._links = links
        self.path: Ints = np.zeros(0, dtype=np.int64)
        self.weight: Floats = np.zeros(0)
        self.cap: Floats = np.zeros(0)
        self.remaining: Floats = np.zeros(0)
        self.rate: Floats = np.zeros(0)
        self.since: Ints = np.zeros(0, dtype=np.int64)
        self.born: Ints = np.zeros(0, dtype=np.int64)
        self.end: Ints = np.zeros(0, dtype=np.int64)
        self.owner: Ints = np.zeros(0, dtype=np.int64)
        self.low: Ints = np.zeros(0, dtype=np.int64)
        self.high: Ints = np.zeros(0, dtype=np.int64)
        self.ended: Bools = np.zeros(0, dtype=np.bool_)
        self._leaving: list[Ints] = []
        self.paths = PathTable()
        self.crossings: Crossings = self._cross()

    def join(self, now: int, path: Ints, weight: Floats, cap: Floats, size: Floats, owner: int, low: Ints) -> None:
        """Append classes that begin to share now (``low``: one entry more than classes); :meth:`settle` must follow."""
        count = len(path)
        instant = np.full(count, now, dtype=np.int64)
        fresh = (path, weight, cap, size, np.full(count, -1.0), instant, instant, instant,
                 np.full(count, owner, dtype=np.int64), low[:-1], low[1:])  # fmt: skip
        for name, column in zip(_COLUMNS, fresh, strict=True):
            setattr(self, name, np.concatenate((getattr(self, name), column)))
        self.ended = np.concatenate((self.ended, np.zeros(count, dtype=np.bool_)))

    def leave(self, classes: Ints) -> None:
        """Classes have ended; :meth:`settle` will take their load off."""
        self.ended[classes] = True
        self._leaving.append(classes)

    def settle(self) -> Bools:
        """Take the load of ended classes off, and let joined ones in; returns the dirty labels, bool [links]."""
        dirty = np.zeros(self._links, dtype=np.bool_)
        known = len(self.crossings.first) - 1
        for gone in self._leaving:
            end_classes(gone, dirty, self.crossings)
        self._leaving = []
        if known == len(self.ended):
            return dirty
        # Labels change with the crossings, so what was dirty is carried over by its links.
        touched = dirty[self.crossings.label] & (self.crossings.label >= 0)
        fresh = np.arange(len(self.ended)) >= known
        alive = np.flatnonzero(~self.ended)
        order = alive[np.argsort(self.cap[alive], kind="stable")]
        for name in _COLUMNS:
            setattr(self, name, getattr(self, name)[order])
        self.ended = self.ended[order]
        self.crossings = self._cross()
        labels = self.crossings.label
        dirty = np.zeros(self._links, dtype=np.bool_)
        dirty[labels[touched & (labels >= 0)]] = True
        dirty[labels[self.crossings.link[self.crossings.first[:-1][fresh[order]]]]] = True
        return dirty

    def _cross(self) -> Crossings:
        self.paths.build()
        table = self.paths
        result: Crossings = cross(self.path, self.weight, table.pointer, table.link, table.share, self._links)
        return result
