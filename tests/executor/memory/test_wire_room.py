"""Where rows that arrive are put: memory of a buffer that is made once."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from executor.handlers.pairwise import exchange
from executor.handlers.wire import all_to_all
from executor.state.buffers import Now
from executor.state.context import GroupHandle
from simgnn.emit.batches.names import PULLED_ROWS, SERVED_ROWS
from simgnn.program.kinds import OpKind
from simgnn.program.ops import Buffer, Op
from simgnn.program.sizes import Column, Route
from tests.executor.harness import reads, run_ranks, tiny_program, world_context

ALONE = GroupHandle(None, (0,), torch.device("cpu"))
ROWS = np.array([[[0, 0], [3, 1]], [[2, 0], [0, 0]]])
"""From each rank to each, in each of two steps."""
WIDTH = 2


def test_rows_arrive_in_the_room_that_there_is() -> None:
    packed, room = torch.arange(6.0).reshape(3, 2), torch.zeros(5, 2)
    arrived = all_to_all(packed, [3], [3], ALONE, room)
    assert arrived.data_ptr() == room.data_ptr()
    assert torch.equal(arrived, packed)
    assert torch.equal(room[3:], torch.zeros(2, 2))
    assert all_to_all(packed, [3], [3], ALONE).data_ptr() != room.data_ptr()


def _rows(sender: int, step: int, count: int) -> torch.Tensor:
    return (torch.arange(count * WIDTH) + 100 * sender + 50 * step).reshape(count, WIDTH).float()


def _pull(rank: int, ranks: int) -> list[Any]:
    """Two steps of an exchange whose rows the program tells: what arrived, and whether it lies in its buffer's room."""
    op = Op("pull", OpKind.EXCHANGE, "comm", reads(SERVED_ROWS), reads(PULLED_ROWS), route="pull")
    columns = {"served": ROWS.sum(axis=1)[:, None], "pulled": ROWS.sum(axis=0)[:, None]}
    buffers = [Buffer(SERVED_ROWS, Column("served"), WIDTH),
               Buffer(PULLED_ROWS, Column("pulled"), WIDTH, lasting=True)]  # fmt: skip
    program = tiny_program(
        ranks, {"steady": [op]}, buffers, routes={"pull": Route.from_turns(ROWS[:, :, None])}, columns=columns,
        derived=False,
    )  # fmt: skip
    store = (context := world_context(program, rank)).store
    run, found = exchange(op, program.templates["steady"], context), []
    for step in range(2):
        store.values[store.slot(SERVED_ROWS)] = _rows(rank, step, int(ROWS[rank, :, step].sum()))
        run(Now(0, step, step))
        arrived, room = store.values[store.slot(PULLED_ROWS)], store.room(PULLED_ROWS)
        assert isinstance(arrived, torch.Tensor)
        found += [arrived.clone(), arrived.untyped_storage().data_ptr() == room.untyped_storage().data_ptr()]
    return found


def test_rows_that_the_program_tells_arrive_in_the_room_of_the_buffer_that_is_written(tmp_path: Path) -> None:
    for rank, found in enumerate(run_ranks(2, _pull, tmp_path)):
        for step, (arrived, in_room) in enumerate(zip(found[::2], found[1::2], strict=True)):
            assert torch.equal(arrived, _rows(1 - rank, step, int(ROWS[1 - rank, rank, step])))
            assert in_room
