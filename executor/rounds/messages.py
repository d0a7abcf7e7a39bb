"""What one round sends: headers, requests and replies as tensors, one message for each other rank."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from simgnn.errors import GraphError
from simgnn.sampling.tasks.graph import KINDS, Task
from simgnn.sampling.tasks.pool import TaskError, Ticket
from simgnn.sampling.tasks.requests import RowRequest, SampleRequest, Server

IntArray = NDArray[np.int64]
HEADER = 4
"""Words of a header: sample ids, row ids, flags, groups of sample ids."""
GROUP = 3
"""Words of a group of sample ids: batch seed; hop and branch; number of ids."""
DONE, SAMPLES, ROWS, FAILED = 1, 2, 4, 8
"""Flags of a header: the sender will ask for nothing more; asks anyone for neighbours; for rows; its tasks failed. The
header of a rank that failed has the batch, and the task packed into one word, in place of numbers of ids."""
_HOP = np.int64(32)


@dataclass(frozen=True)
class Asked:
    """The requests of a rank in one round, by the rank asked. ``words`` int64: for each, its groups, then sample ids,
    then row ids; ``samples``, ``rows``: tickets in the order of their ids."""

    words: IntArray
    header: IntArray
    samples: tuple[tuple[Ticket, ...], ...]
    rows: tuple[tuple[Ticket, ...], ...]

    @classmethod
    def of(cls, tickets: Sequence[Ticket], ranks: int, flags: int) -> "Asked":
        """Arrange the requests of ``tickets``; ``flags`` of the header beside SAMPLES and ROWS."""
        of_kind: list[list[list[Ticket]]] = [[[] for _ in range(ranks)] for _ in range(2)]
        for ticket in tickets:
            of_kind[isinstance(ticket.request, RowRequest)][ticket.request.server].append(ticket)
        flags |= SAMPLES * any(of_kind[0]) | ROWS * any(of_kind[1])
        header, words = np.zeros((ranks, HEADER), np.int64), [np.empty(0, np.int64)]
        for rank, (samples, rows) in enumerate(zip(*of_kind, strict=True)):
            header[rank] = (_ids(samples), _ids(rows), flags, len(samples))
            words += [_group(ticket.request) for ticket in samples]
            words += [ticket.request.lids for ticket in (*samples, *rows)]
        return cls(np.concatenate(words), header, *(tuple(map(tuple, kind)) for kind in of_kind))

    @property
    def lengths(self) -> list[int]:
        """Words for each rank."""
        return lengths(self.header)


def failed_header(ranks: int, error: BaseException) -> IntArray:
    """Header [P, 4] of a rank that ends with ``error``: for others to report."""
    header = np.zeros((ranks, HEADER), np.int64)
    header[:, 2] = FAILED
    if isinstance(error, TaskError):
        task = error.ready.task
        packed = (KINDS.index(task.kind) + 1) | task.branch << 8 | task.hop << 16 | task.chunk << 32
        header[:, :2] = error.ready.batch, packed
    return header


def failed_task(header: IntArray) -> str:
    """Say which task failed, from the header [4] of the rank where it did; empty for a failure of another kind."""
    batch, packed = int(header[0]), int(header[1])
    if not packed:
        return ""
    task = Task(KINDS[(packed & 255) - 1], packed >> 8 & 255, packed >> 16 & 65535, packed >> 32)
    return f" in batch {batch}, task '{task}'"


def lengths(header: IntArray) -> list[int]:
    """Words of the requests that a header [P, 4] announces, by rank."""
    found: list[int] = (header[:, 0] + header[:, 1] + GROUP * header[:, 3]).tolist()
    return found


@dataclass(frozen=True)
class Served:
    """Replies of this rank in one round. ``degrees`` int32, ``neighbours`` int64, ``rows`` [n, F]: for each rank in
    turn; ``lengths``: neighbours for each rank."""

    degrees: torch.Tensor
    neighbours: torch.Tensor
    lengths: list[int]
    rows: torch.Tensor | None

    @classmethod
    def of(cls, words: IntArray, header: IntArray, server: Server, fetches: bool) -> "Served":
        """Serve the requests ``words`` int64, which ``header`` [P, 4] announced. ``fetches``: some rank asks for rows.
        Raises :class:`GraphError` for requests that this rank cannot serve."""
        degrees, neighbours = [np.empty(0, np.int32)], [np.empty(0, np.int64)]
        counts, wanted, first = [], [np.empty(0, np.int64)], 0
        for samples, rows, _, groups in header.tolist():
            ids = first + GROUP * groups
            told = words[first:ids].reshape(groups, GROUP)
            if int(told[:, 2].sum()) != samples:
                raise GraphError(f"received groups of {int(told[:, 2].sum())} ids, announced were {samples}")
            count = 0
            for seed, place, length in told.tolist():
                reply = server.sample(seed % 2**64, place >> int(_HOP), words[ids : ids + length])
                ids += length
                degrees.append(reply.degrees)
                neighbours.append(reply.neighbours)
                count += len(reply.neighbours)
            counts.append(count)
            wanted.append(words[ids : ids + rows])
            first = ids + rows
        found = torch.from_numpy(server.rows(np.concatenate(wanted))) if fetches else None
        return cls(
            torch.from_numpy(np.concatenate(degrees)), torch.from_numpy(np.concatenate(neighbours)), counts, found
        )


def _ids(tickets: Sequence[Ticket]) -> int:
    return sum(len(ticket.request.lids) for ticket in tickets)


def _group(request: Any) -> IntArray:
    assert isinstance(request, SampleRequest)
    words = np.empty(GROUP, np.int64)
    words.view(np.uint64)[0] = request.seed
    words[1:] = (request.hop << int(_HOP)) | request.branch, len(request.lids)
    return words
