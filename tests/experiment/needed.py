"""Derived dependencies are all needed: without any one of them the validator objects."""

from dataclasses import replace

import pytest

from simgnn.errors import ProgramError
from simgnn.program.program import Program, Template
from simgnn.program.validate import validate


def needed_dependencies(program: Program) -> int:
    """Leave out each dependency in turn, and see the validator refuse the rest; how many there are."""
    checked = 0
    for name, template in program.templates.items():
        for position, op in enumerate(template.ops):
            for dependency in op.after:
                shorter = replace(op, after=tuple(d for d in op.after if d != dependency))
                ops = (*template.ops[:position], shorter, *template.ops[position + 1 :])
                with pytest.raises(ProgramError, match="nothing orders them"):
                    validate(replace(program, templates={**program.templates, name: Template(name, ops)}))
                checked += 1
    return checked
