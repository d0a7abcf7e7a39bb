"""Which template an epoch uses, and what is derived from that for programs whose epochs differ."""

from dataclasses import replace
from itertools import groupby, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs.notation import op, program

from simgnn.errors import ProgramError
from simgnn.program.calendar import (
    FIRST,
    STEADY,
    Calendar,
    Cycle,
    Epochs,
    epoch_names,
    special_epochs,
    templates_of,
    templates_without,
)
from simgnn.program.dependencies import derive_dependencies, windows
from simgnn.program.ops import Buffer, Dependency, Stream
from simgnn.program.program import Program, remembered
from simgnn.program.storage import load_program, program_digest, save_program
from simgnn.program.validate import validate

PERIODS = st.lists(st.integers(1, 7).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n - 1))), max_size=3)


def calendar_of(places: list[tuple[int, int]], first: bool) -> Calendar:
    return Calendar.of_epochs(tuple(Cycle("abc"[n], *place) for n, place in enumerate(places)), first)


def plainly(places: list[tuple[int, int]], first: bool, epoch: int) -> str:
    """The template of an epoch by its definition."""
    names = ["abc"[n] for n, (period, position) in enumerate(places) if epoch % period == position]
    return "+".join([FIRST, *names] if first and not epoch else names) or STEADY


@given(PERIODS, st.booleans(), st.integers(1, 4))
def test_calendar_against_its_definition(places: list[tuple[int, int]], first: bool, longest: int) -> None:
    calendar = calendar_of(places, first)
    long = 3 * calendar.period + 3
    names = [plainly(places, first, epoch) for epoch in range(long)]
    assert [turn.template for turn in calendar.turns(long)] == names
    assert set(calendar.templates) == set(names)
    assert calendar.templates[0] == names[0]
    later = names[calendar.period : 2 * calendar.period]
    assert calendar.shares == pytest.approx({name: later.count(name) / len(later) for name in later})
    folded = calendar.sequence(longest)
    assert set(pairwise(calendar.sequence(longest + 1))) == set(pairwise(names)), "every two epochs in a row"
    assert max(len(list(alike)) for _, alike in groupby(folded)) <= longest
    if longest > 1:
        stretches = [[name for name, _ in groupby(listed)] for listed in (folded, names)]
        shorter = min(map(len, stretches))
        assert stretches[0][: shorter - 1] == stretches[1][: shorter - 1]


def test_a_period_longer_than_any_run_costs_nothing() -> None:
    calendar = Calendar.of_epochs(Epochs(10**12, {"assign": 10**12 - 1}).cycles, first=True)
    assert calendar.templates == (FIRST, STEADY, "assign")
    assert len(calendar.sequence(3)) == 12
    assert calendar.template(10**12 - 1) == "assign"
    assert calendar.shares == {"assign": 1e-12, STEADY: 1 - 1e-12}


def test_a_policy_finds_its_templates() -> None:
    every = Calendar.of_epochs((Cycle("refresh", 2), Cycle("assign", 3, 2)), first=True).templates
    assert every == ("first+refresh", STEADY, "refresh+assign", "refresh", "assign")
    assert set(templates_of(every, "refresh")) == {"first+refresh", "refresh+assign", "refresh"}
    assert set(templates_without((*every, "evaluate"), "refresh")) == {STEADY, "assign", "evaluate"}
    assert epoch_names("first+refresh") == (FIRST, "refresh")
    assert Epochs(3, {"assign": 2}).names(5) == ("assign",)
    assert special_epochs((Cycle("refresh", 10), Cycle("assign", 50, 49))) == 6


@pytest.mark.parametrize(
    "epochs",
    [
        Epochs(0), Epochs(True), Epochs(2.5), Epochs(3, {"a": 3}), Epochs(3, {"a": -1}), Epochs(3, {"a": 1.0}),
        Epochs(3, {"first": 0}), Epochs(3, {"a+b": 0}), Epochs(3, {"": 0}),
    ],
)  # fmt: skip
def test_epochs_that_cannot_be_are_described(epochs: Epochs) -> None:
    assert len(list(epochs.faults())) == 1
    assert not list(Epochs(3, {"a": 0, "b": 2}).faults())


def kept_rows(traced: bool = False) -> Program:
    """Rows that arrive in every fourth epoch and are read in all; each epoch begins with the sum that ends the one
    before. ``traced``: refreshes have two more ops, for which no other op waits."""
    use = op("use", "aggregate", "compute", "kept weights", "out")
    end = op("end", "transform", "compute", "out weights", "weights")
    traces = [op("trace", "select", "side", "kept", "range"), op("told", "select", "side", "range", "answer")]
    arrive = op("arrive", "copy", "copy_in", "weights", "kept")
    return program(
        "kept", {"refresh": [arrive, use, *(traces if traced else []), end], "steady": [use, end]},
        Calendar(STEADY, cycles=(Cycle("refresh", 4),)),
        [Buffer("kept", 5, 2), Buffer("out", 5, 2), Buffer("weights", 1, 2, persistent=True), Buffer("range", 1, 1),
         Buffer("answer", 1, 1)],
        [Stream("compute"), Stream("copy_in"), Stream("side")], (0,),
    )  # fmt: skip


def test_dependencies_reach_from_one_kind_of_epoch_to_the_next() -> None:
    derived = validate(derive_dependencies(kept_rows()))
    for name in (STEADY, "refresh"):
        assert Dependency("end", epochs_back=1) in derived.templates[name].ops[0].after
    assert "kept" in remembered(derived), "a checkpoint holds them"
    (window,) = windows(derived)
    names = [turn.template for turn in window.turns]
    assert [name for name, _ in groupby(names)] == ["refresh", STEADY] * 3


def test_uses_in_far_refreshes_are_ordered_by_way_of_the_epoch_between() -> None:
    """Nothing waits for the op "told"; its next run, four epochs later, must not overtake this one."""
    made = kept_rows(traced=True)
    derived = validate(derive_dependencies(made))
    (use, end), refresh = derived.templates[STEADY].ops, derived.templates["refresh"]
    assert Dependency("told", epochs_back=1) in (*use.after, *end.after)
    assert max(each.epochs_back for one in (*refresh.ops, use, end) for each in one.after) == 1
    without = {**derived.templates, STEADY: replace(derived.templates[STEADY], ops=tuple(
        replace(one, after=tuple(each for each in one.after if each.op != "told")) for one in (use, end)
    ))}  # fmt: skip
    with pytest.raises(ProgramError, match=r"'answer' is used by 'told' .* and 'told' .* nothing orders them"):
        validate(replace(derived, templates=without))


def test_a_calendar_that_cannot_be_is_named() -> None:
    good = kept_rows()
    for cycles in ((Cycle("refresh", 0),), (Cycle("refresh", 4, 4),)):
        with pytest.raises(ProgramError, match="the calendar has 'refresh'"):
            validate(replace(good, calendar=replace(good.calendar, cycles=cycles)))
    with pytest.raises(ProgramError, match="several steps"):
        validate(replace(good, calendar=replace(good.calendar, steps=2)))
    with pytest.raises(ProgramError, match="template 'refresh', which does not exist"):
        validate(replace(good, templates={STEADY: good.templates[STEADY]}))


def test_it_survives_the_disk(tmp_path) -> None:
    made = derive_dependencies(kept_rows())
    save_program(made, tmp_path)
    back = load_program(tmp_path)
    assert back.calendar == made.calendar
    assert program_digest(back) == program_digest(made)
    longer = replace(made, calendar=Calendar(STEADY, cycles=(Cycle("refresh", 5),)))
    assert program_digest(longer) != program_digest(made)
    assert np.all([back.templates[name].ops == made.templates[name].ops for name in made.templates])
