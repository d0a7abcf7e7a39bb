"""The validator names every fault, and accepts what is right."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs.notation import all_pairs, op, program

from simgnn.errors import ProgramError
from simgnn.program.calendar import Calendar
from simgnn.program.dependencies import neighbouring_uses
from simgnn.program.ops import Buffer, Guard, Op, Stream, Transfer
from simgnn.program.program import Program
from simgnn.program.sizes import Column, Decision, Route
from simgnn.program.validate import validate

RANKS, ROWS, WIDTH = 3, 40, 8


def chain(**changes: Op | None) -> Program:
    """compute -> pack -> exchange -> use -> back; ``changes`` replaces ops by name (None drops one)."""
    ops = {
        "make": op("make", "transform", "compute", "state", "rows", "use<<1"),
        "pack": op("pack", "copy", "compute", "rows", "send", "make send<<1"),
        "send": op("send", "exchange", "comm", "send", "halo", "pack use<<1", route="halo",
                   transfer=Transfer(4 * WIDTH)),
        "use": op("use", "aggregate", "compute", "rows halo", "state", "send make"),
        "sum": op("sum", "allreduce", "comm", "state", "state", "use"),
    }  # fmt: skip
    ops["make"] = replace(ops["make"], after=(*ops["make"].after, *op("x", "add", "compute", after="sum<<1").after))
    for name, changed in changes.items():
        if changed is None:
            del ops[name]
        else:
            ops[name] = changed
    total = np.full(RANKS, ROWS * (RANKS - 1))
    return program(
        "chain",
        {"epoch": list(ops.values())},
        Calendar("epoch"),
        [
            Buffer("state", 100, WIDTH, persistent=True),
            Buffer("rows", 100, WIDTH),
            Buffer("send", Column("moved"), WIDTH),
            Buffer("halo", Column("moved"), WIDTH),
        ],
        [Stream("compute"), Stream("comm", group="world")],
        hosts=[0, 0, 1],
        columns={"moved": total, "some": [1, 0, 1], "negative": [1, -1, 1]},
        routes={"halo": all_pairs(RANKS, ROWS)},
    )


def changed(name: str, **fields) -> Program:
    original = next(item for item in chain().templates["epoch"].ops if item.name == name)
    return chain(**{name: replace(original, **fields)})


def with_buffer(name: str, **fields) -> Program:
    base = chain()
    return replace(base, buffers={**base.buffers, name: replace(base.buffers[name], **fields)})


def test_accepts_the_chain() -> None:
    validate(chain())


FAULTS = {
    "unknown stream": (lambda: changed("make", stream="gpu"), "unknown stream 'gpu'"),
    "unknown buffer": (lambda: changed("use", reads=op("x", "add", "c", "rows ghost").reads), "unknown buffer 'ghost'"),
    "unknown route": (lambda: changed("send", route="mirrors"), "unknown route 'mirrors'"),
    "no route": (lambda: changed("send", route=None), "needs a route"),
    "no transfer": (lambda: changed("send", transfer=None), "needs a transfer"),
    "no group": (lambda: changed("send", stream="compute"), "needs a stream with a process group"),
    "later dependency": (lambda: changed("make", after=op("x", "add", "c", after="use").after), "come before it"),
    "missing dependency": (lambda: changed("make", after=op("x", "add", "c", after="ghost").after), "not in the te"),
    "nowhere": (lambda: changed("make", after=op("x", "add", "c", after="ghost<<1").after), "which no template has"),
    "unordered": (lambda: changed("use", after=op("x", "add", "c", after="make").after), "nothing orders them"),
    "next epoch": (lambda: changed("pack", after=op("x", "add", "c", after="make").after), None),
    "read before write": (lambda: changed("make", writes=()), "before anything has written it"),
    "sent bytes": (lambda: changed("send", transfer=Transfer(4 * WIDTH + 4)), "bytes, but buffer"),
    "received bytes": (lambda: with_buffer("halo", width=WIDTH + 1), "receives"),
    "some ranks": (lambda: changed("send", ranks="some"), "the others would wait for ever"),
    "lonely guard": (lambda: changed("sum", guard=Guard("mine")), "ranks decide alone"),
    "reverses": (lambda: changed("use", reverses="ghost"), "reverses 'ghost'"),
    "unknown column": (lambda: with_buffer("halo", rows=Column("ghost")), "unknown column 'ghost'"),
    "negative column": (lambda: with_buffer("halo", rows=Column("negative")), "negative somewhere"),
    "bad dtype": (lambda: with_buffer("halo", dtype="float8"), "unknown dtype"),
    "bad depth": (lambda: with_buffer("halo", depth=0), "depth must be at least 1"),
    "copy gone": (
        lambda: changed("use", reads=op("x", "add", "c", "rows halo<<1").reads),
        "the copy of 1 turns back is gone",
    ),
    "bad root": (
        lambda: changed("sum", kind=op("x", "broadcast", "c").kind, root=9),
        "needs a root among ranks 0..2",
    ),
    "bad decision": (
        lambda: with_buffer("halo", rows=Decision("rows", Column("ghost"))),
        "unknown column 'ghost'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name, (_, message) in FAULTS.items() if message is not None])
def test_names_the_fault(name: str) -> None:
    make, message = FAULTS[name]
    with pytest.raises(ProgramError, match=message):
        validate(make())


def test_a_redundant_dependency_may_go() -> None:
    validate(FAULTS["next epoch"][0]())


def test_all_faults_are_told_at_once() -> None:
    bad = chain(make=op("make", "transform", "gpu", "ghost", "rows"), use=op("use", "aggregate", "nowhere", "rows", ""))
    with pytest.raises(ProgramError) as caught:
        validate(bad)
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize(
    ("source", "target", "rows", "message"),
    [
        ([0, 0], [1, 1], [5, 5], "none twice"),
        ([1, 0], [0, 1], [5, 5], "sorted"),
        ([0, 1], [1, 1], [5, 5], "to itself"),
        ([0, 1], [1, 7], [5, 5], "names rank 7"),
        ([0, 1], [1, 0], [5, -1], "negative rows"),
    ],
)
def test_routes_are_checked(source, target, rows, message) -> None:
    base = chain()
    route = Route(np.array(source, np.int32), np.array(target, np.int32), np.array(rows))
    broken = replace(base, sizes=replace(base.sizes, routes={"halo": route}))
    with pytest.raises(ProgramError, match=message):
        validate(broken)


def test_bytes_of_every_turn_are_conserved() -> None:
    """A route that differs by turn, against a buffer that does, or does not."""
    base, rows = chain(), np.full((RANKS * (RANKS - 1), 2, 3), ROWS)
    total = np.full((RANKS, 2, 3), ROWS * (RANKS - 1))
    route = replace(base.sizes.routes["halo"], rows=rows)

    def of(moved: np.ndarray) -> Program:
        columns = {**base.sizes.columns, "moved": moved}
        return replace(base, sizes=replace(base.sizes, routes={"halo": route}, columns=columns))

    for moved in (total, total[:, 0], total[:, 0, 0]):
        validate(of(moved))
    total[1, 1, 2] += 1
    with pytest.raises(ProgramError, match=r"rank 1 sends \d+ bytes, but buffer 'send' holds \d+, step 2, epoch 1"):
        validate(of(total))
    rows[0, 1, 0] -= 1  # rank 0 sends less to rank 1 in one turn, which fixed buffers cannot hold
    with pytest.raises(ProgramError, match=r"rank 1 receives \d+ bytes, but buffer 'halo' holds \d+, step 0, epoch 1"):
        validate(of(np.full(RANKS, ROWS * (RANKS - 1))))


@settings(deadline=None)
@given(st.lists(st.booleans(), max_size=9), st.integers(0, 2**36 - 1))
def test_uses_that_are_ordered_one_by_one_are_all_ordered(writes: list[bool], bits: int) -> None:
    """Order is passed on, so that no pair of which one writes is left out."""
    users = list(enumerate(writes))
    direct = {pair for k, pair in enumerate(combinations(range(len(users)), 2)) if bits >> k & 1}
    before: list[set[int]] = []
    for user, _ in users:
        near = [first for first, second in direct if second == user]
        before.append(set(near).union(*(before[first] for first in near)))
    if all(first in before[second] for first, second in neighbouring_uses(users)):
        for (first, one), (second, other) in combinations(users, 2):
            assert first in before[second] or not (one or other)


def test_two_streams_may_not_share_a_group() -> None:
    base = chain()
    with pytest.raises(ProgramError, match="share group 'world'"):
        validate(replace(base, streams={**base.streams, "other": Stream("other", group="world")}))
