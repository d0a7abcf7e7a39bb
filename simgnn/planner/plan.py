"""What planning gives."""

from dataclasses import dataclass
from typing import Any

from simgnn.model.spec import LayerSpec
from simgnn.program.program import Program


@dataclass(frozen=True)
class Planned:
    """A program, the layers that its modules are built from, and what ``auto`` became (key path -> value).

    ``undeclared`` names user layers that declare no cost: they run, but are not simulated.
    """

    program: Program
    layers: tuple[LayerSpec, ...]
    classes: int
    multilabel: bool
    resolved: dict[str, Any]
    undeclared: tuple[str, ...] = ()


def undeclared(program: Program, kind: str) -> tuple[str, ...]:
    """The kind of layers, where the program has work that they do not declare."""
    return (kind,) if any(work.primitive == "undeclared" for _, op in program.ops for work in op.work) else ()
