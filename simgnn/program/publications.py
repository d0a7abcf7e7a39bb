"""How masters publish vertices: what a program declares so that a record carries over to another partition."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from simgnn.program.sizes import IntArray, Route, SizeTable


@dataclass(frozen=True, slots=True)
class CopiesRoute:
    """The ``route`` of the rows that travel if all masters are published whose vertices have so many ``copies``."""

    copies: int
    route: str


@dataclass(frozen=True)
class Publication:
    """A sync point at which a master publishes a vertex in the turns in which any copy of it moved.

    ``gathered``: the decision of the rows that mirrors sent; ``active``: of the masters that were woken; ``published``:
    of the rows that these sent. Woken masters with r copies are recorded as :func:`counted_as`. ``copies``: what counts
    as one: a replica, or a host whose replicas add up first. ``masters``: the column of the masters that have mirrors.
    ``routes``: empty where the statistics of the partition do not say how many copies vertices have.
    """

    gathered: str
    active: str
    published: str
    tally: str
    copies: Literal["replicas", "hosts"]
    masters: str
    routes: tuple[CopiesRoute, ...] = ()

    def rows(self, sizes: SizeTable) -> Mapping[int, Route]:
        """Rows of each pair if all masters are published, by the number of copies of their vertex."""
        return {each.copies: sizes.routes[each.route] for each in self.routes}

    def masters_by_copies(self, sizes: SizeTable) -> dict[int, IntArray]:
        """Shared masters of each rank, int64 [P], by their number r of copies: each publishes r - 1 rows. Those
        with one copy (on one host alone) publish none to others. Empty: the statistics do not say."""
        found: dict[int, IntArray] = {
            r: np.bincount(route.source, route.rows, minlength=sizes.ranks).astype(np.int64) // (r - 1)
            for r, route in self.rows(sizes).items()
        }
        if not found:
            return {}
        alone = np.maximum(0, sizes.columns[self.masters] - np.sum(list(found.values()), axis=0))
        return {1: alone, **found} if alone.any() else found


def counted_as(tally: str, copies: int) -> str:
    """The decision that counts the woken masters with so many copies, of all that are recorded under ``tally``."""
    return f"{tally}-{copies}"
