"""Communication: sends matched, bytes conserved, one order per process group, at most one NCCL group in flight."""

from collections.abc import Iterator

import numpy as np

from simgnn.program.kinds import COLLECTIVE_KINDS, GROUP_KINDS, OpKind
from simgnn.program.ops import Group, Op
from simgnn.program.program import Program
from simgnn.program.sizes import Column, Decision, IntArray, Route, Size
from simgnn.program.unroll import windows


def communication_problems(program: Program) -> list[str]:
    """Faults that would hang or corrupt a run."""
    problems = list(_stream_problems(program))
    for name, route in program.sizes.routes.items():
        problems += [f"route '{name}': {fault}" for fault in _route_faults(program, route)]
    if problems:
        return problems
    for template, op in program.ops:
        problems += [f"{template}: '{op.name}': {fault}" for fault in _op_faults(program, op)]
    return problems


def member_ids(program: Program, group: Group) -> IntArray:
    """Id of the sub-group that each rank is in, int64 [P]."""
    if group.members == "world":
        return np.zeros(program.ranks, dtype=np.int64)
    if group.members == "host":
        return np.asarray(program.hosts, dtype=np.int64)
    return program.sizes.columns[group.members]


def _stream_problems(program: Program) -> Iterator[str]:
    by_group: dict[str, list[str]] = {}
    for stream in program.streams.values():
        if stream.group is not None:
            by_group.setdefault(stream.group, []).append(stream.name)
    for group, streams in by_group.items():
        if len(streams) > 1:
            yield (
                f"streams {', '.join(streams)} share group '{group}': ranks could issue its collectives in different "
                "orders; give each stream a group of its own"
            )
    nccl = [name for name, group in program.groups.items() if group.backend != "gloo" and name in by_group]
    if len(nccl) > 1 and not _never_together(program, [by_group[name][0] for name in nccl]):
        yield (
            f"groups {', '.join(nccl)} could be in flight at once on one GPU, where NCCL may deadlock: "
            "use backend = 'gloo' for all but one, or order their ops by dependencies"
        )


def _never_together(program: Program, streams: list[str]) -> bool:
    for graph in windows(program):
        users = [index for index, node in enumerate(graph.nodes) if node.op.stream in streams]
        for place, second in enumerate(users):
            for first in users[:place]:
                if graph.nodes[first].op.stream != graph.nodes[second].op.stream and not graph.ordered(first, second):
                    return False
    return True


def _route_faults(program: Program, route: Route) -> Iterator[str]:
    if len(route.source) != len(route.target) or len(route.source) != route.rows.shape[0]:
        yield "source, target and rows differ in length"
        return
    if len(route.source) == 0:
        return
    ends = np.concatenate([route.source, route.target])
    if int(ends.min()) < 0 or int(ends.max()) >= program.ranks:
        worst = int(ends.max() if ends.max() >= program.ranks else ends.min())
        yield f"names rank {worst}; ranks are 0..{program.ranks - 1}"
    if np.any(route.source == route.target):
        yield "sends from a rank to itself"
    if int(route.rows.min()) < 0:
        yield "has negative rows"
    key = route.source.astype(np.int64) * program.ranks + route.target
    if np.any(np.diff(key) <= 0):
        yield "pairs must be sorted by (source, target), none twice"


def _op_faults(program: Program, op: Op) -> Iterator[str]:
    if op.kind not in GROUP_KINDS:
        return
    group = program.group_of(op)
    assert group is not None
    ids = member_ids(program, group)
    if op.ranks is not None:
        taking_part = program.sizes.columns[op.ranks].reshape(program.ranks, -1)
        for identifier in np.unique(ids):
            inside = taking_part[ids == identifier]
            if np.any(inside != inside[:1]):
                yield f"only some ranks of group '{group.name}' take part; the others would wait for ever"
    if op.guard is not None and op.kind in COLLECTIVE_KINDS and not op.guard.agreed:
        yield (
            f"is guarded by '{op.guard.decision}', which ranks decide alone; a collective's guard must be one that "
            "all ranks decide alike (Guard.agreed)"
        )
    if op.kind is OpKind.BROADCAST and (op.root is None or not 0 <= op.root < program.ranks):
        yield f"needs a root among ranks 0..{program.ranks - 1}; got {op.root}"
    if op.route is not None:
        route = program.sizes.routes[op.route]
        if np.any(ids[route.source] != ids[route.target]):
            yield f"route '{op.route}' leaves group '{group.name}'"
        if op.kind is OpKind.EXCHANGE and op.transfer is not None and op.transfer.decision is None:
            yield from _conservation_faults(program, op, route)


def _conservation_faults(program: Program, op: Op, route: Route) -> Iterator[str]:
    """What is read must be what is sent, what arrives must fill what is written, in every turn."""
    assert op.transfer is not None
    for accesses, ends, verb in ((op.reads, route.source, "sends"), (op.writes, route.target, "receives")):
        if len(accesses) != 1:
            continue
        buffer = program.buffers[accesses[0].buffer]
        rows = np.zeros((program.ranks, *route.rows.shape[1:]), np.int64)
        np.add.at(rows, ends, route.rows)
        moved, held = _same_turns(rows, _held(program, buffer.rows))
        wrong = np.argwhere(moved * op.transfer.row_bytes != held * buffer.row_bytes)
        if len(wrong):
            rank, *turn = wrong[0].tolist()
            where = "".join(f", {name} {at}" for name, at in zip(("step", "epoch"), reversed(turn), strict=False))
            at = tuple(wrong[0])
            yield (
                f"rank {rank} {verb} {moved[at] * op.transfer.row_bytes} bytes, but buffer '{buffer.name}' holds "
                f"{held[at] * buffer.row_bytes}{where}"
            )


def _held(program: Program, size: Size) -> IntArray:
    """A size on every rank, int64 [P], [P, steps] or [P, epochs, steps]; of a decision its bound."""
    bound = size.bound if isinstance(size, Decision) else size
    if isinstance(bound, Column):
        return program.sizes.columns[bound.name]
    return np.full(program.ranks, bound, np.int64)


def _same_turns(one: IntArray, other: IntArray) -> tuple[IntArray, IntArray]:
    """Both for as many epochs and steps as either tells: what has fewer axes is the same in each."""
    most = max(one.ndim, other.ndim)
    first, second = (part.reshape(len(part), *[1] * (most - part.ndim), *part.shape[1:]) for part in (one, other))
    wide, broad = np.broadcast_arrays(first, second)
    return wide, broad
