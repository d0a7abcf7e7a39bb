"""Losses and metrics by parts: those of all chunks of a rank are those of its rows at once."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.handlers import handler_of
from executor.recording.metrics import History, observers
from executor.state.buffers import Now
from executor.state.context import RankContext
from executor.state.task import Task
from simgnn.errors import BackendError
from simgnn.policy import METRICS
from simgnn.program.calendar import Calendar, Stretch
from simgnn.program.kinds import OpKind
from simgnn.program.ops import Access, Buffer, Op, Part
from simgnn.program.program import Program
from simgnn.program.sizes import Column
from tests.executor.harness import reads, tiny_program, world_context

CLASSES = 4


def task_of(rows: int, seed: int, multilabel: bool) -> Task:
    random = np.random.default_rng(seed)
    split = random.integers(0, 4, rows)
    labels = torch.from_numpy(random.integers(0, 2 if multilabel else CLASSES, (rows, CLASSES) if multilabel else rows))
    chosen = [torch.from_numpy(np.flatnonzero(split == place)) for place in range(3)]
    return Task(
        features=torch.zeros(0), labels=labels.double() if multilabel else labels,
        rows=(chosen[0], chosen[1], chosen[2]), train_total=2 * rows, classes=CLASSES, multilabel=multilabel,
    )  # fmt: skip


@st.composite
def chunks_of(draw: st.DrawFn) -> tuple[int, list[slice]]:
    """Rows, and consecutive parts of them, of which some may be empty."""
    rows = draw(st.integers(0, 40))
    ends = sorted(draw(st.lists(st.integers(0, rows), max_size=5)))
    return rows, [slice(begin, end) for begin, end in zip([0, *ends], [*ends, rows], strict=True)]


@settings(deadline=None)
@given(chunks_of(), st.integers(0, 9), st.booleans())
def test_parts_add_up_to_the_whole(parts: tuple[int, list[slice]], seed: int, multilabel: bool) -> None:
    rows, chunks = parts
    task = task_of(rows, seed, multilabel)
    scores = torch.from_numpy(np.random.default_rng(seed).standard_normal((rows, CLASSES)))
    gradient, metrics = task.loss(scores)
    found = [task.part(chunk).loss(scores[chunk]) for chunk in chunks]
    # torch's vector instructions round otherwise than what they leave over
    torch.testing.assert_close(torch.cat([part for part, _ in found]), gradient, rtol=1e-14, atol=1e-16)
    torch.testing.assert_close(sum(part for _, part in found), metrics, rtol=1e-12, atol=1e-12)
    evaluated = sum(task.part(chunk).evaluate(scores[chunk]) for chunk in chunks)
    torch.testing.assert_close(evaluated, task.evaluate(scores), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("multilabel", [False, True])
def test_one_part_is_the_whole_bit_for_bit(multilabel: bool) -> None:
    task, scores = task_of(50, 1, multilabel), torch.randn(50, CLASSES, dtype=torch.float64)
    alone = task.part(slice(0, 50))
    for one, other in zip(alone.loss(scores), task.loss(scores), strict=True):
        assert torch.equal(one, other)
    assert torch.equal(alone.evaluate(scores), task.evaluate(scores))
    batches = replace(task, rows=task.rows, evaluated=task)
    assert torch.equal(
        batches.part(slice(10, 30)).evaluate(scores[10:30]), task.part(slice(10, 30)).evaluate(scores[10:30])
    )


CHUNKS, ROWS = ((0, 3), (3, 4), (7, 2)), 9


def chunked(multilabel: bool) -> Program:
    """Three chunks in training and in an evaluation; the first of each begins the sum."""
    own = Part(Column("rows"), Column("first"))
    labels, ops = Access("labels", part=own), dict[str, list[Op]]()
    for phase, buffers in (("forward", ("gradient", "metrics")), ("evaluate", ("evaluation",))):
        for name, more in ((f"{phase}/open", ()), (phase, (buffers[-1],))):
            loss = Op("loss", OpKind.LOSS, "compute", (*reads("scores"), labels, *reads(*more)), reads(*buffers))
            ops[f"{name}/1"] = [loss]
    first, rows = (np.array([column * 2]) for column in np.array(CHUNKS).T.tolist())
    return tiny_program(
        1,
        ops,
        [
            Buffer("scores", Column("rows"), CLASSES, "float64", persistent=True),
            Buffer("gradient", Column("rows"), CLASSES, "float64"),
            Buffer("labels", ROWS, CLASSES if multilabel else 1, "float64", persistent=True),
            Buffer("metrics", 1, METRICS, "float64", persistent=True),
            Buffer("evaluation", 1, 3 * METRICS, "float64", persistent=True),
        ],
        columns={"first": first, "rows": rows},
        calendar=Calendar.of_steps(
            [Stretch("forward/open/1"), Stretch("forward/1", 2)], [Stretch("evaluate/open/1"), Stretch("evaluate/1", 2)]
        ),
    )


def context_of(program: Program, task: Task) -> RankContext:
    return world_context(program, 0, {"labels": task.labels}, task=task)


@pytest.mark.parametrize("multilabel", [False, True])
def test_ops_add_to_the_metrics_of_a_sweep(multilabel: bool) -> None:
    program, task = chunked(multilabel), task_of(ROWS, 3, multilabel)
    context, history = context_of(program, task), History()
    observed = observers(program, history.observe, history.observe_evaluation)
    assert observed.steps == (2,)
    scores = [torch.randn(ROWS, CLASSES, dtype=torch.float64) for _ in range(2)]
    for epoch, whole in enumerate(scores):
        for step, name in [
            *enumerate(program.calendar.of_epoch(0)),
            *((s - 3, n) for s, n in enumerate(program.sweep)),
        ]:
            now, template = Now(epoch, step, 3 * epoch + step), program.templates[name]
            first, rows = CHUNKS[step % 3]
            context.store.setter(Access("scores"))(now, whole[first : first + rows])
            handler_of(template.ops[0], template, context)(now)
            buffer = template.ops[0].writes[-1].buffer
            observed.by_buffer[buffer](now, context.store.getter(Access(buffer))(now))
    assert list(history.losses) == [0, 1]
    for epoch, whole in enumerate(scores):
        assert history.losses[epoch] == pytest.approx(float(task.loss(whole)[1][0]), rel=1e-12)
        np.testing.assert_allclose(history.evaluations[epoch], task.evaluate(whole).tolist(), rtol=1e-12)


def test_other_rows_than_labels_are_refused() -> None:
    program, task = chunked(False), task_of(ROWS, 3, False)
    context, template = context_of(program, task), program.templates["forward/open/1"]
    now = Now(0, 0, 0)
    context.store.setter(Access("scores"))(now, torch.zeros(2, CLASSES, dtype=torch.float64))
    with pytest.raises(BackendError, match="2 rows of scores"):
        handler_of(template.ops[0], template, context)(now)
