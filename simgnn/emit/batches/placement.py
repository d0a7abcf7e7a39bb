"""The choices of slot ``placement``, and what mini-batches ask of them: rows that they share, pull and keep."""

from abc import ABC
from collections.abc import Callable
from typing import Any, ClassVar, Literal, Self

from simgnn.emit.batches.staging import LocateRows, ServeRows, StageInputs, Staging
from simgnn.errors import ConfigError
from simgnn.policy import Action, Moves, PlacementTraits
from simgnn.program.sizes import IntArray


class Placement(PlacementTraits):
    """A choice of slot ``placement``: where rows, activations and parameters lie."""

    serves: ClassVar[tuple[Moves, ...]] = ("rows", "blocks")


class RowStore(Placement, ABC):
    """A placement of input rows for mini-batches: hosts keep them, batches pull them.

    By itself it keeps no rows of other hosts and learns none; a policy that does overrides what describes it.
    """

    serves: ClassVar[tuple[Moves, ...]] = ("batches",)
    actions: ClassVar[tuple[type[Action[Any]], ...]] = (LocateRows, ServeRows, StageInputs)

    @property
    def cached_rows(self) -> int:
        """Rows of other hosts that a device keeps, once :meth:`resolved`."""
        return 0

    @property
    def wanted_rows(self) -> int | Literal["auto"]:
        """The number of cached rows as the experiment states it."""
        return self.cached_rows

    @property
    def pulls_new_rows(self) -> bool:
        """Whether rows that are in the cache already are kept when it is filled again."""
        return False

    @property
    def refills(self) -> bool:
        """Whether each epoch has a cache of its own."""
        return True

    @property
    def learned_width(self) -> int:
        """Elements of the vector that is learned of each vertex; 0: none."""
        return 0

    @property
    def learned_delay(self) -> int:
        """Steps after which learned vectors change."""
        return 0

    @property
    def caches(self) -> int:
        """Caches that a device holds at once."""
        return 0

    def resolved(self, needed: Callable[[], float]) -> Self:
        """The same with a number of cached rows; ``needed``: distinct rows of other hosts that a rank needs in an
        epoch."""
        return self

    def caching(self, rows: int) -> Self:
        """The same with so many cached rows. Raises :class:`~simgnn.errors.ConfigError` where it keeps none."""
        if rows:
            raise ConfigError(
                f"placement.kind: got '{self.label}', which keeps no rows of other hosts, with sizes of batches that "
                f"were counted for {rows} of them; expected sizes that were counted for none"
            )
        return self

    def check_fits(self, cached: IntArray, largest: IntArray, window: int, row_bytes: int) -> None:
        """Raise :class:`~simgnn.errors.ConfigError` where a device cannot hold caches and ``window`` staged batches.

        ``cached``, ``largest`` int64 [P]: rows of each rank's largest cache, input rows of its largest batch.
        """

    def take(self, staging: Staging) -> None:
        """Emit: rows of a batch that are in the cache."""

    def fill_next(self, staging: Staging) -> None:
        """Emit: a step's piece of the next epoch's cache."""

    def fill_first(self, staging: Staging) -> None:
        """Emit: the cache of the first epoch, before it begins."""
