"""Evaluations of several steps: how they are numbered and stored, what the validator asks for, and derived order."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from programs import chunked_epoch, prefetched_step
from programs.notation import op, program

from program.test_parts import programs, unsafe
from simgnn.errors import ProgramError
from simgnn.program.calendar import Calendar, Stretch, Turn
from simgnn.program.dependencies import derive_dependencies
from simgnn.program.ops import Buffer, Op, Stream, Transfer
from simgnn.program.program import Program, Template, carried, remembered, steps_that_complete
from simgnn.program.storage import load_program, program_digest, save_program
from simgnn.program.validate import validate

CHUNKS = 3


def swept(columns: dict[str, list[int]] | None = None, **templates: list[Op]) -> Program:
    """Training of two steps, then an evaluation of three whose templates are given."""
    wide = {"rows": 4, **{name: [values] for name, values in (columns or {}).items()}}
    return program(
        "swept",
        {"train": [op("train", "add", "compute", "x", "x", "train<1")], **templates},
        Calendar.of_steps([Stretch("train", 2)], [Stretch("score", 2), Stretch("sum")]),
        [Buffer("x", 4, 1, persistent=True), Buffer("scores", 4, 1), Buffer("metrics", 1, 4, persistent=True)],
        [Stream("compute"), Stream("host")],
        hosts=[0],
        columns=wide,
    )


def scored(score: str = "x", into: str = "scores[:part]", after: str = "score<1", summed: str = "score<1") -> Program:
    return swept(
        {"part/first": [0, 0, 0, 2, 0], "part/rows": [0, 0, 2, 2, 0]},
        score=[op("score", "add", "compute", score, into, after)],
        sum=[op("sum", "add", "host", "scores", "metrics", summed)],
    )


def test_steps_are_numbered_from_the_end() -> None:
    made = validate(scored())
    assert made.sweep == ("score", "score", "sum")
    assert list(made.evaluation(4)) == [Turn(4, -3, "score"), Turn(4, -2, "score"), Turn(4, -1, "sum")]
    assert [
        made.sizes.per_rank(made.templates["score"].ops[0].writes[0].part.rows, 0, step)[0] for step in (-3, -1)
    ] == [2, 0]
    assert made.calendar.followers["score"] == ("score", "sum")
    assert made.calendar.followers["sum"] == ()
    assert [made.evaluates(name) for name in made.templates] == [False, True, True]
    training, evaluation = made.views
    assert [*training.templates] == ["train"]
    assert evaluation.sizes.columns["part/first"].tolist() == [[0, 2, 0]]


def test_they_survive_the_disk(tmp_path) -> None:
    made = scored()
    save_program(made, tmp_path)
    assert load_program(tmp_path).calendar == made.calendar
    assert program_digest(load_program(tmp_path)) == program_digest(made)
    fewer = replace(made, calendar=replace(made.calendar, evaluation=made.calendar.evaluation[:1]))
    assert program_digest(fewer) != program_digest(made)


def test_an_evaluation_of_one_step_is_stated_by_its_template() -> None:
    made = prefetched_step.build(2)
    alone = replace(made, templates={**made.templates, "evaluate": replace(made.templates["step"], name="evaluate")})
    assert not made.sweep
    assert alone.sweep == ("evaluate",)
    assert alone.views == (alone,)
    assert list(alone.evaluation(2)) == [Turn(2, -1, "evaluate")]


@pytest.mark.parametrize(
    ("made", "fault"),
    [
        (scored(after=""), "nothing orders them"),
        (scored(summed=""), "nothing orders them"),
        (scored(score="scores"), "before anything has written it"),
        (scored(into="scores[:part] x"), "an epoch reads rows of the one before"),
        (scored(after="train<1 score<1"), "'train' of an earlier turn, which no template has"),
        (scored(after="score<1 score<<1"), "earlier epoch; an evaluation has none"),
        (swept({"part/first": [0, 0], "part/rows": [2, 2]}, score=[op("score", "add", "compute", "x", "scores[:part]")],
               sum=[]), "expected 5 numbers, of 2 steps and 3 of an evaluation"),
        (swept(score=[]), "'sum' for evaluations, which does not exist"),
        (swept(score=[], sum=[], evaluate=[]), "'evaluate' is one of a single step"),
        (replace(scored(), calendar=Calendar.of_steps([Stretch("train")], [Stretch("train", 3)])), "give each its own"),
    ],
)  # fmt: skip
def test_faults_are_found(made: Program, fault: str) -> None:
    with pytest.raises(ProgramError, match=fault):
        validate(made)


def test_what_an_evaluation_shares_with_training_may_be_written_first() -> None:
    """Rows of the hidden layer and the merged buffers of a chunk serve both: an epoch writes them before it reads."""
    made = validate(chunked_epoch.build(2, CHUNKS))
    training, evaluation = made.views
    written = [{a.buffer for t in view.templates.values() for o in t.ops for a in o.writes} for view in made.views]
    assert {"h1", "merged1", "merged2"} <= written[0] & written[1]
    assert "evaluation" in remembered(made)  # persistent
    assert carried(training) | carried(evaluation) <= carried(made)


@settings(max_examples=100, deadline=None)
@given(programs())
def test_no_hazard_of_an_evaluation_is_missed(made: Program) -> None:
    templates = {
        name: replace(one, ops=tuple(replace(o, after=tuple(d for d in o.after if not d.epochs_back)) for o in one.ops))
        for name, one in made.templates.items()
    }
    columns = {name: np.pad(values, ((0, 0), (1, 0))) for name, values in made.sizes.columns.items()}
    whole = program(
        "evaluated",
        {"train": [op("train", "add", "compute", "", "z", "train<1")], **{n: t.ops for n, t in templates.items()}},
        Calendar.of_steps([Stretch("train")], made.calendar.unlike),
        [*made.buffers.values(), Buffer("z", 1, 1)],
        [Stream("compute")],
        hosts=made.hosts,
        columns=columns,
    )
    _, evaluation = whole.views
    try:
        validate(whole)
    except ProgramError as error:
        assert all("orders them" in problem for problem in error.problems)  # noqa: PT017
        return
    assert not unsafe(evaluation, epochs=1)


def test_order_is_derived_within_an_evaluation() -> None:
    made = chunked_epoch.build(2, CHUNKS)
    bare = replace(
        made,
        templates={
            name: replace(
                one,
                ops=tuple(replace(o, after=tuple(d for d in o.after if "saved" in (d.op, o.name))) for o in one.ops),
            )
            for name, one in made.templates.items()
        },
    )
    derived = derive_dependencies(bare)
    validate(derived)
    training, evaluation = bare.views
    for view in (training, evaluation):
        alone = derive_dependencies(view)
        assert {name: derived.templates[name] for name in view.templates} == alone.templates
    first = derived.templates["evaluate/1"].ops
    assert all(not d.epochs_back for one in first for d in one.after)


def test_metrics_are_complete_after_the_sum_over_ranks() -> None:
    made = chunked_epoch.build(2, CHUNKS)
    assert steps_that_complete(made, "metrics") == (made.calendar.steps - 1,)
    assert steps_that_complete(made, "evaluation") == (-1,)
    loss = op("loss", "loss", "compute", "x", "y metrics")
    ops = [loss, op("sum", "allreduce", "compute", "metrics", "metrics", "loss")]
    batches = replace(scored(), calendar=Calendar("train", steps=4), templates={"train": Template("train", tuple(ops))})
    assert steps_that_complete(batches, "metrics") == (0, 1, 2, 3), "each batch begins anew"
    assert steps_that_complete(batches, "y") == (0, 1, 2, 3)
    assert steps_that_complete(batches, "x") == ()


@pytest.mark.parametrize("hosts", [[0, 0], [0, 1]])
@pytest.mark.parametrize(
    ("trained", "evaluated", "fault"),
    [
        ("start", "", "before an evaluation"),  # another rank may still read what this one writes
        ("start", "start", ""),
        ("end", "", "after an evaluation"),
        ("end", "end", ""),
    ],
)
def test_ranks_of_a_host_meet_around_an_evaluation(hosts: list[int], trained: str, evaluated: str, fault: str) -> None:
    """Ranks write rows of their host, meet, and read them, in training as in an evaluation. They also meet at the start
    or at the end of an epoch, so that no rank writes what another still reads."""

    def phase(meets: str, back: str) -> list[Op]:
        start = [op("start", "barrier", "comm", after=back and f"read{back}")] if meets == "start" else []
        end = [op("end", "barrier", "comm", after="read")] if meets == "end" else []
        before = {"start": "start", "end": f"end{back}", "": ""}[meets] if back or meets == "start" else ""
        return [
            *start,
            op("write", "d2h", "compute", "made", "x", before, transfer=Transfer(4, 6)),
            op("met", "barrier", "comm", after="write"),
            op("read", "h2d", "compute", "x", "new", f"met read{back}" if back else "met", transfer=Transfer(4, 6)),
            *end,
        ]

    made = program(
        "shared",
        {"train": phase(trained, "<1"), "score": phase(evaluated, "")},
        Calendar.of_steps([Stretch("train")], [Stretch("score")]),
        [Buffer("x", 6, 1, space="host-shared", persistent=True), Buffer("made", 6, 1, persistent=True),
         Buffer("new", 6, 1)],
        [Stream("compute"), Stream("comm", group="world")],
        hosts=hosts,
    )  # fmt: skip
    if not fault or len(set(hosts)) == 2:
        validate(made)
        return
    with pytest.raises(ProgramError, match=fault) as caught:
        validate(made)
    assert len(caught.value.problems) == 1
