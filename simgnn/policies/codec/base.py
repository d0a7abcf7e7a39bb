"""What every codec is: the form of a row on the wire."""

from abc import ABC, abstractmethod
from typing import ClassVar

from simgnn.policies.base import Moves, Policy


class Codec(Policy, ABC):
    """A choice of slot ``codec``. ``serves``: what it can encode, listed rows or whole blocks."""

    slot: ClassVar[str] = "codec"
    serves: ClassVar[tuple[Moves, ...]] = ("rows",)

    @abstractmethod
    def row_bytes(self, width: int, dtype: str) -> int:
        """Bytes of one encoded row of ``width`` elements of ``dtype``."""
