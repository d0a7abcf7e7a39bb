"""What codecs with unequal bits do at run time: encode rows of several widths, trace their ranges, and assign bits."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from array_api_compat import array_namespace, device
from numpy.typing import NDArray

from simgnn.emit.arrays import counted
from simgnn.emit.bit_widths.rows import Layout, coded_ranges, group_counts, group_sizes, group_sums, grouped
from simgnn.emit.bit_widths.solver import Groups, Links
from simgnn.emit.bit_widths.weights import HaloWeights
from simgnn.emit.row_codes import RowCodes
from simgnn.errors import BackendError
from simgnn.policy import Action, Array, PolicyContext, RefusedRowsError, placed
from simgnn.program.sizes import IntArray

STATED = 3
"""Numbers (float64) that a sender states of a group: its weight beta, its rows, and the receiver's rank."""


class AssignsBits(RowCodes, ABC):
    """The run-time methods of a codec that assigns bits to groups of rows, again and again as training goes.

    ``widths``: the numbers of bits to choose from, ascending. ``first_bits``: those of all rows before the first
    assignment."""

    widths: ClassVar[tuple[int, ...]] = (2, 4, 8)
    first_bits: ClassVar[int] = 8

    @property
    @abstractmethod
    def rows_of_group(self) -> int:
        """The rows of a group."""

    @abstractmethod
    def links(self, hosts: Sequence[int]) -> Links:
        """The time of messages from each rank to each other one, at position sender x P + receiver. ``hosts`` [P]."""

    @abstractmethod
    def choose(self, groups: Groups) -> NDArray[np.uint8]:
        """The bits of each group, uint8 [G]."""

    def bytes_of_rows(self, width: int, dtype: str) -> Mapping[int, int]:
        """Bytes of a row by its bits."""
        return {bits: self.at(bits).row_bytes(width, dtype) for bits in self.widths}

    def layout(self, bits: Array, counts: Sequence[int], width: int, dtype: str) -> Layout:
        """Where the rows of messages lie. ``bits`` uint8 [n, 1]: those assigned, 0 before the first assignment."""
        xp = array_namespace(bits)
        given = xp.reshape(bits, (-1,))
        found = xp.where(given == 0, xp.asarray(self.first_bits, dtype=xp.uint8, device=device(bits)), given)
        return Layout(found, counts, self.bytes_of_rows(width, dtype))


class TellWeights(Action[AssignsBits]):
    """State how much an error of each halo row weighs on this rank, for the ranks that own the rows."""

    def run(self, context: PolicyContext) -> tuple[Array, ...]:
        """Return float64 [h, 1]."""
        of_owners = context.resource(HaloWeights).squared(context.layer)
        # a route of some pairs of ranks has the rows of these alone
        told = [weights for weights, rows in zip(of_owners, context.send, strict=True) if rows]
        if not told:
            told = [of_owners[0][:0]]
        found = array_namespace(told[0]).concat(told)
        if found.shape[0] != sum(context.send):
            raise BackendError(
                f"layer {context.layer}: weights of {found.shape[0]} halo rows were found, and the route has "
                f"{sum(context.send)}: this is a fault of simgnn, not of the experiment"
            )
        return (array_namespace(found).reshape(found, (-1, 1)),)


class EncodeUnequal(Action[AssignsBits]):
    """Encode each row with its own bits; state how many bytes travel to and from each peer."""

    def run(self, context: PolicyContext, rows: Array, leaving: Array, arriving: Array) -> tuple[Array, ...]:
        """Return messages, uint8 [bytes, 1], and int64 [peers, 1] of bytes to, and of bytes from, peers with rows.

        ``leaving``, ``arriving``: bits of the rows that are sent and received."""
        xp, width, dtype = array_namespace(rows), rows.shape[1], str(rows.dtype).removeprefix("torch.")
        sent = self.owner.layout(leaving, context.send, width, dtype)
        awaited = self.owner.layout(arriving, context.receive, width, dtype)
        names = counted(rows, rows.shape[0]) if context.gathered is None else context.gathered
        coded = {}
        for bits in sent.places:
            named = sent.pick(names, bits)
            try:
                coded[bits] = self.owner.at(bits).encode(context, sent.pick(rows, bits), named)
            except RefusedRowsError as error:
                raise placed(error, context, named) from error
        message = sent.join(coded) if coded else xp.empty((0, 1), dtype=xp.uint8, device=device(rows))
        return message, _of_peers(rows, sent, context.send), _of_peers(rows, awaited, context.receive)


class DecodeUnequal(Action[AssignsBits]):
    """Decode messages of rows with unequal bits."""

    def run(self, context: PolicyContext, messages: Array, bits: Array) -> tuple[Array, ...]:
        """Return rows [n, F] from uint8 [bytes, 1] and the bits of each row."""
        shape = (bits.shape[0], context.width)
        layout = self.owner.layout(bits, context.receive, context.width, context.dtype)
        rows = None
        for each, packed in layout.split(messages).items():
            decoded = self.owner.at(each).decode(context, packed, context.width, context.dtype)
            rows = layout.put(rows, each, decoded, shape)
        if rows is None:
            xp = array_namespace(messages)
            rows = xp.empty(shape, dtype=getattr(xp, context.dtype), device=device(messages))
        return (rows,)


class TraceRanges(Action[AssignsBits]):
    """Group the rows of an epoch by how much their errors matter, on both ends alike, and state the sums of groups."""

    def run(
        self, context: PolicyContext, coded: Array, leaving: Array, arrived: Array, arriving: Array, *weights: Array
    ) -> tuple[Array, ...]:
        """Return the groups of the rows sent and received, int32 [n, 1], and what is stated of those sent: float64
        [G, STATED] for rank 0, and on rank 0 itself.

        ``coded``, ``arrived``: messages; ``leaving``, ``arriving``: bits of their rows; ``weights`` float64 [n, 1]: of
        the rows sent and received (none: each row is added once, as it is)."""
        size, xp = self.owner.rows_of_group, array_namespace(coded)
        of_sent, of_received = weights or (None, None)
        beta = self._beta(context, coded, leaving, context.send, of_sent)
        sent = grouped(beta, context.send, size)
        received = grouped(self._beta(context, arrived, arriving, context.receive, of_received), context.receive, size)
        counts = group_counts(context.send, size)
        stated = np.zeros((sum(counts), STATED))
        stated[:, 1] = group_sizes(context.send, size)
        stated[:, 2] = np.repeat(np.arange(context.ranks), counts)
        found = xp.asarray(stated, device=device(coded))
        if sum(counts):
            found[:, 0] = group_sums(beta, sent, sum(counts), size)
        groups = (xp.astype(xp.reshape(group, (-1, 1)), xp.int32) for group in (sent, received))
        # rank 0, which chooses, sends nothing to itself
        return (*groups, found[:0, :], found) if not context.rank else (*groups, found, found[:0, :])

    def _beta(
        self, context: PolicyContext, messages: Array, bits: Array, counts: Sequence[int], weights: Array | None
    ) -> Array:
        """The variance that each row adds if its range is one step, float64 [n]: width / 6 x range**2 x weight."""
        xp, width, dtype = array_namespace(messages), int(context.options["width"]), str(context.options["dtype"])
        layout = self.owner.layout(bits, counts, width, dtype)
        ranges = xp.zeros(layout.rows, dtype=xp.float64, device=device(messages))
        for each, packed in layout.split(messages).items():
            ranges = layout.put(ranges, each, coded_ranges(packed, each, dtype), (layout.rows, 1))
        beta = ranges * ranges * (width / 6)
        return beta if weights is None else beta * xp.reshape(weights, (-1,))


class ChooseBits(Action[AssignsBits]):
    """On rank 0, choose the bits of all groups; other ranks have nothing to do."""

    def run(self, context: PolicyContext, mine: Array, others: Array) -> tuple[Array, ...]:
        """Return the bits that go to other ranks and to this one, uint8 [G, 1]: to each, peers ascending, those of the
        groups that it sends, then those of the groups that it receives. ``mine``, ``others``: float64 [G, STATED]."""
        xp = array_namespace(mine)
        if context.rank:
            none = xp.empty((0, 1), dtype=xp.uint8, device=device(mine))
            return none, none
        stated = np.concatenate([_numpy(mine), _numpy(others)])
        sender = np.repeat([0, *range(context.ranks)], [len(mine), *context.receive])
        receiver = stated[:, 2].astype(np.int64)
        bits = self._chosen(context, stated, sender * context.ranks + receiver)
        of_ranks = [np.concatenate([bits[sender == rank], bits[receiver == rank]]) for rank in range(context.ranks)]
        found = (np.concatenate(of_ranks[1:])[:, None], of_ranks[0][:, None])
        return tuple(xp.asarray(part, device=device(mine)) for part in found)

    def _chosen(self, context: PolicyContext, stated: NDArray[np.float64], link: IntArray) -> NDArray[np.uint8]:
        codec = self.owner
        width, dtype = int(context.options["width"]), str(context.options["dtype"])
        row_bytes = list(codec.bytes_of_rows(width, dtype).values())
        rows = stated[:, 1].astype(np.int64)
        return codec.choose(Groups(stated[:, 0], rows, link, codec.links(context.hosts), codec.widths, row_bytes))


class TakeBits(Action[AssignsBits]):
    """Give each row the bits of its group."""

    def run(
        self, context: PolicyContext, given: Array, mine: Array, sent: Array, received: Array, *_: Array
    ) -> tuple[Array, ...]:
        """Return the bits of the rows that are sent and received, uint8 [n, 1]. ``given``: from rank 0, ``mine``: on
        rank 0 itself; ``sent``, ``received``: the groups of rows."""
        xp = array_namespace(sent)
        bits = xp.reshape(given if context.rank else mine, (-1,))
        groups = sum(group_counts(context.send, self.owner.rows_of_group))
        return tuple(
            xp.reshape(part[xp.reshape(xp.astype(group, xp.int64), (-1,))], (-1, 1))
            for part, group in ((bits[:groups], sent), (bits[groups:], received))
        )


UNEQUAL_ACTIONS = (TellWeights, EncodeUnequal, DecodeUnequal, TraceRanges, ChooseBits, TakeBits)


def _of_peers(like: Array, layout: Layout, counts: Sequence[int]) -> Array:
    """The bytes of the messages of peers that have rows, int64 [peers, 1], in the memory of the host."""
    nbytes = layout.message_bytes() if layout.places else []
    found = np.array([nbytes[peer] for peer, rows in enumerate(counts) if rows], dtype=np.int64)
    xp = array_namespace(like)
    return xp.asarray(found.reshape(-1, 1), device="cpu")


def _numpy(rows: Array) -> NDArray[np.float64]:
    return np.asarray(rows.cpu() if hasattr(rows, "cpu") else rows)
