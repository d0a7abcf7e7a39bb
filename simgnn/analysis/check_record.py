"""Whether what a run recorded can have happened in its own program: a damaged record is refused before it is used."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simgnn.errors import ConfigError
from simgnn.program.program import Program
from simgnn.program.sizes import Decision, IntArray, Size


@dataclass
class Use:
    """Where a program uses a decision: ``templates`` in which ops without a guard do; ``bound``: what it cannot pass,
    None of a guard; ``route``: that of an exchange whose rows it tells, pair by pair."""

    bound: Size | None
    templates: set[str] = field(default_factory=set)
    route: str | None = None


def check_epochs(root: Path, program: Program, recorded: int, trained: int) -> None:
    """Raise :class:`ConfigError` where something was decided in an epoch after the ``recorded`` ones, of those that the
    run ``trained``."""
    used = {name for use in uses(program).values() for name in use.templates}
    calendar = program.calendar
    for epoch in range(recorded, min(trained, recorded + calendar.refresh_interval)):
        if any(calendar.template(epoch, step) in used for step in range(calendar.steps)):
            raise ConfigError(
                f"--activity: the record in {root} is incomplete: it ends with epoch {recorded - 1}, expected epoch "
                f"{trained - 1} (counted from 0), the last one that result.json tells; run the experiment again"
            )


def check_record(root: Path, program: Program, decisions: Mapping[str, IntArray]) -> None:
    """Raise :class:`ConfigError` for a number below zero or above its bound (of pairs: above what may travel between
    these, too), one that is missing in a turn in which ops use it, and guards that are neither 0 nor 1 or not the same
    on all ranks.

    ``decisions`` as :func:`simgnn.record.activity.decisions_of` gives them, of a run of ``program``; those that are
    absent altogether are not looked for. What ops under a guard use is checked where a simulation runs them.
    """
    for name, use in uses(program).items():
        if name not in decisions:
            continue
        values, paired = decisions[name], use.route is not None
        if (values.ndim == 4) != paired:
            expected = "one for each other rank" if paired else "one a rank"
            raise refusal(
                root, f"decision '{name}'", f"told {'for' if values.ndim == 4 else 'without'} peers", expected
            )
        limits = _limits(program, use.route)
        for epoch, step in np.argwhere(turns(program, use, values.shape[-2])).tolist():
            told = f"decision '{name}' in epoch {epoch}, step {step}"
            if use.bound is None:
                _check_guard(root, told, values[..., epoch, step])
                continue
            most = program.sizes.per_rank(use.bound, epoch, step)
            _check_turn(root, told, values[..., epoch, step], most, limits(epoch, step))


def uses(program: Program) -> dict[str, Use]:
    """Every decision that ops of a program use: what they work on, transfer and write, or wait for as a guard."""
    found: dict[str, Use] = {}
    for template, op in program.ops:
        if op.guard is not None:
            found.setdefault(op.guard.decision, Use(None)).templates.add(template)
            continue
        written = [program.buffers[access.buffer].rows for access in op.writes]
        for size in (*op.sizes, *written):
            if isinstance(size, Decision):
                found.setdefault(size.name, Use(size.bound)).templates.add(template)
        if op.transfer is not None and op.transfer.decision is not None:
            found[op.transfer.decision.name].route = op.route
    return found


def turns(program: Program, use: Use, epochs: int) -> NDArray[np.bool_]:
    """In which turns a decision is used, bool [epochs, steps]."""
    steps = range(program.calendar.steps)
    return np.array(
        [[program.calendar.template(epoch, step) in use.templates for step in steps] for epoch in range(epochs)],
        dtype=np.bool_,
    ).reshape(epochs, len(steps))


def refusal(root: Path, told: str, got: str, expected: str) -> ConfigError:
    """A damaged record: what is ``told`` in it, and what could have been."""
    return ConfigError(
        f"--activity: the record in {root} is damaged or incomplete: {told} is {got}, expected {expected} (-1: nothing "
        "was recorded); run the experiment again"
    )


def _limits(program: Program, route: str | None) -> Callable[[int, int], IntArray | None]:
    """Rows that may travel between each pair in a turn, int64 [P, P]; None of what is no exchange."""
    if route is None:
        return lambda epoch, step: None
    rows = program.sizes.routes[route]
    if rows.rows.ndim > 1:
        return lambda epoch, step: rows.matrix(program.ranks, epoch, step)
    always = rows.matrix(program.ranks)
    return lambda epoch, step: always


def _check_guard(root: Path, told: str, values: IntArray) -> None:
    if np.any(values != values.flat[0]) or values.flat[0] not in (0, 1):
        raise refusal(root, told, f"{values.tolist()} on ranks 0 to {len(values) - 1}", "0 or 1, on all alike")


def _check_turn(root: Path, told: str, values: IntArray, most: IntArray, limits: IntArray | None) -> None:
    """``values`` int64 [P], or of pairs [P, P]; ``most`` int64 [P], of a rank in all; ``limits`` int64 [P, P]."""
    if limits is None:
        outside = np.flatnonzero((values < 0) | (values > most))
        if len(outside):
            rank = int(outside[0])
            raise refusal(root, told, f"{int(values[rank])} on rank {rank}", f"0 to {int(most[rank])}")
        return
    pairs = np.argwhere((values < 0) | (values > limits))
    if len(pairs):
        rank, peer = pairs[0].tolist()
        bound = f"0 to {int(limits[rank, peer])}, the rows that there are"
        raise refusal(root, told, f"{int(values[rank, peer])} for rank {peer} on rank {rank}", bound)
    sums = values.sum(axis=1)
    above = np.flatnonzero(sums > most)
    if len(above):
        rank = int(above[0])
        raise refusal(root, told, f"{int(sums[rank])} for all on rank {rank}", f"0 to {int(most[rank])}")
