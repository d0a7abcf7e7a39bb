"""Threads of groups' libraries work once before anything is measured, on every rank that has others in its group."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from executor.state.context import GroupHandle
from executor.world.member import WAKING, process_groups, wake_groups
from simgnn.program.ops import Group
from tests.executor.harness import run_ranks, tiny_program

CPU = torch.device("cpu")


def _wake(rank: int, ranks: int) -> tuple[int, list[float]]:
    """How often this rank calls, and what a sum over each of its groups gives afterwards."""
    groups = [Group("world"), Group("near", members="host")]
    program = tiny_program(ranks, {"steady": []}, [], groups=groups, hosts=[0, 0, 1])
    world: Any = SimpleNamespace(rank=rank, backend="gloo", device=CPU)
    handles = process_groups(program, world, 30.0)
    calls, all_reduce = [0], dist.all_reduce

    def counted(*arguments: Any, **named: Any) -> Any:
        calls[0] += 1
        return all_reduce(*arguments, **named)

    dist.all_reduce = counted
    wake_groups(handles)
    dist.all_reduce = all_reduce
    sums = []
    for _, handle in sorted(handles.items()):
        mine = torch.tensor([float(rank + 1)])
        dist.all_reduce(mine, group=handle.process_group)
        sums.append(float(mine))
    return calls[0], sums


def test_each_part_of_a_group_is_woken_by_its_members(tmp_path: Path) -> None:
    """The third rank is alone on its host: it has nobody there to call."""
    assert run_ranks(3, _wake, tmp_path) == [(2 * WAKING, [3, 6]), (2 * WAKING, [3, 6]), (WAKING, [3, 6])]


@pytest.mark.parametrize(("members", "device"), [((0,), CPU), ((0, 1), torch.device("cuda"))])
def test_neither_one_rank_nor_a_group_of_gpus_is_woken(
    members: tuple[int, ...], device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **named: object) -> None:
        raise AssertionError("called")

    monkeypatch.setattr(dist, "all_reduce", refuse)
    wake_groups({"world": GroupHandle(None, members, device)})
