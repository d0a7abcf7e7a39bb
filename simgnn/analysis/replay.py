"""What a recorded run decided, as the activity of another simulation: replayed exactly on the same partition, as
fractions of the rows that may travel on another one, by a fitted curve past the end of the record."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from simgnn.analysis.activity_curve import Thresholds, continue_fractions
from simgnn.analysis.replay_guards import carried_guards, guards_of
from simgnn.errors import ConfigError
from simgnn.program.program import Program
from simgnn.program.sizes import Column, Decision, IntArray, Size
from simgnn.program.storage import load_program
from simgnn.record.activity import decisions_of, read_activity
from simgnn.record.result import Accuracy
from simgnn.record.rundir import RunDirectory

Floats = NDArray[np.float64]
CORRECT, COUNT = "accuracy/update/correct", "accuracy/update/count"
"""Decisions under which a controller's training counts are recorded."""


@dataclass(frozen=True)
class Recording:
    """A recorded run: its program, digests that each name its partition, and every decision as
    :func:`simgnn.record.activity.decisions_of` gives it."""

    root: Path
    program: Program
    digests: frozenset[str]
    decisions: Mapping[str, IntArray]

    @property
    def epochs(self) -> int:
        """Epochs that were recorded."""
        return max(int(values.shape[-2]) for values in self.decisions.values())

    @property
    def accuracies(self) -> list[float] | None:
        """Training accuracy of each epoch, where a controller was told it."""
        if CORRECT not in self.decisions or COUNT not in self.decisions:
            return None
        correct, count = self.decisions[CORRECT][0, :, 0], self.decisions[COUNT][0, :, 0]
        return [float(right) / float(all_) for right, all_ in zip(correct, count, strict=True) if all_ > 0]


@dataclass(frozen=True)
class Replay:
    """An activity for a simulation. ``transferred``: it was recorded on another partition; ``notes``: what the result
    must say of it. ``accuracy``: what the run of that name (``run``) reached."""

    activity: Mapping[str, IntArray]
    transferred: bool
    notes: tuple[str, ...] = ()
    run: str = ""
    accuracy: tuple[Accuracy, ...] = ()


def read_recording(root: Path) -> Recording:
    """Read the directory of a finished run. Raises :class:`ConfigError` where it is none, or nothing was decided."""
    table = read_activity(RunDirectory(root).activity)
    program = load_program(RunDirectory(root).plan)
    plan: dict[str, Any] = json.loads((RunDirectory(root).plan / "plan.json").read_text())
    decisions = decisions_of(table, program.ranks, program.calendar.steps)
    if not decisions:
        raise ConfigError(f"--activity: the record in {root} is empty: the run ended before its first decision")
    # runs of earlier versions do not tell the second
    digests = frozenset(str(plan[key]) for key in ("partition_digest", "cut_digest") if plan.get(key))
    return Recording(root, program, digests, decisions)


def replay(
    recording: Recording,
    program: Program,
    wanted: frozenset[str],
    digests: frozenset[str],
    epochs: int,
    seed: int,
    thresholds: Thresholds | None,
) -> Replay:
    """The ``wanted`` decisions for ``epochs`` epochs of ``program``, planned on the partition of any of these digests.

    ``thresholds``: the controller that the curve past the record follows, if any. Raises :class:`ConfigError` for
    decisions that were not recorded, or that cannot be carried over.
    """
    guards = set(guards_of(program)) & wanted
    same = bool(recording.digests & digests) and recording.program.ranks == program.ranks
    lacking = sorted(wanted - (set() if same else guards) - set(recording.decisions))
    if lacking:
        raise ConfigError(
            f"--activity: {recording.root} has no record of the decision '{lacking[0]}' "
            f"({len(lacking)} are missing; it has: {', '.join(sorted(recording.decisions))}); expected a run of this "
            "experiment: the same model, communication and freshness"
        )
    notes = []
    if not same:
        notes.append(
            f"activity of {recording.root.name}, recorded on another partition ({recording.program.ranks} ranks), is "
            "used as fractions of what may travel"
        )
    longer = epochs > recording.epochs
    if longer:
        notes.append(
            f"activity was recorded for {recording.epochs} epochs; the {epochs - recording.epochs} after them follow "
            + ("the share of blocks sent in its last quarter" if guards else "a curve fitted to it")
        )
    sources = {name: source for name, source in _arrivals(program).items() if name in wanted}
    counts = {rows.name: rows for rows in (buffer.rows for buffer in program.buffers.values()) if _is_count(rows)}
    found: dict[str, IntArray] = {}
    if guards and (longer or not same):
        found.update(carried_guards(recording.decisions, recording.program, program, epochs, same))
    for name in sorted(wanted - set(sources) - set(found)):
        recorded = recording.decisions[name]
        if same and not longer:
            found[name] = recorded[..., :epochs, :]
        elif recorded.ndim == 4:
            limits = _limits(recording.program, name), _limits(program, name)
            found[name] = _carried_over(recording, name, limits, same, epochs, seed, thresholds)
        elif name in counts:
            limits = _bounds(recording.program, counts[name]), _bounds(program, counts[name])
            found[name] = _carried_over(recording, name, limits, same, epochs, seed, thresholds)
        else:
            found[name] = _of_each_rank(recording, name, program.ranks, epochs)
    for name, source in sources.items():
        if same and not longer:
            found[name] = recording.decisions[name][..., :epochs, :]
        else:
            found[name] = found[source].sum(axis=0)
    return Replay(found, not same, tuple(notes))


def _arrivals(program: Program) -> dict[str, str]:
    """Decisions that count what arrives -> the decision of what is sent."""
    result = {}
    for _, op in program.ops:
        if op.transfer is not None and op.transfer.decision is not None:
            rows = program.buffers[op.writes[0].buffer].rows
            if isinstance(rows, Decision) and rows.name != op.transfer.decision.name:
                result[rows.name] = op.transfer.decision.name
    return result


def _limits(program: Program, name: str) -> IntArray:
    """Rows that may travel between each pair, int64 [P, P], of the exchange that a decision is of."""
    for _, op in program.ops:
        if op.transfer is not None and op.transfer.decision is not None and op.transfer.decision.name == name:
            assert op.route is not None
            return program.sizes.routes[op.route].matrix(program.ranks)
    raise ConfigError(f"--activity: decision '{name}' is of no exchange, so it cannot be used as fractions")


def _carried_over(
    recording: Recording,
    name: str,
    limits: tuple[IntArray, IntArray],
    same: bool,
    epochs: int,
    seed: int,
    thresholds: Thresholds | None,
) -> IntArray:
    """Rows int64 [..., epochs, 1] of each pair, or rank, of ``limits`` [...] (there, here): as recorded where the
    partition is the same, else fractions of what may travel."""
    recorded = recording.decisions[name][..., 0]
    if np.any(recorded < 0):
        raise ConfigError(f"--activity: decision '{name}' was not taken in every recorded epoch; record the run again")
    fractions = recorded.reshape(-1, recorded.shape[-1]).sum(axis=0) / max(1, int(limits[0].sum()))
    if epochs > len(fractions):
        fractions = continue_fractions(fractions, thresholds, recording.accuracies, epochs, seed)
    rows = shared_out(limits[1], fractions[:epochs])
    if same:
        kept = min(epochs, recorded.shape[-1])
        rows[..., :kept] = recorded[..., :kept]
    carried: IntArray = rows[..., None]
    return carried


def shared_out(limits: IntArray, fractions: Floats) -> IntArray:
    """Whole rows int64 [..., E] nearest to ``limits`` [...] times ``fractions`` [E] of 0..1, of which none exceeds its
    limit, and whose sum over all pairs is that of the products, rounded.

    Rounded one by one, fractions of small numbers would all vanish: three rows of each of a thousand pairs, a tenth
    of which are sent, are three hundred rows and not none.
    """
    ends = np.floor(np.cumsum(limits.reshape(-1, 1) * fractions, axis=0) + 0.5).astype(np.int64)
    rows: IntArray = np.diff(ends, axis=0, prepend=0).reshape(*limits.shape, len(fractions))
    return rows


def _bounds(program: Program, rows: Decision) -> IntArray:
    """Most rows of a buffer whose rows are decided, int64 [P]."""
    return program.sizes.per_rank(rows.bound, 0, 0)


def _is_count(rows: Size) -> TypeGuard[Decision]:
    return isinstance(rows, Decision) and isinstance(rows.bound, Column)


def _of_each_rank(recording: Recording, name: str, ranks: int, epochs: int) -> IntArray:
    """A decision without peers on another partition: only one on which all ranks agreed has a meaning there."""
    recorded = recording.decisions[name]
    if np.any(recorded != recorded[:1]) or epochs > recorded.shape[1]:
        raise ConfigError(
            f"--activity: decision '{name}' of {recording.root} was recorded for {recorded.shape[1]} epochs on "
            f"{recorded.shape[0]} ranks, expected {epochs} epochs and the same partition: it is of each rank, so it "
            "is replayed only as it was"
        )
    return np.repeat(recorded[:1, :epochs], ranks, axis=0)


def different_experiment(differences: Sequence[tuple[str, Any, Any]], root: Path) -> tuple[list[str], list[str]]:
    """(faults, notes) of (key path, value in the recorded run, value here): policies must be those of the record."""
    faults, notes = [], []
    for key, there, here in differences:
        section, _, field = key.partition(".")
        if section in ("freshness", "codec", "communication", "schedule", "batching"):
            faults.append(
                f"--activity: {key}: got {here}, expected {there} as in {root}: run this experiment to record it"
            )
        elif section in ("graph", "model", "seed") or (section == "train" and field in LEARNS):
            notes.append(f"activity was recorded with {key} = {there}; here it is {here}")
    return faults, notes


LEARNS = ("optimizer", "learning_rate", "weight_decay", "momentum", "dtype", "clip_norm", "clip_scale")
"""Fields of ``[train]`` that change what is learned, and so what moves."""
