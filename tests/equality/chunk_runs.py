"""Runs of chunks, and the bytes that each copy between host and device moves, counted from the tensors."""

from collections.abc import Callable, Sequence
from typing import Any, cast
from unittest.mock import patch

import torch

import executor.handlers as handlers
import executor.handlers.rows as rows
from executor.state.buffers import Now
from executor.state.context import Factory, Handler, RankContext
from simgnn.program.kinds import OpKind
from simgnn.program.ops import Op
from simgnn.program.program import Template
from tests.executor.runs import train_in_process

Moved = dict[tuple[int, str], int]
"""(step of an epoch, name of an op) -> bytes that its copies moved on a rank."""


def train_counting(rank: int, ranks: int, folder: str) -> dict[str, Any]:
    """Carry out a run; ``moved``: (epoch, step, op, bytes) of each copy between host and device, and of each addition
    on the host."""
    moved: list[tuple[int, int, str, int]] = []
    held: list[int] = []
    move, copy = rows.move_rows, torch.Tensor.copy_
    clone = torch.Tensor.clone

    def note(value: torch.Tensor) -> None:
        held.append(value.numel() * value.element_size())

    def counting_move(source: torch.Tensor, index: Any, target: torch.Tensor, there: Any) -> None:
        held.append(len(index) * source.shape[1] * source.element_size())
        move(source, index, target, there)

    def counted(factory: Factory) -> Factory:
        def make(op: Op, template: Template, context: RankContext) -> Handler:
            run = factory(op, template, context)

            def run_and_count(now: Now) -> None:
                held.clear()
                with (
                    patch.object(rows, "move_rows", counting_move),
                    patch.object(torch.Tensor, "copy_", _noting(copy, note)),
                    patch.object(torch.Tensor, "clone", _noting(clone, note)),
                ):
                    run(now)
                moved.append((now.epoch, now.step, op.name, sum(held)))

            return run_and_count

        return make

    plain = cast(Any, handlers.HANDLERS)
    with patch.dict(plain, {kind: counted(plain[kind]) for kind in (OpKind.H2D, OpKind.D2H)}):
        (result,) = train_in_process(rank, ranks, [folder])
    return {**result, "moved": moved}


def _noting(function: Callable[..., Any], note: Callable[[torch.Tensor], None]) -> Callable[..., Any]:
    def run(tensor: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        note(tensor)
        return function(tensor, *arguments, **options)

    return run


def summed(ranks: Sequence[dict[str, Any]], epoch: int) -> Moved:
    """Add up over ranks what copies of an epoch moved."""
    found: Moved = {}
    for result in ranks:
        for at, step, name, nbytes in result["moved"]:
            if at == epoch and step >= 0:
                found[step, name] = found.get((step, name), 0) + nbytes
    return found
