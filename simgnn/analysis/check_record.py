"""Whether what a run recorded can have happened in its own program: a damaged record is refused before it is used."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from simgnn.errors import ConfigError
from simgnn.program.program import Program
from simgnn.program.sizes import Decision, IntArray, Size


@dataclass
class _Use:
    """Where a program uses a decision: ``templates`` in which ops without a guard do; ``bound``: what it cannot pass,
    None of a guard."""

    bound: Size | None
    templates: set[str] = field(default_factory=set)


def check_record(root: Path, program: Program, decisions: Mapping[str, IntArray]) -> None:
    """Raise :class:`ConfigError` for a number below zero or above its bound (for numbers of pairs: in all of a rank),
    one that is missing in a turn in which ops use it, and guards that are neither 0 nor 1 or not the same on all ranks.

    ``decisions`` as :func:`simgnn.record.activity.decisions_of` gives them, of a run of ``program``; those that are
    absent altogether are not looked for. What ops under a guard use is checked where a simulation runs them.
    """
    for name, use in _uses(program).items():
        if name not in decisions:
            continue
        values, steps = decisions[name], program.calendar.steps
        for epoch in range(values.shape[-2]):
            for step in range(steps):
                if program.calendar.template(epoch, step) in use.templates:
                    told = f"decision '{name}' in epoch {epoch}, step {step}"
                    _check_turn(root, told, program, use.bound, values[..., epoch, step], epoch, step)


def _uses(program: Program) -> dict[str, _Use]:
    found: dict[str, _Use] = {}
    for template, op in program.ops:
        if op.guard is not None:
            found.setdefault(op.guard.decision, _Use(None)).templates.add(template)
            continue
        for size in op.sizes:
            if isinstance(size, Decision):
                found.setdefault(size.name, _Use(size.bound)).templates.add(template)
    return found


def _check_turn(
    root: Path, told: str, program: Program, bound: Size | None, values: IntArray, epoch: int, step: int
) -> None:
    if bound is None:
        if np.any(values != values.flat[0]) or values.flat[0] not in (0, 1):
            raise _refusal(root, told, f"{values.tolist()} on ranks 0 to {program.ranks - 1}", "0 or 1, on all alike")
        return
    most = program.sizes.per_rank(bound, epoch, step)
    sums = values.sum(axis=1) if values.ndim == 2 else values
    below = values.min(axis=1) < 0 if values.ndim == 2 else values < 0
    wrong = np.flatnonzero(below | (sums > most))
    if len(wrong):
        rank = int(wrong[0])
        raise _refusal(root, told, f"{values[rank].tolist()} on rank {rank}", f"0 to {int(most[rank])}")


def _refusal(root: Path, told: str, got: str, expected: str) -> ConfigError:
    return ConfigError(
        f"--activity: the record in {root} is damaged or incomplete: {told} is {got}, expected {expected} (-1: nothing "
        "was recorded); run the experiment again"
    )
