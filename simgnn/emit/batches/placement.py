"""The base classes of slot ``placement``: where rows lie, and how mini-batches pull and cache them."""

from abc import ABC
from collections.abc import Callable
from typing import Any, ClassVar, Literal, Self

from simgnn.emit.batches.staging import LocateRows, ServeRows, StageInputs, Staging
from simgnn.errors import ConfigError
from simgnn.policy import Action, Moves, PlacementTraits
from simgnn.program.sizes import IntArray


class Placement(PlacementTraits):
    """The base of placement policies: where rows, activations and parameters lie."""

    serves: ClassVar[tuple[Moves, ...]] = ("rows", "blocks")


class RowStore(Placement, ABC):
    """A placement for mini-batches: hosts keep the input rows, batches pull them.

    By default it caches no rows of other hosts and learns no vectors; policies that do override the properties."""

    serves: ClassVar[tuple[Moves, ...]] = ("batches",)
    actions: ClassVar[tuple[type[Action[Any]], ...]] = (LocateRows, ServeRows, StageInputs)

    @property
    def cached_rows(self) -> int:
        """The number of other hosts' rows that a device caches, known once :meth:`resolved`."""
        return 0

    @property
    def wanted_rows(self) -> int | Literal["auto"]:
        """The number of cached rows that the experiment states."""
        return self.cached_rows

    @property
    def pulls_new_rows(self) -> bool:
        """Whether a refill keeps the rows that the cache already holds, and pulls only new ones."""
        return False

    @property
    def refills(self) -> bool:
        """Whether the cache is filled anew for each epoch."""
        return True

    @property
    def learned_width(self) -> int:
        """The number of elements of each vertex's learned vector; 0: none."""
        return 0

    @property
    def learned_delay(self) -> int:
        """The number of steps after which learned vectors are updated."""
        return 0

    @property
    def caches(self) -> int:
        """The number of caches that a device holds at once."""
        return 0

    def resolved(self, needed: Callable[[], float]) -> Self:
        """Return this policy with a fixed number of cached rows. ``needed``: returns how many distinct rows of other
        hosts a rank needs in an epoch."""
        return self

    def caching(self, rows: int) -> Self:
        """This policy with ``rows`` cached rows; raises :class:`~simgnn.errors.ConfigError` if it cannot cache any."""
        if rows:
            raise ConfigError(
                f"placement.kind: got '{self.label}', which caches no rows of other hosts, but the file of batch sizes "
                f"was made with a cache of {rows} rows; expected a file made without a cache"
            )
        return self

    def check_fits(self, cached: IntArray, largest: IntArray, window: int, row_bytes: int) -> None:
        """Raise :class:`~simgnn.errors.ConfigError` if a device cannot hold its caches and ``window`` staged batches.

        ``cached``, ``largest`` int64 [P]: rows of each rank's largest cache, input rows of its largest batch."""

    def take(self, staging: Staging) -> None:
        """Emit the copy of a batch's cached rows."""

    def fill_next(self, staging: Staging) -> None:
        """Emit the part of the next epoch's cache that a step fills."""

    def fill_first(self, staging: Staging) -> None:
        """Emit the filling of the first epoch's cache, before that epoch begins."""
