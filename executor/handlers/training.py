"""Ops for training: the loss (also of an evaluation), the optimizer step, dropout."""

from collections.abc import Callable

import torch

from executor.kernels.dropout import drop_out
from executor.state.buffers import Now
from executor.state.context import Handler, RankContext
from executor.state.task import Task
from simgnn.errors import BackendError
from simgnn.program.ops import Op
from simgnn.program.program import Template
from simgnn.sampling.draw.seeds import dropout_seed, layer_key


def loss(op: Op, template: Template, context: RankContext, by_rank: bool = False) -> Handler:
    """Compute the loss of the last layer's rows, which the op reads first.

    In training the op writes the gradient of these rows, then the metrics. In an evaluation (one buffer written) it
    writes the counts of train, validation and test rows. Second it reads the labels: of all own rows, or the part of
    them that the rows belong to. If it reads the buffer of metrics too, it adds to it: so the chunks of an epoch or an
    evaluation, of which the first alone does not read it, leave there what all rows together would.

    For a mini-batch (three buffers written) it reads second the positions of the rows among the rank's training
    vertices (int64 [b]). It writes the divisor of summed gradients to the third buffer: the number of rows. With
    ``by_rank`` the gradient is that of this rank's mean, and the divisor counts the ranks that have rows.
    """
    assert context.task is not None, "a program with a loss has labels"
    task, read = context.task, context.store.getter(op.reads[0])
    task_of, note = _tasks(op, context, task), _metrics_noted(op, context)
    if len(op.writes) == 1:
        return lambda now: note(now, task_of(now, rows := read(now)).evaluate(rows))
    put_gradient = context.store.setter(op.writes[0])

    def run(now: Now) -> None:
        rows = read(now)
        gradient, metrics = task_of(now, rows).loss(rows)
        put_gradient(now, gradient)
        note(now, metrics)

    if len(op.writes) == 2:
        return run
    read_seeds, count = context.store.getter(op.reads[1]), context.store.getter(op.writes[2])

    def run_batch(now: Now) -> None:
        seeds = read_seeds(now)
        gradient, metrics = task.batch_loss(read(now), seeds)
        if by_rank:
            gradient.div_(max(len(seeds), 1))
        put_gradient(now, gradient)
        note(now, metrics)
        context.note_loss(now, metrics)
        count(now).fill_(min(len(seeds), 1) if by_rank else len(seeds))

    return run_batch


def _tasks(op: Op, context: RankContext, whole: Task) -> Callable[[Now, torch.Tensor], Task]:
    """Return a function of the turn and of scores that gives the task on the rows whose labels a loss reads."""
    part = op.reads[1].part if len(op.reads) > 1 else None
    if part is None:
        return lambda now, scores: whole
    select, known = context.store.selection(part), dict[tuple[int, int], Task]()

    def task_of(now: Now, scores: torch.Tensor) -> Task:
        rows = select(now)
        if not isinstance(rows, slice) or len(scores) != rows.stop - rows.start:
            raise BackendError(
                f"op '{op.name}' has {len(scores)} rows of scores for {rows} of '{op.reads[1].buffer}', expected a "
                "range of as many labels; prepare the run again"
            )
        key = rows.start, rows.stop
        if key not in known:
            known[key] = whole.part(rows)
        return known[key]

    return task_of


def _metrics_noted(op: Op, context: RankContext) -> Callable[[Now, torch.Tensor], None]:
    """Return a function that puts the metrics of a loss into their buffer, or adds them to it."""
    access = op.writes[min(1, len(op.writes) - 1)]
    put = context.store.setter(access)
    if access not in op.reads:
        return put
    before = context.store.getter(access)
    return lambda now, metrics: put(now, before(now) + metrics)


def optimize(op: Op, template: Template, context: RankContext) -> Handler:
    """Take one optimizer step with the summed gradients, at the epoch's learning rate, and set them to zero."""
    assert context.optimizer is not None
    optimizer, rate_of = context.optimizer, context.rate_of

    def run(now: Now) -> None:
        if rate_of is not None:
            optimizer.rate = rate_of(now.epoch)
        optimizer.step()

    return run


def dropout(op: Op, template: Template, context: RankContext, batched: bool = False) -> Handler:
    """Drop random elements of the rows that the op reads first, and write the result; backward drops the same elements
    of the gradient. The second buffer that the op reads begins with the vertices of these rows. The mask depends on
    seed, epoch, layer and vertex only (:mod:`executor.kernels.dropout`), so that copies of a vertex on several ranks
    stay equal; with ``batched`` also on the mini-batch. ``options["dropped"]``: their share times 65,536."""
    read, vertices = (context.store.getter(access) for access in op.reads)
    put = context.store.setter(op.writes[0])
    dropped = int(op.options["dropped"])

    def run(now: Now) -> None:
        batch = (context.rank, now.step) if batched else None
        rows: torch.Tensor = read(now)
        key = layer_key(dropout_seed(context.seed, now.epoch, batch), op.layer)
        put(now, drop_out(rows, vertices(now)[: len(rows)], key, dropped))

    return run
