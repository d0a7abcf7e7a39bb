"""What every choice of slot ``placement`` is, and what mini-batches ask of it: rows that they share, pull and keep."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Literal, Self

from simgnn.policies.staging import Staging
from simgnn.policy import Moves, PlacementTraits
from simgnn.program.sizes import IntArray


class Placement(PlacementTraits):
    """A choice of slot ``placement``: where rows, activations and parameters lie."""

    serves: ClassVar[tuple[Moves, ...]] = ("rows", "blocks")


class RowStore(Placement, ABC):
    """A placement of input rows for mini-batches: hosts keep them, batches pull them, devices may cache some.

    ``hot_rows``: rows of other hosts that a device keeps. ``sparse_embedding``, ``sparse_delay``: width of the vector
    that is learned of each vertex, 0: none; and the steps after which it changes.
    """

    serves: ClassVar[tuple[Moves, ...]] = ("batches",)

    hot_rows: int | Literal["auto"]
    sparse_embedding: int
    sparse_delay: int

    @property
    @abstractmethod
    def cached_rows(self) -> int:
        """Rows of other hosts that a device keeps, once :meth:`resolved`."""

    @property
    @abstractmethod
    def pulls_new_rows(self) -> bool:
        """Whether rows that are in the cache already are kept when it is filled again."""

    @property
    @abstractmethod
    def refills(self) -> bool:
        """Whether each epoch has a cache of its own."""

    @property
    @abstractmethod
    def caches(self) -> int:
        """Caches that a device holds at once."""

    @abstractmethod
    def resolved(self, needed: Callable[[], float]) -> Self:
        """The same with a number of cached rows; ``needed``: distinct rows of other hosts that a rank needs in an
        epoch."""

    @abstractmethod
    def check_fits(self, cached: IntArray, largest: IntArray, window: int, row_bytes: int) -> None:
        """Raise :class:`~simgnn.errors.ConfigError` where a device cannot hold caches and ``window`` staged batches.

        ``cached``, ``largest`` int64 [P]: rows of each rank's largest cache, input rows of its largest batch.
        """

    @abstractmethod
    def take(self, staging: Staging) -> None:
        """Emit: rows of a batch that are in the cache."""

    @abstractmethod
    def fill_next(self, staging: Staging) -> None:
        """Emit: a step's piece of the next epoch's cache."""

    @abstractmethod
    def fill_first(self, staging: Staging) -> None:
        """Emit: the cache of the first epoch, before it begins."""
