"""Memory of blocks that are broadcast only now and then: it is the same in every epoch."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from executor.handlers import handler_of
from executor.handlers.collectives import broadcast
from executor.policies.accelerated import accelerated
from executor.state.buffers import Now
from executor.state.context import RankContext
from simgnn.policies.codec.linear import Linear
from simgnn.program.kinds import OpKind
from simgnn.program.ops import Buffer, Guard, Op, Transfer
from simgnn.program.sizes import Column
from tests.executor.harness import reads, tiny_program, world_context


def _guarded(rank: int, op: str) -> tuple[RankContext, Callable[[], None]]:
    """A rank of two, and how it runs one of the guarded broadcasts of rank 0: of ``features``, or of what is made."""
    ops = [
        Op("make", OpKind.COPY, "compute", reads("features"), reads("made")),
        *(
            Op(f"send/{source}", OpKind.BROADCAST, "comm", reads(source),
               reads(f"{source}/kept", "age", f"{source}/sent"), root=0, transfer=Transfer(16, rows=4),
               guard=Guard("agreed"))
            for source in ("features", "made")
        ),
    ]  # fmt: skip
    buffers = [Buffer("features", 4, 4, persistent=True), Buffer("made", 4, 4), Buffer("age", 2, 1, "int64", True)]
    buffers += [Buffer(f"{name}/kept", Column("elsewhere"), 4, persistent=True) for name in ("features", "made")]
    buffers += [Buffer(f"{name}/sent", 4, 4, persistent=True) for name in ("features", "made")]
    program = tiny_program(2, {"steady": ops}, buffers, columns={"elsewhere": np.array([0, 4])})
    context = world_context(program, rank, {"features": torch.ones(4, 4), "age": torch.full((2, 1), -1)})
    context.store.values[context.store.slot("made")] = torch.full((4, 4), 2.0)
    template = program.templates["steady"]
    run = broadcast(template.ops[template.index[op]], template, context)
    return context, lambda: run(Now(0, 0, 0))  # type: ignore[func-returns-value, return-value]


def test_a_block_that_may_stay_arrives_in_memory_that_was_there_before_the_first_turn() -> None:
    context, run = _guarded(1, "send/made")
    assert "made/kept" in context.store._rooms, "an epoch that ends before it arrives first holds as much as any other"
    run()
    found = context.store.values[context.store.slot("made/kept")]
    assert found is context.store.room("made/kept")


@pytest.mark.parametrize(("source", "same"), [("features", True), ("made", False)])
def test_what_was_sent_is_a_copy_from_the_first_epoch_on_unless_it_never_changes(source: str, same: bool) -> None:
    context, run = _guarded(0, f"send/{source}")
    run()
    rows, sent = (context.store.values[context.store.slot(name)] for name in (source, f"{source}/sent"))
    assert isinstance(rows, torch.Tensor)
    assert isinstance(sent, torch.Tensor)
    assert torch.equal(rows, sent)
    assert (rows.data_ptr() == sent.data_ptr()) == same


def test_memory_of_a_decoded_block_that_may_stay_is_there_until_it_first_arrives() -> None:
    ops = [Op("encode", OpKind.ENCODE, "compute", reads("rows"), reads("coded"), module="codec", action="EncodeRows"),
           Op("decode", OpKind.DECODE, "compute", reads("coded"), reads("kept"), module="codec", action="DecodeRows",
              guard=Guard("agreed"))]  # fmt: skip
    codec = Linear(bits=8)
    buffers = [Buffer("rows", 4, 4), Buffer("coded", 4, codec.row_bytes(4, "float32"), "uint8")]
    program = tiny_program(1, {"steady": ops}, [*buffers, Buffer("kept", 4, 4, persistent=True)])
    context = world_context(program, 0, policies={"codec": accelerated(codec)})
    template, now = program.templates["steady"], Now(0, 0, 0)
    context.store.values[context.store.slot("rows")] = torch.rand(4, 4)
    run = handler_of(template.ops[1], template, context)
    assert context.store._reserved["kept"].shape == (4, 4)
    handler_of(template.ops[0], template, context)(now)
    run(now)
    assert not context.store._reserved, "else it were there twice"
