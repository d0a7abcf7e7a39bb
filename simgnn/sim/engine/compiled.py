"""A program prepared for interpretation: the ranks that run each op, their process groups, and its dependencies."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from simgnn.program.calendar import Turn
from simgnn.program.dispatch import Order
from simgnn.program.ops import Op
from simgnn.program.program import Program, Template


@dataclass(frozen=True, slots=True)
class CompiledOp:
    """An op with its id. ``runs`` bool [P]: ranks that run it. ``parents``: ops to wait for, as (name, steps earlier).

    ``team`` int64 [P]: process group of each rank; ``members``: ranks of each group that run the op. A pairwise op
    without a group has all ranks in one team.
    """

    op_id: int
    index: int
    op: Op
    by_host: bool
    runs: NDArray[np.bool_]
    parents: tuple[tuple[str, int], ...]
    team: NDArray[np.int64]
    members: dict[int, tuple[int, ...]]
    backend: str


@dataclass(frozen=True)
class CompiledTemplate:
    """The ops of a turn (training step or evaluation). ``index``: places by name; ``orders`` [P]: each rank's ops."""

    name: str
    ops: tuple[CompiledOp, ...]
    index: dict[str, int]
    orders: tuple[Order, ...]


@dataclass(frozen=True)
class Compiled:
    """All templates of a program. ``leader`` [P]: the first rank of each rank's host, which runs the host's ops."""

    program: Program
    templates: dict[str, CompiledTemplate]
    leader: tuple[int, ...]

    @property
    def slots(self) -> int:
        """Number of turns in an epoch: its steps, and those of the evaluation after it."""
        return self.program.calendar.steps + len(self.program.sweep)

    @cached_property
    def window(self) -> int:
        """Number of turns that a rank may have begun and not finished: enough for all dependencies and ring buffers."""
        backs = [back for t in self.templates.values() for compiled in t.ops for _, back in compiled.parents]
        return 1 + max([0, *backs, *(buffer.depth - 1 for buffer in self.program.buffers.values())])

    def earlier(self, turn: Turn, back: int) -> int | None:
        """Number of the :class:`Turn` ``back`` steps earlier, or None; before an evaluation's first step is none."""
        steps = self.program.calendar.steps
        if turn.step < 0:
            place = len(self.program.sweep) + turn.step
            return turn.epoch * self.slots + steps + place - back if back <= place else None
        absolute = turn.epoch * steps + turn.step - back
        return None if absolute < 0 else absolute // steps * self.slots + absolute % steps

    def parent_ranks(self, child: CompiledOp, rank: int, parent: CompiledOp) -> tuple[int, ...]:
        """Ranks on which a parent op runs: the same rank, or for ops of a host all ranks of that host."""
        if not (parent.by_host or child.by_host):
            return (rank,) if parent.runs[rank] else ()
        if parent.by_host:
            ranks: tuple[int, ...] = (self.leader[rank],)
        else:
            ranks = tuple(other for other, first in enumerate(self.leader) if first == rank)
        return tuple(other for other in ranks if parent.runs[other])


def compile_program(program: Program) -> Compiled:
    """Resolve the names, teams and dependencies of a program once."""
    leader = tuple(program.hosts.index(host) for host in program.hosts)
    templates = {name: _compile_template(program, template, leader) for name, template in program.templates.items()}
    return Compiled(program, templates, leader)


def _compile_template(program: Program, template: Template, leader: tuple[int, ...]) -> CompiledTemplate:
    ops = []
    for index, op in enumerate(template.ops):
        by_host = program.streams[op.stream].owner == "host"
        runs = np.ones(program.ranks, dtype=np.bool_)
        if op.ranks is not None:
            runs = np.asarray(program.sizes.columns[op.ranks]) != 0
        if by_host:
            runs = runs & (np.array(leader) == np.arange(program.ranks))
        parents = tuple((d.op, d.steps_back + program.calendar.steps * d.epochs_back) for d in op.after)
        team = program.team_of(op)
        members = {int(g): tuple(np.flatnonzero(runs & (team == g)).tolist()) for g in np.unique(team)}
        group = program.group_of(op)
        backend = "default" if group is None else group.backend
        op_id = program.op_ids[template.name, op.name]
        ops.append(CompiledOp(op_id, index, op, by_host, runs, parents, team, members, backend))
    return CompiledTemplate(template.name, tuple(ops), dict(template.index), _orders(program, template, ops))


def _orders(program: Program, template: Template, ops: list[CompiledOp]) -> tuple[Order, ...]:
    """The ops of a template that each rank runs, [P]. Ranks that run the same ops share one value."""
    runs = np.array([compiled.runs for compiled in ops], dtype=np.bool_).reshape(len(ops), program.ranks).T
    made = {tuple(row): Order.of(program, template, row) for row in np.unique(runs, axis=0).tolist()}
    return tuple(made[tuple(row)] for row in runs.tolist())
