"""Memory beside a program's buffers: bytes that an op holds while it runs, or that are derived once and kept."""

from collections.abc import Callable
from dataclasses import dataclass

from simgnn.program.sizes import IntArray, Size


@dataclass(frozen=True, slots=True)
class Term:
    """``row_bytes`` bytes for each of ``rows`` on a rank."""

    rows: Size
    row_bytes: int


Terms = tuple[Term, ...]
"""Bytes that are added up."""


def rows_of(rows: Size, row_bytes: int) -> Terms:
    """Bytes of rows; no term where a row has none."""
    return (Term(rows, row_bytes),) if row_bytes else ()


@dataclass(frozen=True, slots=True)
class Scratch:
    """Memory that an op takes beside its buffers, as its emitter states it. It is no part of the op's price or digest.

    The op holds the sum of ``terms`` while it runs, or the sum of ``at_least`` where that is larger. ``copied_last``:
    buffers that it writes after everything else, as copies of others, so that they exist only when it has ended.
    ``own_block``: the rank that reads its own rows where the op names a block that has arrived on all others.
    ``handed_over``: on a CPU, what the op writes on the device is the memory that it reads on the host.
    """

    terms: Terms = ()
    at_least: Terms = ()
    copied_last: tuple[str, ...] = ()
    own_block: int | None = None
    handed_over: bool = False

    @property
    def sizes(self) -> tuple[Size, ...]:
        """Every size that its bytes depend on."""
        return tuple(term.rows for term in self.terms + self.at_least)

    def at(self, size_of: Callable[[Size], IntArray]) -> IntArray:
        """Bytes on every rank, int64 [P]; ``size_of`` gives a size on every rank in the turn at hand."""
        held, least = (
            sum((size_of(term.rows) * term.row_bytes for term in terms), size_of(0))
            for terms in (self.terms, self.at_least)
        )
        return held.clip(min=least)


NO_SCRATCH = Scratch()
