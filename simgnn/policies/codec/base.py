"""What every codec is: the form of a row on the wire."""

from abc import ABC, abstractmethod
from typing import ClassVar

from simgnn.policies.base import Policy


class Codec(Policy, ABC):
    """A choice of slot ``codec``."""

    slot: ClassVar[str] = "codec"

    @abstractmethod
    def row_bytes(self, width: int, dtype: str) -> int:
        """Bytes of one encoded row of ``width`` elements of ``dtype``."""
