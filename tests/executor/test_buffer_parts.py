"""Parts of buffers in the executor: ranges are views, listed rows are gathered and put back, nothing else changes."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from programs.notation import op, program

from executor.handlers import handler_of
from executor.state.buffers import BufferStore, Now
from simgnn.errors import BackendError
from simgnn.program.calendar import Calendar, Stretch
from simgnn.program.kinds import Form
from simgnn.program.ops import Buffer, Op, Stream
from simgnn.program.program import Program
from simgnn.program.sizes import Route
from tests.executor.harness import acting, world_context

ROWS, WIDTH, CPU = 9, 2, torch.device("cpu")
FIRST, COUNT = [0, 2, 6], [2, 4, 3]
LISTED = [7, 1, 3, 0, 8, 2, 5, 4, 6]
STEPS = [Now(0, step, step) for step in range(3)]


def made(*ops: Op, ranks: int = 1, routes: dict[str, Route] | None = None) -> Program:
    spans = {
        f"{part}/{key}": [numbers] * ranks
        for part in ("part", "list")
        for key, numbers in (("first", FIRST), ("rows", COUNT))
    }
    buffers = [
        Buffer("x", ROWS, WIDTH, "float64"), Buffer("y", ROWS, WIDTH, "float64", space="host"),
        Buffer("ring", ROWS, WIDTH, "float64", depth=2, ring="step"), Buffer("new", ROWS, WIDTH, "float64"),
        Buffer("list", ROWS, 1, "int64", persistent=True),
    ]  # fmt: skip
    calendar = Calendar.of_steps([Stretch("t", 3)])
    return program("parts", {"t": ops}, calendar, buffers, [Stream("compute")], [0] * ranks, spans, routes)


def rows_of(seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((ROWS, WIDTH)))


def run(one: Op, held: dict[str, torch.Tensor], steps: list[Now] = STEPS, policies: Any = None) -> dict[str, Any]:
    made_program = made(one)
    context = world_context(made_program, 0, {"list": torch.tensor(LISTED)[:, None]}, policies=policies)
    for name, rows in held.items():
        context.store.values[context.store.slot(name)] = rows.clone()
    handler = handler_of(one, made_program.templates["t"], context)
    for now in steps:
        handler(now)
    return {name: context.store.values[context.store.slot(name)] for name in made_program.buffers}


def chosen(step: int, listed: bool) -> Any:
    span = slice(FIRST[step], FIRST[step] + COUNT[step])
    return LISTED[span] if listed else span


def test_a_range_is_a_view_and_a_write_changes_its_rows_alone() -> None:
    read = op("r", "add", "compute", "x[:part]", "x[:part]")
    store = BufferStore(made(read), 0, CPU)
    whole = rows_of(1)
    store.values[store.slot("x")] = whole
    get, put = store.getter(read.reads[0]), store.setter(read.writes[0])
    for step, now in enumerate(STEPS):
        view = get(now)
        assert view.data_ptr() == whole[FIRST[step]].data_ptr()
        assert len(view) == COUNT[step]
    before = whole.clone()
    put(STEPS[1], torch.ones(4, WIDTH))
    assert torch.equal(whole[2:6], torch.ones(4, WIDTH, dtype=torch.float64))
    before[2:6] = 1
    assert torch.equal(whole, before)
    with pytest.raises(BackendError, match=r"3 rows for a part of buffer 'x' that has 4; prepare"):
        put(STEPS[1], torch.ones(3, WIDTH))


def test_a_buffer_is_no_view_of_parts_that_change_later() -> None:
    """An op may return the rows that it read; the next write to the part must not reach them."""
    same = replace(op("s", "encode", "compute", "x[:part]", "new"), module="policy", action="same")
    found = run(same, {"x": rows_of(1)}, STEPS[:1], policies={"policy": acting(same=lambda _, rows: (rows,))})
    assert torch.equal(found["new"], found["x"][:2])
    found["x"].zero_()
    assert found["new"].all()


def test_rows_that_nobody_has_written_are_zeros() -> None:
    write = op("w", "add", "compute", "ring[:part]", "ring[:part]")
    store = BufferStore(made(write), 0, CPU)
    get, put = store.getter(write.reads[0]), store.setter(write.writes[0])
    assert not get(STEPS[0]).any()
    put(STEPS[0], torch.ones(2, WIDTH))
    assert get(STEPS[2]).shape == (3, WIDTH), "the same copy, other rows"
    assert not get(STEPS[2]).any()
    assert get(STEPS[0]).all()
    assert not get(Now(0, 0, 1)).any(), "the other copy"


@pytest.mark.parametrize("kind", ["h2d", "d2h", "copy"])
@pytest.mark.parametrize(("source", "target"), [(a, b) for a in (":part", "list", "") for b in (":part", "list", "")])
def test_copies_move_parts(kind: str, source: str, target: str) -> None:
    if not source and target:
        return  # a whole buffer has more rows than the part
    reads, writes = (name + (f"[{part}]" if part else "") for name, part in (("x", source), ("y", target)))
    before, x = rows_of(2), rows_of(1)
    for step, now in enumerate(STEPS):
        found = run(op("c", kind, "compute", reads, writes), {"x": x, "y": before}, [now])
        moved = x[chosen(step, source == "list")] if source else x
        expected = before.clone()
        if target:
            expected[chosen(step, target == "list")] = moved
        assert torch.equal(found["y"], expected if target else moved)
        assert torch.equal(found["x"], x)
        assert found["y"].data_ptr() != found["x"].data_ptr()


@pytest.mark.parametrize("target", [":part", "list"])
def test_rows_are_added_to_parts(target: str) -> None:
    before, more = rows_of(2), rows_of(1)[:4]
    found = run(op("a", "add", "compute", "new", f"x[{target}]"), {"x": before, "new": more}, [STEPS[1]])
    expected = before.clone()
    expected[chosen(1, target == "list")] += more
    assert torch.equal(found["x"], expected)


def test_rows_of_several_peers_are_added_in_ascending_rank() -> None:
    """A row that two peers send gets both parts, the lower rank's first: so sums are the same in every run."""
    add = op("a", "add", "compute", "new", "x[list]", route="need")
    rows = np.array([[0, 2, 0], [0, 2, 0]])
    route = Route(np.array([0, 0], np.int32), np.array([1, 2], np.int32), rows)
    made_program = made(add, ranks=3, routes={"need": route})
    places = [0, 0, 3, 5, 5, 3, 0, 0, 0]
    context = world_context(made_program, 0, {"list": torch.tensor(places)[:, None]})
    big, small = 1e16, 1.0
    parts = torch.tensor([[big] * WIDTH, [small] * WIDTH, [-big] * WIDTH, [small] * WIDTH], dtype=torch.float64)
    store = context.store
    store.values[store.slot("x")] = torch.full((ROWS, WIDTH), small, dtype=torch.float64)
    store.values[store.slot("new")] = parts
    handler_of(add, made_program.templates["t"], context)(STEPS[1])
    found = store.values[store.slot("x")]
    assert isinstance(found, torch.Tensor)
    assert found[3].tolist() == [(small + big) + small] * WIDTH
    assert found[5].tolist() == [(small + small) - big] * WIDTH


def test_what_changes_in_place_takes_ranges_only() -> None:
    put = op("p", "copy", "compute", "new", "x[list]", form=Form.PUT)
    with pytest.raises(BackendError, match="listed rows of buffer 'x' cannot be changed in place"):
        run(put, {}, [])


def test_parts_are_saved_and_restored() -> None:
    write = op("w", "add", "compute", "x[:part]", "x[:part]")
    stores = [BufferStore(made(write), 0, CPU) for _ in range(2)]
    for step, now in enumerate(STEPS):
        stores[0].setter(write.writes[0])(now, rows_of(step)[: COUNT[step]])
    stores[1].load_state(stores[0].state())
    for now in STEPS:
        first, second = (store.getter(write.reads[0])(now) for store in stores)
        assert torch.equal(first, second)
