"""Routes whose rows, not only their number, differ by epoch: a buffer of the program lists them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from executor.rank.interpreter import Interpreter
from simgnn.emit.builder import ProgramBuilder
from simgnn.errors import ProgramError
from simgnn.program.kinds import OpKind
from simgnn.program.ops import Access, Buffer, Op
from simgnn.program.program import Program
from simgnn.program.sizes import Column, Route, reverse_of
from simgnn.program.storage import load_program, program_digest, save_program
from simgnn.program.validate import validate
from tests.executor.harness import Notes, acting, local_route, reads, run_ranks, tiny_program, world_context

LISTS = (([1, 3], [0]), ([2], [0, 2, 3]))
"""Own rows that ranks 0 and 1 send, in two epochs."""
COUNTS = np.array([[[len(epoch[rank])] for epoch in LISTS] for rank in range(2)])


def _program() -> Program:
    ends = np.array([0, 1], np.int32), np.array([1, 0], np.int32)
    route = Route(*ends, COUNTS, listed="list")
    return tiny_program(
        2,
        {
            "steady": [
                Op("list", OpKind.SELECT, "compute", (), reads("list"), module="policy", action="list"),
                Op("pack", OpKind.COPY, "compute", reads("rows", "list"), reads("send"), route="some"),
                Op("exchange", OpKind.EXCHANGE, "comm", reads("send"), reads("arrived"), route="some"),
                Op("back", OpKind.EXCHANGE, "comm", reads("arrived"), reads("returned"), route=reverse_of("some")),
                Op("add", OpKind.ADD, "compute", reads("returned", "sum", "list"), reads("sum"), route="some"),
            ]
        },
        [
            Buffer("list", Column("leaving"), 1, "int64"),
            *(Buffer(name, 4, 2, persistent=True) for name in ("rows", "sum")),
            *(Buffer(name, Column("leaving"), 2, persistent=True) for name in ("send", "returned")),
            Buffer("arrived", Column("arriving"), 2, persistent=True),
        ],
        routes={"some": route, reverse_of("some"): route.reversed()},
        columns={"leaving": COUNTS, "arriving": COUNTS[::-1]},
    )


def _train(rank: int, ranks: int) -> dict[str, Any]:
    program = _program()
    policy = acting(list=lambda context: (torch.tensor(LISTS[context.epoch][rank]),))
    rows, total = torch.arange(8.0).view(4, 2) + 100 * rank, torch.zeros(4, 2)
    routes = {name: local_route(program, name, rank) for name in program.sizes.routes}
    context = world_context(program, rank, {"rows": rows, "sum": total}, routes, {"policy": policy})
    notes, arrived = Notes(), []
    interpreter = Interpreter(program, context, notes)
    for epoch in range(2):
        interpreter.train(range(epoch, epoch + 1))
        arrived.append(context.store.values[context.store.slot("arrived")])
    sent = [list(row[4]) for row in sorted(notes.rows, key=lambda row: (row[0].epoch, row[1]))]
    return {"rows": rows, "sum": total, "arrived": arrived, "sent": sent}


def test_each_epoch_moves_the_rows_that_its_list_names(tmp_path: Path) -> None:
    both = run_ranks(2, _train, tmp_path)
    for rank, (own, other) in enumerate((both, both[::-1])):
        expected = torch.zeros(4, 2)
        for epoch, lists in enumerate(LISTS):
            assert torch.equal(own["arrived"][epoch], other["rows"][lists[1 - rank]])
            expected[lists[rank]] += own["rows"][lists[rank]]
            exchange, back = own["sent"][5 * epoch + 2][0], own["sent"][5 * epoch + 3][0]
            assert [exchange, back] == [8 * len(lists[rank]), 8 * len(lists[1 - rank])]
        assert torch.equal(own["sum"], expected)


def test_lists_are_stored_and_must_exist(tmp_path: Path) -> None:
    program = _program()
    save_program(program, tmp_path)
    again = load_program(tmp_path)
    assert {route.listed for route in again.sizes.routes.values()} == {"list"}
    assert program_digest(again) == program_digest(program)
    routes = {name: replace(route, listed="lost") for name, route in program.sizes.routes.items()}
    with pytest.raises(ProgramError, match="route 'some': its rows are listed in 'lost', which is no buffer"):
        validate(replace(program, sizes=replace(program.sizes, routes=routes)))


def test_ops_can_be_ordered_where_their_buffers_do_not_order_them() -> None:
    builder = ProgramBuilder("ordered", [0], "float32")
    for name in ("a", "b", "c", "d"):
        builder.buffer(name, 1, 1)
    builder.compute(["steady"], "first", OpKind.COPY, [], ["a"], ())
    with builder.one_by_one():
        for name in ("b", "c"):
            builder.compute(["steady"], name, OpKind.COPY, [], [name], ())
    builder.compute(["steady"], "last", OpKind.COPY, [], ["d"], ())
    ops = {op.name: op for op in builder.templates["steady"]}
    waits = {name: [dependency.op for dependency in op.after] for name, op in ops.items()}
    assert waits == {"first": [], "b": ["first"], "c": ["b"], "last": []}
    builder.move_behind(["steady"], "b", "last")
    assert [op.name for op in builder.templates["steady"]] == ["first", "c", "last", "b"]
    assert Access("b") in ops["b"].writes
