"""The vocabulary carries the systems to come: each hand-written program is valid, and each of its dependencies that
orders two uses of a buffer is needed."""

import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations

import pytest

from programs import (
    cached_halo,
    chunked_epoch,
    guarded_broadcast,
    hongtu_batch,
    mirror_sync,
    prefetched_step,
    task_graph,
)
from simgnn.errors import ProgramError
from simgnn.program.dependencies import Node, Unrolled, windows
from simgnn.program.ops import Access
from simgnn.program.program import Program, Template
from simgnn.program.storage import load_program, save_program
from simgnn.program.validate import validate

BUILDERS: dict[str, Callable[[], Program]] = {
    module.__name__.split(".")[-1]: module.build
    for module in (
        mirror_sync,
        guarded_broadcast,
        cached_halo,
        hongtu_batch,
        prefetched_step,
        task_graph,
        chunked_epoch,
    )
}


@pytest.mark.parametrize("name", BUILDERS)
def test_is_valid(name: str) -> None:
    program = BUILDERS[name]()
    assert validate(program) is program


def test_thousands_of_unlike_steps_are_soon_validated() -> None:
    """Bars of issue 26: eight layers of 128 chunks, four ranks, 10 s and 2 GiB."""
    program = chunked_epoch.drawn(ranks=4, layers=8, chunks=128)
    assert program.calendar.steps == 2049
    tracemalloc.start()
    begin = time.process_time()
    validate(program)
    taken, (_, peak) = time.process_time() - begin, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken <= 10.0
    assert peak <= 2**31


@pytest.mark.parametrize("name", BUILDERS)
def test_survives_the_disk(name: str, tmp_path) -> None:
    program = BUILDERS[name]()
    save_program(program, tmp_path)
    loaded = load_program(tmp_path)
    assert loaded.templates == program.templates
    assert loaded.calendar == program.calendar
    assert loaded.buffers == program.buffers


def touched(program: Program, graph: Unrolled, node: Node, access: Access) -> dict[int, set[int]]:
    """The rows that an access touches on each rank: all of a part that is listed, and of a whole buffer."""
    buffer, at, sizes = program.buffers[access.buffer], graph.turns[node.turn], graph.program.sizes
    rows = sizes.most(buffer.rows).tolist()
    if access.part is None or access.part.places:
        return {rank: set(range(rows[rank])) for rank in range(program.ranks)}
    first, count = (sizes.per_rank(size, at.epoch, at.step) for size in (access.part.first, access.part.rows))
    return {rank: set(range(first[rank], first[rank] + count[rank])) for rank in range(program.ranks)}


def order_is_lost(program: Program, shorter: Program) -> bool:
    """Whether two uses of one row, one writing, are ordered in the first program and not in the second."""
    found = ([(view, window) for view in each.views for window in windows(view)] for each in (program, shorter))
    for (view, whole), (_, part) in zip(*found, strict=False):
        assert whole.program.calendar.steps == view.calendar.steps, "small enough to be looked at step by step"
        uses: dict[tuple[str, int], list[tuple[int, bool, Access]]] = {}
        for index, node in enumerate(whole.nodes):
            for access, writes in [(a, False) for a in node.op.reads] + [(a, True) for a in node.op.writes]:
                copy = whole.copy_of(node, access)
                if copy is not None:
                    uses.setdefault(copy, []).append((index, writes, access))
        for users in uses.values():
            for (first, one_writes, one), (second, other_writes, other) in combinations(users, 2):
                if first == second or not (one_writes or other_writes) or second >= len(part.nodes):
                    continue
                if whole.ordered(first, second) and not part.ordered(first, second):
                    rows, others = (
                        touched(program, whole, whole.nodes[at], access)
                        for at, access in ((first, one), (second, other))
                    )
                    if any(rows[rank] & others[rank] for rank in rows):
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
