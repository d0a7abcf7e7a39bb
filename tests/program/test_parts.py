"""Parts of buffers: which accesses may touch the same row, and hazards of random programs of unlike steps."""

import re
from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import chunked_epoch
from programs.notation import op, program

from simgnn.errors import ProgramError
from simgnn.program.calendar import Calendar, Stretch
from simgnn.program.dependencies import Unrolled
from simgnn.program.ops import Buffer, Op, Part, Stream, Transfer
from simgnn.program.parts import Use, covers
from simgnn.program.program import Program, Template, carried, remembered
from simgnn.program.sizes import Column
from simgnn.program.storage import load_program, program_digest, save_program
from simgnn.program.validate import validate

ROWS = 12
NAMES = ("p", "q", "r")


def columns(numbers: list[list[tuple[int, int]]]) -> dict[str, np.ndarray]:
    """The columns of parts called "part0", ...: of one rank and then of a second one, which touches a row less."""
    found = {}
    for name, spans in enumerate(numbers):
        first = np.array([[begin for begin, _ in spans]] * 2)
        rows = np.array([[count for _, count in spans], [max(count - 1, 0) for _, count in spans]])
        found |= {f"part{name}/first": first, f"part{name}/rows": rows}
    return found


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Steps of two or three kinds with a few ops that touch two buffers, wholly or in parts, in some order."""
    lengths = draw(st.lists(st.integers(1, 11), min_size=2, max_size=3))
    steps = sum(lengths)
    width = draw(st.integers(1, 4))
    tiled = [(step * width % ROWS, min(width, ROWS - step * width % ROWS)) for step in range(steps)]
    random = [draw(st.tuples(st.integers(0, ROWS - 2), st.integers(0, 2))) for _ in range(steps)]
    touches = st.sampled_from(["x", "x[:part0]", "x[:part1]", "y", "y[:part0]", ""])
    back = st.sampled_from(["", "<1", "<1", "<<1"])
    templates: dict[str, list[Op]] = {}
    for place in range(len(lengths)):
        ops: list[Op] = []
        for number in range(draw(st.integers(1, 3))):
            after = [f"{name}<1" for name in draw(st.lists(st.sampled_from(NAMES), unique=True))]
            after += [made.name for made in ops if draw(st.booleans())]
            after += [f"{NAMES[number]}{draw(back)}"]
            words = dict.fromkeys(word for word in after if word not in NAMES[number:])
            ops.append(op(NAMES[number], "add", "compute", draw(touches), draw(touches), " ".join(words)))
        templates[f"t{place}"] = ops
    every = {made.name for ops in templates.values() for made in ops}
    for name, ops in templates.items():
        templates[name] = [replace(made, after=tuple(d for d in made.after if d.op in every)) for made in ops]
    return program(
        "random",
        templates,
        Calendar.of_steps(Stretch(f"t{place}", length) for place, length in enumerate(lengths)),
        [Buffer("x", ROWS, 1, persistent=True), Buffer("y", ROWS, 1, persistent=True)],
        [Stream("compute")],
        hosts=[0, 1],
        columns=columns([tiled, random]),
    )


def unsafe(made: Program, epochs: int = 3) -> bool:
    """Whether two uses of a row, one writing, are in no order, in some whole epochs."""
    graph = Unrolled(made, tuple(made.calendar.turns(epochs)))
    uses: dict[str, list[tuple[int, bool, list[set[int]]]]] = {}
    for index, node in enumerate(graph.nodes):
        turn = graph.turns[node.turn]
        for access, writes in [(a, False) for a in node.op.reads] + [(a, True) for a in node.op.writes]:
            part = access.part or Part(ROWS)
            first, count = (made.sizes.per_rank(size, turn.epoch, turn.step) for size in (part.first, part.rows))
            rows = [set(range(begin, begin + many)) for begin, many in zip(first, count, strict=True)]
            uses.setdefault(access.buffer, []).append((index, writes, rows))
    return any(
        (one_writes or other_writes)
        and first != second
        and any(here & there for here, there in zip(rows, others, strict=True))
        and not graph.ordered(first, second)
        for users in uses.values()
        for (first, one_writes, rows), (second, other_writes, others) in combinations(users, 2)
    )


@settings(max_examples=150, deadline=None)
@given(programs())
def test_no_hazard_of_a_long_epoch_is_missed(made: Program) -> None:
    try:
        validate(made)
    except ProgramError as error:
        assert all("orders them" in problem for problem in error.problems)  # noqa: PT017
        return
    assert not unsafe(made)


def tiles(steps: int, gap: int = 0) -> Program:
    """Steps that write one row after the other, in no order; every ``gap``-th writes that of the step before."""
    first = np.array([[step - (gap > 0 and step > 0 and step % gap == 0) for step in range(steps)]])
    write = op("write", "add", "compute", "", "x[:part]", "read<1")
    return program(
        "tiles",
        {"write": [write], "read": [op("read", "add", "compute", "x", "", "write<1")]},
        Calendar.of_steps([Stretch("write", steps), Stretch("read")]),
        [Buffer("x", steps, 1, persistent=True)],
        [Stream("compute")],
        hosts=[0],
        columns={"part/first": np.append(first, [[0]], axis=1), "part/rows": np.append(first * 0 + 1, [[0]], axis=1)},
    )  # fmt: skip


def test_parts_that_are_apart_need_no_order_among_themselves() -> None:
    """In other epochs they write the same rows, and the last one alone has ended when all rows are read."""

    def found(made: Program) -> set[tuple[bool, bool]]:
        with pytest.raises(ProgramError) as caught:
            validate(made)
        ends = (
            re.search(r"by '(\w+)' \(epoch (\d+),.* and '(\w+)' \(epoch (\d+),", each) for each in caught.value.problems
        )
        return {(end[1] == end[3], end[2] == end[4]) for end in ends if end is not None}

    alike, same_epoch = True, True
    assert found(tiles(40)) == {(alike, not same_epoch), (not alike, same_epoch), (not alike, not same_epoch)}
    assert (alike, same_epoch) in found(tiles(40, gap=9))


def test_overlaps_against_sets_of_rows() -> None:
    random = np.random.default_rng(0)
    answers = set()
    for _ in range(300):
        steps = int(random.integers(1, 5))
        spans = random.integers(0, 2 if random.random() < 0.5 else 9, (2, 2, steps))
        spans[:, 0] += np.arange(steps) * random.integers(0, 3)
        table = {f"part{n}/{key}": spans[n, at][None] for n in range(2) for at, key in enumerate(("first", "rows"))}
        made = program("two", {"t": []}, Calendar("t", steps=steps), [Buffer("x", 99, 1)], [], hosts=[0], columns=table)
        one, other = (Use("t", 0, Part(Column(f"part{n}/rows"), Column(f"part{n}/first")), True) for n in range(2))
        rows = [[set(range(first, first + count)) for first, count in spans[n].T.tolist()] for n in range(2)]
        common = {(s, t) for s, t in product(range(steps), repeat=2) if rows[0][s] & rows[1][t]}
        found = made.overlaps
        assert found.anywhere("x", one, other) == bool(common)
        assert found.in_one_turn("x", one, other) == any(s == t for s, t in common)
        apart = not any(rows[1][s] & rows[1][t] for s, t in combinations(range(steps), 2))
        if apart:
            assert found.in_other_steps("x", one, other) == any(s != t for s, t in common)
        elif any(s != t for s, t in common):
            assert found.in_other_steps("x", one, other)
        answers.add((bool(common), apart))
    assert len(answers) == 4


@pytest.mark.parametrize("hosts", [[0, 0], [0, 1]])
def test_ranks_of_a_host_wait_before_they_read_rows_of_others(hosts: list[int]) -> None:
    """Each rank writes its rows of memory that a host's ranks share, chunk by chunk; then all read any of them."""

    def made(waits: str, shift: int = 3) -> Program:
        first = np.array([[0, 1, 2, 0], [0, 1, 2, 0]]) + shift * np.arange(2)[:, None]
        rows = np.array([[1, 1, 1, 0]] * 2)
        return program(
            "shared",
            {
                "write": [op("write", "d2h", "compute", "made", "x[:part]", "write<1 read<1", transfer=Transfer(4, 1))],
                "read": [
                    op("all", "barrier", "comm", after="write<1"),
                    op("read", "h2d", "compute", "x", "new", waits, transfer=Transfer(4, 6)),
                    op("end", "barrier", "comm", after="read"),
                ],
            },
            Calendar.of_steps([Stretch("write", 3), Stretch("read")]),
            [Buffer("x", 6, 1, space="host-shared", persistent=True), Buffer("made", 1, 1, persistent=True),
             Buffer("new", 6, 1)],
            [Stream("compute"), Stream("comm", group="world")],
            hosts=hosts,
            columns={"part/first": first, "part/rows": rows},
        )  # fmt: skip

    if len(set(hosts)) == 2:  # nobody shares
        validate(made("write<1"))
        return
    validate(replace(made("all"), templates=_after(made("all"), "write", "write<1 end<1")))
    with pytest.raises(ProgramError, match=r"'write' .* and 'read' .* no collective or barrier lies between them"):
        validate(made("write<1"))
    # chunks of one rank that are rows of the other, in another step
    with pytest.raises(ProgramError, match=r"'write' .* and 'write' .* no collective or barrier lies between them"):
        validate(made("all", shift=1))


def _after(made: Program, name: str, words: str) -> dict[str, Template]:
    after = op("x", "add", "c", after=words).after
    return {
        key: Template(key, tuple(replace(one, after=after) if one.name == name else one for one in template.ops))
        for key, template in made.templates.items()
    }


def test_a_checkpoint_holds_what_the_next_epoch_reads() -> None:
    """Rows of later layers are written before they are read, chunk by chunk, and fill their buffers."""
    made = chunked_epoch.build(3, 4)
    between = carried(made) - remembered(made)
    assert between == {"h1", "g1", "g2", "kept1", "kept2"}
    names = [stretch.template for stretch in made.calendar.unlike[:3]]
    assert names == ["forward/1", "forward/2/open", "forward/2"]
    own = Part(Column("own/rows"), Column("own/first"))
    below, opening, rest = (Use(name, place, own, True) for place, name in enumerate(names))
    training, _ = made.views
    assert covers(training.overlaps, "h1", below)
    assert covers(training.overlaps, "h1", opening, rest)
    assert not covers(training.overlaps, "h1", opening)
    assert not covers(training.overlaps, "h1", below, opening)
    short = {name: column.copy() for name, column in made.sizes.columns.items()}
    short["own/rows"][:, 1] -= 1
    partial = replace(made, sizes=replace(made.sizes, columns=short))
    assert {"h1", "kept1"} <= remembered(partial), "a row is missing in the second chunk"


def test_parts_and_unlike_steps_survive_the_disk(tmp_path) -> None:
    made = chunked_epoch.build()
    save_program(made, tmp_path)
    again = load_program(tmp_path)
    assert again.calendar == made.calendar
    assert again.templates == made.templates
    assert program_digest(again) == program_digest(made)
    other = replace(made, calendar=replace(made.calendar, unlike=made.calendar.unlike[::-1]))
    assert program_digest(other) != program_digest(made)


def changed(template: str, name: str, **fields) -> Program:
    made = chunked_epoch.build()
    ops = tuple(replace(one, **fields) if one.name == name else one for one in made.templates[template].ops)
    return replace(made, templates={**made.templates, template: replace(made.templates[template], ops=ops)})


def accesses(reads: str, writes: str) -> dict:
    made = op("x", "h2d", "copy_in", reads, writes)
    return {"reads": made.reads, "writes": made.writes}


FAULTS = {
    "no column": (("forward/1", "keep", accesses("a1", "kept1[:ghost]")), "unknown column 'ghost/first'"),
    "beyond": (("forward/1", "keep", accesses("a1", "labels[:load_to]")), r"ends at row \d+ on rank \d"),
    "no list": (("forward/1", "load", accesses("h0[load_from]", "merged1[ghost]")), "'ghost', which is no buffer"),
    "elsewhere": (("forward/1", "load", accesses("h0[load_to]", "merged1[load_to]")), "lie in the same memory"),
    "differs": (("forward/1", "keep", accesses("kept1[:own]", "a1[:own]")), "the buffer's rows differ by turn"),
    "moved": (("forward/1", "keep", {"transfer": Transfer(24, 1)}), "moves 24 bytes, its part of buffer 'kept1' has"),
    "read": (("forward/1", "gather", {"transfer": Transfer(8)}), "but buffer 'merged1' holds"),
    "unread": (("forward/1", "load", {"reads": op("x", "add", "c", "h0").reads}), "must read the list 'load_to'"),
    "gradients": (("backward/2", "push", {"route": "need"}), "but buffer 'gremote2' holds"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_names_the_fault(name: str) -> None:
    (template, of, fields), message = FAULTS[name]
    with pytest.raises(ProgramError, match=message):
        validate(changed(template, of, **fields))


CALENDARS = {
    "empty stretch": ({"unlike": (Stretch("update", 0),), "steps": 0}, "a stretch without steps"),
    "sum": ({"steps": 99}, "do not add up to its 99 steps"),
    "unknown": ({"unlike": (Stretch("ghost"),), "steps": 1}, "names template 'ghost'"),
    "first": ({"first": "update"}, "do not go together"),
}


@pytest.mark.parametrize("name", CALENDARS)
def test_calendars_of_unlike_steps_are_checked(name: str) -> None:
    made, (fields, message) = chunked_epoch.build(), CALENDARS[name]
    with pytest.raises(ProgramError, match=message):
        validate(replace(made, calendar=replace(made.calendar, **fields)))


def test_an_evaluation_is_none_of_the_steps() -> None:
    made, _ = chunked_epoch.build().views
    ops = tuple(replace(one, after=()) for one in made.templates["forward/1"].ops if one.name in ("gather", "keep"))
    evaluated = replace(made, templates={**made.templates, "evaluate": Template("evaluate", ops)})
    with pytest.raises(ProgramError) as caught:
        validate(evaluated)
    assert [p for p in caught.value.problems if "'gather' has sizes by step (read, received/first" in p]
    assert [p for p in caught.value.problems if "'keep' has sizes by step (own/first, own/rows)" in p]


def test_columns_cover_an_epoch() -> None:
    made = chunked_epoch.build()
    short = {**made.sizes.columns, "own/rows": made.sizes.columns["own/rows"][:, :12]}
    with pytest.raises(ProgramError, match=r"column 'own/rows' has numbers for 12 steps, an epoch has 13"):
        validate(replace(made, sizes=replace(made.sizes, columns=short)))
