"""Derived dependencies: an op that exists on some ranks only orders nothing on the others."""

from dataclasses import replace

import pytest
from programs.notation import op

from simgnn.errors import ProgramError
from simgnn.program.dependencies import derive_dependencies
from simgnn.program.ops import Buffer, Dependency, Transfer
from simgnn.program.program import Program, Template
from simgnn.program.validate import validate
from tests.executor.harness import tiny_program


def program(ranks: str | None) -> Program:
    """decide -> code (on some ranks) -> send, which also reads what was decided."""
    ops = [
        op("decide", "select", "compute", "rows", "active"),
        replace(op("code", "encode", "compute", "rows", "coded", "decide"), ranks=ranks),
        op("send", "broadcast", "comm", "coded active", "arrived", root=0, transfer=Transfer(4)),
        op("use", "transform", "compute", "arrived", "rows"),
    ]
    buffers = [Buffer("rows", 1, 1, persistent=True), *(Buffer(name, 1, 1) for name in ("active", "coded", "arrived"))]
    return tiny_program(2, {"steady": ops}, buffers, columns={"root": [1, 0]})


def after(made: Program, name: str) -> set[str]:
    template = made.templates["steady"]
    return {dependency.op for dependency in template.ops[template.index[name]].after if not dependency.epochs_back}


def test_what_an_op_of_some_ranks_waits_for_is_stated_again() -> None:
    assert after(program(None), "send") == {"code"}, "the rest is implied"
    made = validate(program("root"))
    assert after(made, "send") == {"code", "decide"}
    assert after(made, "code") == {"decide"}, "what was stated stays, once"


def test_the_validator_sees_a_hazard_on_the_other_ranks() -> None:
    made = program("root")
    template = made.templates["steady"]
    place = template.index["send"]
    shorter = replace(template.ops[place], after=(Dependency("code"),))
    ops = (*template.ops[:place], shorter, *template.ops[place + 1 :])
    broken = replace(made, templates={"steady": Template("steady", ops)})
    with pytest.raises(ProgramError, match=r"'active' is used by 'decide' .* and 'send' .*nothing orders them"):
        validate(broken)


def test_deriving_twice_changes_nothing() -> None:
    for ranks in (None, "root"):
        made = program(ranks)
        assert derive_dependencies(made).templates == made.templates
