"""The vocabulary carries the systems to come: each hand-written program is valid, and each of its dependencies that
orders two uses of a buffer is needed."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from programs import cached_halo, guarded_broadcast, hongtu_batch, mirror_sync, prefetched_step, task_graph
from simgnn.errors import ProgramError
from simgnn.program.dependencies import windows
from simgnn.program.program import Program, Template
from simgnn.program.storage import load_program, save_program
from simgnn.program.validate import validate

BUILDERS: dict[str, Callable[[], Program]] = {
    module.__name__.split(".")[-1]: module.build
    for module in (mirror_sync, guarded_broadcast, cached_halo, hongtu_batch, prefetched_step, task_graph)
}


@pytest.mark.parametrize("name", BUILDERS)
def test_is_valid(name: str) -> None:
    program = BUILDERS[name]()
    assert validate(program) is program


@pytest.mark.parametrize("name", BUILDERS)
def test_survives_the_disk(name: str, tmp_path) -> None:
    program = BUILDERS[name]()
    save_program(program, tmp_path)
    loaded = load_program(tmp_path)
    assert loaded.templates == program.templates
    assert loaded.calendar == program.calendar
    assert loaded.buffers == program.buffers


def order_is_lost(program: Program, shorter: Program) -> bool:
    """Whether two uses of one buffer copy, one writing, are ordered in the first program and not in the second."""
    for whole, part in zip(windows(program), windows(shorter), strict=False):
        for second, node in enumerate(whole.nodes):
            for first in range(second):
                other = whole.nodes[first]
                copies = {whole.copy_of(node, a) for a in node.op.reads + node.op.writes} - {None}
                theirs = {whole.copy_of(other, a) for a in other.op.reads + other.op.writes} - {None}
                written = {whole.copy_of(node, a) for a in node.op.writes}
                written |= {whole.copy_of(other, a) for a in other.op.writes}
                if not copies & theirs & written:
                    continue
                if second < len(part.nodes) and whole.ordered(first, second) and not part.ordered(first, second):
                    return True
    return False


@pytest.mark.parametrize("name", BUILDERS)
def test_deleting_a_needed_dependency_is_noticed(name: str) -> None:
    program = BUILDERS[name]()
    needed = 0
    for template_name, template in program.templates.items():
        for position, op in enumerate(template.ops):
            for dependency in op.after:
                shorter_op = replace(op, after=tuple(d for d in op.after if d != dependency))
                ops = (*template.ops[:position], shorter_op, *template.ops[position + 1 :])
                shorter = replace(program, templates={**program.templates, template_name: Template(template_name, ops)})
                if not order_is_lost(program, shorter):
                    continue
                needed += 1
                with pytest.raises(ProgramError, match="nothing orders them"):
                    validate(shorter)
    assert needed >= 3
