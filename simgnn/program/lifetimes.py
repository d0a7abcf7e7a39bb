"""Which buffers outlive a turn."""

from simgnn.program.kinds import OpKind
from simgnn.program.program import Program


def carried(program: Program) -> frozenset[str]:
    """Buffers that outlive a turn: persistent ones, rings, and those read before they are written in a turn."""
    return remembered(program) | {buffer.name for buffer in program.buffers.values() if buffer.depth > 1}


def remembered(program: Program) -> frozenset[str]:
    """Buffers of which a turn may need what earlier turns wrote: what a run goes on from after a checkpoint.

    Rings whose copies serve one turn each are left out, such as those of batches staged ahead.
    """
    names = {buffer.name for buffer in program.buffers.values() if buffer.persistent}
    for template in program.templates.values():
        written: set[str] = set()
        for op in template.ops:
            for access in op.reads:
                if access.steps_back or access.epochs_back or access.buffer not in written:
                    names.add(access.buffer)
            written.update(access.buffer for access in op.writes)
    return frozenset(names)


def made_once(program: Program) -> frozenset[str]:
    """Buffers that outlive a turn and that only the first turn fills, such as rows that are exchanged once and sums
    that never change. They take memory from the op on that fills them."""
    if program.calendar.first is None:
        return frozenset()
    opening = program.templates[program.calendar.first]
    others = [op for template in program.templates.values() if template is not opening for op in template.ops]
    known = {access.buffer for op in others for access in op.writes}
    made: set[str] = set()
    for op in opening.ops:
        known |= {access.buffer for access in op.reads} - made
        made |= {access.buffer for access in op.writes} - known
    plain = {name for name in made if program.buffers[name].depth == 1 and not program.buffers[name].inner}
    return carried(program) & plain


def same_as_constants(program: Program) -> frozenset[str]:
    """Buffers of what a root sent last (the third that a broadcast writes) whose source, such as features, no op ever
    writes: they need no memory of their own."""
    written = {access.buffer for _, op in program.ops for access in op.writes}
    sends = [op for _, op in program.ops if op.kind is OpKind.BROADCAST and len(op.writes) > 2]
    return frozenset(op.writes[2].buffer for op in sends if op.reads[0].buffer not in written)
