"""Which buffers outlive a turn."""

from simgnn.program.program import Program


def carried(program: Program) -> frozenset[str]:
    """Buffers that outlive a turn: persistent ones, rings, and those read before they are written in a turn."""
    names = {b.name for b in program.buffers.values() if b.persistent or b.depth > 1}
    for template in program.templates.values():
        written: set[str] = set()
        for op in template.ops:
            for access in op.reads:
                if access.steps_back or access.epochs_back or access.buffer not in written:
                    names.add(access.buffer)
            written.update(access.buffer for access in op.writes)
    return frozenset(names)
