"""Derived dependencies: an op that exists on some ranks only orders nothing on the others."""

from dataclasses import replace

import pytest
from programs import chunked_epoch
from programs.notation import op
from programs.test_simulated import machine_for

from simgnn.errors import ProgramError
from simgnn.program.dependencies import derive_dependencies
from simgnn.program.ops import Buffer, Dependency, Transfer
from simgnn.program.program import Program, Template
from simgnn.program.validate import validate
from simgnn.sim.simulate import simulate
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


@pytest.mark.parametrize(
    "made",
    [chunked_epoch.build(), chunked_epoch.build(3, 4), chunked_epoch.drawn(4, 3, 30)],
    ids=["2x3", "3x4", "4x30"],
)
def test_dependencies_of_unlike_steps_are_derived(made: Program) -> None:
    """From the op that closes each step and what waits for it, everything else follows: not less, and no more."""
    templates = {
        name: Template(
            name, tuple(replace(op, after=tuple(d for d in op.after if "saved" in (d.op, op.name))) for op in one.ops)
        )
        for name, one in made.templates.items()
    }
    bare = replace(made, templates=templates)
    with pytest.raises(ProgramError, match="nothing orders them"):
        validate(bare)
    derived = validate(derive_dependencies(bare))
    assert derive_dependencies(derived).templates == derived.templates
    by_hand, found = (simulate(program, machine_for(program), epochs=2) for program in (made, derived))
    assert found.epoch_s == by_hand.epoch_s
    assert max(d.steps_back for _, op in derived.ops for d in op.after) == 1
