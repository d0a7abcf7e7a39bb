"""Guards at run time: what a rank wants, what all agree on, and the two checks that no bound is exceeded."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from executor.handlers import handler_of
from executor.handlers.decisions import check_agreement
from executor.state.buffers import Now
from executor.state.context import GroupHandle, RankContext
from simgnn.emit.guarded_blocks import Agree
from simgnn.errors import BackendError
from simgnn.policies.codec.none import Plain
from simgnn.policies.freshness.skip_broadcast import SkipBroadcast
from simgnn.policy import PolicyContext
from simgnn.program.kinds import OpKind
from simgnn.program.ops import Buffer, Guard, Op, Transfer
from simgnn.program.program import Program
from tests.executor.harness import reads, run_ranks, tiny_program, world_context

GAP = SkipBroadcast(rule="variation-gap", bound_change=0.1)


class Liar(SkipBroadcast):
    """Says that nobody has to send."""

    def active(self, epoch: int, versions: Any, changed: Any = None) -> tuple[bool, ...]:
        """Nobody."""
        return (False,) * len(versions)


class Summing:
    """Stands in for blocks of edges: adds rows to the sums so far. Rank 0 has none."""

    degrees = ((), (1, 1), (1, 1))

    def block(self, scaling: str, root: int, transposed: bool) -> "Summing":
        """Itself."""
        return self

    def add(self, rows: torch.Tensor, total: torch.Tensor | None, finish: bool) -> torch.Tensor:
        """The rows."""
        return rows if total is None else total + rows


def at(epoch: int) -> Now:
    return Now(epoch, 0, epoch)


def program() -> Program:
    ops = [
        Op("flag", OpKind.SELECT, "compute", reads("rows", "sent"), reads("flag", "change"), module="freshness",
           action="FlagChange"),
        Op("agree", OpKind.SELECT, "compute", reads("versions", "flags", "change"), reads("versions", "active"),
           module="freshness", action="Agree", options={"point": "agreed/1/forward"}),
        *(Op(f"broadcast/{root}", OpKind.BROADCAST, "comm", reads("rows", "active"), reads(f"cache/{root}"), root=root,
             transfer=Transfer(8), guard=Guard(f"agreed/1/forward/root-{root}", agreed=True)) for root in (0, 2)),
        Op("sum", OpKind.AGGREGATE, "compute", reads("rows", "cache/2", "versions"), reads("total"),
           options={"block": 2, "scaling": "sum", "finish": 1, "versions": "versions", "oldest_epochs": 2}),
    ]  # fmt: skip
    names = {access.buffer for op in ops for access in op.reads + op.writes}
    buffers = [Buffer(name, 2, 1, persistent=True) for name in sorted(names - {"versions"})]
    return tiny_program(3, {"steady": ops}, [*buffers, Buffer("versions", 3, 1, "int64", persistent=True)])


def context_of(made: Program, policy: SkipBroadcast, **values: torch.Tensor) -> RankContext:
    found = world_context(made, 1, policies={"freshness": policy, "codec": Plain()}, blocks=Summing())
    for name, value in values.items():
        found.store.values[found.store.slot(name)] = value
    return found


def value(context: RankContext, name: str) -> Any:
    return context.store.values[context.store.slot(name)]


def handler(context: RankContext, name: str) -> Any:
    template = context.program.templates["steady"]
    return handler_of(template.ops[template.index[name]], template, context)


def test_a_rank_flags_what_has_moved() -> None:
    context = context_of(program(), GAP, rows=torch.tensor([[1.0], [2.0]]))
    run = handler(context, "flag")
    run(at(0))
    assert value(context, "flag").tolist() == [[1]], "nothing was sent yet"
    for moved, wants in ((0.01, 0), (0.5, 1), (float("nan"), 1)):
        sent = torch.tensor([[1.0], [2.0 + moved]])
        context.store.values[context.store.slot("sent")] = sent
        run(at(1))
        assert value(context, "flag").tolist() == [[wants]]
        assert value(context, "flag").dtype == torch.uint8


def test_guards_are_those_of_the_template() -> None:
    noted = []
    flags = torch.tensor([[0], [1], [0]], dtype=torch.uint8)
    context = context_of(program(), GAP, flags=flags, change=torch.tensor([[0.0, 1.0]], dtype=torch.float64))
    context.note = lambda now, name, peer, decided: noted.append((now.epoch, name, decided))
    run = handler(context, "agree")
    run(at(0))
    assert value(context, "versions").tolist() == [[0]] * 3
    assert value(context, "active").tolist() == [[1]] * 3
    assert noted == [(0, "agreed/1/forward/root-0", 1), (0, "agreed/1/forward/root-2", 1)], "rank 1 has no rows"
    value(context, "versions")[:] = 1
    run(at(1))
    assert value(context, "active").tolist() == [[0], [1], [0]]
    assert context.decisions == {"agreed/1/forward/root-0": 0, "agreed/1/forward/root-2": 0}


def test_a_change_beyond_the_bound_that_is_not_sent_ends_the_run() -> None:
    flags = torch.ones((3, 1), dtype=torch.uint8)
    settled = torch.ones((3, 1), dtype=torch.int64)
    liar = Liar(rule="variation-gap", bound_change=0.1)
    for gap, limit, fails in ((0.1, 0.1, False), (0.2, 0.1, True), (float("nan"), 0.1, True)):
        change = torch.tensor([[gap, limit]], dtype=torch.float64)
        context = context_of(program(), liar, flags=flags, change=change, versions=settled.clone())
        run = handler(context, "agree")
        if not fails:
            run(at(4))
            continue
        with pytest.raises(BackendError, match=r"rank 1 does not send in epoch 5 although .*freshness\.bound_change"):
            run(at(4))


def test_a_block_older_than_the_bound_ends_the_run() -> None:
    """Whatever was decided: the version is one more than the epoch in which the block arrived."""
    versions = torch.tensor([[0], [1], [6]])
    context = context_of(
        program(), GAP, rows=torch.ones(2, 1), versions=versions, **{"cache/2": torch.full((2, 1), 3.0)}
    )
    run = handler(context, "sum")
    run(at(7))  # the rank's own block is fresh, however old what it sent is; rank 0 has no block to send
    assert value(context, "total").tolist() == [[3.0], [3.0]]
    with pytest.raises(
        BackendError, match=r"the block of rank 2 in use on rank 1 in epoch 9 is of epoch 6; .* at most 2"
    ):
        run(at(8))
    value(context, "versions")[2] = 0
    with pytest.raises(BackendError, match="the block of rank 2 in use on rank 1 in epoch 1 was never sent"):
        run(at(0))


class Undecided(SkipBroadcast):
    """A user's policy that asks which rank it is on."""

    def agree(self, context: PolicyContext, versions: Sequence[int], wanted: Sequence[int] | None) -> tuple[bool, ...]:
        """Its own block alone."""
        return tuple(root == context.rank for root in range(context.ranks))


def _decide(rank: int, ranks: int) -> str:
    control = GroupHandle(dist.group.WORLD, tuple(range(ranks)), torch.device("cpu"))
    action = Agree(Undecided(), Plain())
    check_agreement(control, action, {"agreed/root-0": 1})
    with pytest.raises(BackendError) as raised:
        check_agreement(control, action, {"agreed/root-0": int(rank == 0)})
    return str(raised.value)


def test_ranks_that_decide_differently_are_reported_on_all_of_them(tmp_path: Path) -> None:
    messages = run_ranks(2, _decide, tmp_path)
    assert messages[0].partition(",")[2] == messages[1].partition(",")[2], "but for the rank"
    assert re.search(
        r"test_agreement\.Undecided\.agree decided differently: \S+ is 1 on rank 0 and 0 on rank 1", messages[0]
    )
