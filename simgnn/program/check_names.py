"""Names and shapes: whatever an op refers to is declared, and dependencies point backward."""

from collections.abc import Iterator

import numpy as np

from simgnn.program.kinds import COMPUTE_KINDS, GROUP_KINDS, KIND_OF_FORM, PAIRWISE_KINDS, OpKind
from simgnn.program.ops import ITEM_BYTES, Access, Dependency, Op
from simgnn.program.program import Program, Template
from simgnn.program.sizes import Column, Decision, Size


def name_problems(program: Program) -> list[str]:
    """Faults that make the other checks meaningless."""
    problems: list[str] = []
    calendar = program.calendar
    for name in (calendar.steady, calendar.first, calendar.refresh, calendar.opening):
        if name is not None and name not in program.templates:
            problems.append(f"the calendar names template '{name}', which does not exist")
    for buffer in program.buffers.values():
        problems += [f"buffer '{buffer.name}': {fault}" for fault in _size_faults(program, buffer.rows)]
        if buffer.dtype not in ITEM_BYTES:
            problems.append(f"buffer '{buffer.name}': unknown dtype '{buffer.dtype}'; known: {', '.join(ITEM_BYTES)}")
        if buffer.depth < 1 or buffer.width < 0:
            problems.append(f"buffer '{buffer.name}': depth must be at least 1 and width at least 0")
    for stream in program.streams.values():
        if stream.group is not None and stream.group not in program.groups:
            problems.append(f"stream '{stream.name}' names group '{stream.group}', which does not exist")
        if stream.servers < 1:
            problems.append(f"stream '{stream.name}' has {stream.servers} servers; it needs at least 1")
    for group in program.groups.values():
        if group.members not in ("world", "host") and group.members not in program.sizes.columns:
            problems.append(f"group '{group.name}': members '{group.members}' is neither world, host nor a column")
    for name, kept in program.kept.items():
        problems += [
            f"what is kept as '{name}': {fault}" for size in kept.sizes for fault in _size_faults(program, size)
        ]
    for template in program.templates.values():
        if len(template.index) != len(template.ops):
            names = [op.name for op in template.ops]
            twice = sorted({name for name in names if names.count(name) > 1})
            problems.append(f"template '{template.name}' has ops of one name: {', '.join(twice)}")
        for op in template.ops:
            problems += [f"{template.name}: '{op.name}': {fault}" for fault in _op_faults(program, template, op)]
    return problems


def _op_faults(program: Program, template: Template, op: Op) -> Iterator[str]:
    if op.stream not in program.streams:
        yield f"unknown stream '{op.stream}'"
    for access in op.reads + op.writes:
        yield from _access_faults(program, access)
    for dependency in op.after:
        yield from _dependency_faults(program, template, op, dependency)
    for size in [*(size for work in op.work for size in work.sizes.values()), *op.scratch.sizes]:
        yield from _size_faults(program, size)
    if op.route is not None and op.route not in program.sizes.routes:
        yield f"unknown route '{op.route}'"
    if op.ranks is not None and op.ranks not in program.sizes.columns:
        yield f"unknown column '{op.ranks}' of ranks"
    if op.reverses is not None and op.reverses not in template.index:
        yield f"reverses '{op.reverses}', which is not in the template"
    if op.form is not None and KIND_OF_FORM[op.form] is not op.kind:
        yield f"the form '{op.form}' is one of {KIND_OF_FORM[op.form]} ops, the op's kind is {op.kind}"
    if op.kind not in COMPUTE_KINDS and op.transfer is None and not op.work and op.kind is not OpKind.BARRIER:
        yield f"a {op.kind} op needs a transfer"
    if op.transfer is not None:
        yield from _size_faults(program, op.transfer.rows)
        if op.transfer.row_bytes < 0:
            yield f"negative row bytes: {op.transfer.row_bytes}"
    if op.kind in PAIRWISE_KINDS and op.route is None:
        yield f"a {op.kind} op needs a route"
    if op.kind in GROUP_KINDS and op.stream in program.streams and program.streams[op.stream].group is None:
        yield f"a {op.kind} op needs a stream with a process group; '{op.stream}' has none"


def _access_faults(program: Program, access: Access) -> Iterator[str]:
    buffer = program.buffers.get(access.buffer)
    if buffer is None:
        yield f"unknown buffer '{access.buffer}'"
        return
    if access.steps_back < 0 or access.epochs_back < 0:
        yield f"buffer '{access.buffer}' is accessed in the future"
    back = access.epochs_back if buffer.ring == "epoch" else access.steps_back
    if back >= buffer.depth and buffer.depth >= 1 and back > 0:
        yield f"buffer '{access.buffer}' keeps {buffer.depth} copies; the copy of {back} turns back is gone"


def _dependency_faults(program: Program, template: Template, op: Op, dependency: Dependency) -> Iterator[str]:
    if dependency.steps_back < 0 or dependency.epochs_back < 0:
        yield f"depends on '{dependency.op}' of a later turn"
    elif dependency.steps_back == 0 and dependency.epochs_back == 0:
        if dependency.op not in template.index:
            yield f"depends on '{dependency.op}', which is not in the template"
        elif template.index[dependency.op] >= template.index[op.name]:
            yield f"depends on '{dependency.op}', which does not come before it in program order"
    elif all(dependency.op not in other.index for other in program.templates.values()):
        yield f"depends on '{dependency.op}' of an earlier turn, which no template has"


def _size_faults(program: Program, size: Size) -> Iterator[str]:
    bound = size.bound if isinstance(size, Decision) else size
    if isinstance(bound, Column):
        column = program.sizes.columns.get(bound.name)
        if column is None:
            yield f"unknown column '{bound.name}'"
        elif column.shape[0] != program.ranks:
            yield f"column '{bound.name}' has {column.shape[0]} ranks, the program {program.ranks}"
        elif column.size and int(np.min(column)) < 0:
            yield f"column '{bound.name}' is negative somewhere"
    elif bound < 0:
        yield f"negative size {bound}"
