"""What every codec is: the form of a row on the wire."""

from abc import ABC, abstractmethod
from typing import ClassVar

from simgnn.policies.base import Moves, Policy
from simgnn.program.ops import ITEM_BYTES, Work
from simgnn.program.scratch import Terms
from simgnn.program.sizes import Size


class Codec(Policy, ABC):
    """A choice of slot ``codec``. ``serves``: what it can encode, listed rows or whole blocks; ``encodes``: what moves
    are bytes that ops encode and decode, not the rows; ``relative``: it is off by a share of each element, however
    small that is beside others of its row; ``repeatable``: encoding again what it decoded changes nothing, so that rows
    may pass through other ranks and be the same on all."""

    slot: ClassVar[str] = "codec"
    serves: ClassVar[tuple[Moves, ...]] = ("rows",)
    relative: ClassVar[bool] = False
    repeatable: ClassVar[bool] = False
    encodes: ClassVar[bool] = True

    @property
    def keeps_exact_rows(self) -> bool:
        """Whether a sender's cache holds the rows themselves, not what receivers decode."""
        return False

    @abstractmethod
    def row_bytes(self, width: int, dtype: str) -> int:
        """Bytes of one encoded row of ``width`` elements of ``dtype``."""

    def encode_work(self, rows: Size, width: int, dtype: str) -> tuple[Work, ...]:
        """What encoding ``rows`` rows costs: here one pass that reads and writes."""
        return (Work("elementwise", {"rows": rows, "width": width, "passes": 2, "item_bytes": ITEM_BYTES[dtype]}),)

    def encode_scratch(self, rows: Size, width: int, dtype: str) -> Terms:
        """Memory that encoding them takes beside rows and bytes: here none."""
        return ()

    def decode_work(self, rows: Size, width: int, dtype: str) -> tuple[Work, ...]:
        """What decoding them costs."""
        return self.encode_work(rows, width, dtype)
