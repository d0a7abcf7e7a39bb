"""The validator: what must hold before a program is simulated or run. All faults are reported at once."""

from collections.abc import Callable

from simgnn.errors import ProgramError
from simgnn.program.check_communication import communication_problems
from simgnn.program.check_hazards import hazard_problems
from simgnn.program.check_names import name_problems
from simgnn.program.program import Program

CHECKS: tuple[Callable[[Program], list[str]], ...] = (communication_problems, hazard_problems)


def validate(program: Program) -> Program:
    """Return the program, or raise :class:`ProgramError` with every fault.

    Checked: every name is declared; dependencies point backward; two uses of a buffer copy, one of them writing, are
    ordered (proved on unrolled turns; on buffers that ranks of a host share through a collective); temporary buffers
    are written before they are read; sends are matched and bytes conserved; each process group has one stream, one
    order on all ranks and, on a GPU, is alone in flight; guards of collectives are equal on all ranks.
    """
    problems = name_problems(program)
    if not problems:
        for check in CHECKS:
            problems += check(program)
    if problems:
        raise ProgramError([f"program '{program.name}': {problem}" for problem in problems])
    return program
