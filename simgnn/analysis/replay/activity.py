"""Replay the decisions of a recorded run (how many rows were sent in each epoch) in a simulation: exactly on the same
partition, as fractions of the rows that may be sent on another one, and by a fitted curve after the recorded epochs."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from simgnn.analysis.replay.extrapolation import carried_guards, epsilons, guards_of, way_of_shares, way_on
from simgnn.analysis.replay.recorded_run import check_complete, recorded_plan, recorded_result
from simgnn.analysis.replay.row_fractions import CarriedRows, arrivals, carried_publications
from simgnn.emit.freshness import Thresholds
from simgnn.errors import ConfigError
from simgnn.program.program import Program
from simgnn.program.sizes import Column, Decision, IntArray
from simgnn.program.storage import load_program
from simgnn.record.activity import accuracy_counts, decisions_of, read_activity
from simgnn.record.result import Accuracy
from simgnn.record.rundir import RunDirectory


@dataclass(frozen=True)
class Recording:
    """A recorded run: program, digests of its partition, and decisions
    (:func:`simgnn.record.activity.decisions_of`)."""

    root: Path
    program: Program
    digests: frozenset[str]
    decisions: Mapping[str, IntArray]

    @property
    def name(self) -> str:
        return self.root.resolve().name

    @property
    def epochs(self) -> int:
        return max(int(values.shape[-2]) for values in self.decisions.values())

    @property
    def accuracies(self) -> list[float] | None:
        """Training accuracy of each epoch; None unless a controller of thresholds recorded it."""
        pair = next((pair for pair in accuracy_counts(self.program) if self.decisions.keys() >= set(pair)), None)
        if pair is None:
            return None
        correct, count = (self.decisions[name][0, :, 0] for name in pair)
        return [float(right) / float(all_) for right, all_ in zip(correct, count, strict=True) if all_ > 0]


@dataclass(frozen=True)
class Replay:
    """Decisions for a simulation (``activity``). ``transferred``: they were recorded on another partition. ``notes``:
    caveats for the result. ``accuracy``: that of the recorded ``run``. ``assumed``: options state some decisions."""

    activity: Mapping[str, IntArray]
    transferred: bool
    notes: tuple[str, ...] = ()
    run: str = ""
    accuracy: tuple[Accuracy, ...] = ()
    assumed: bool = False


def read_recording(root: Path) -> Recording:
    """Read the directory of a finished run. Raises :class:`ConfigError` if it is not one, if its files have changed, or
    if the record is empty or incomplete."""
    run = RunDirectory(root)
    result, program = recorded_result(root), load_program(run.plan)
    decisions = decisions_of(read_activity(run.activity), program.ranks, program.calendar.steps)
    if not decisions:
        raise ConfigError(f"--activity: the record in {root} is empty: the run ended before its first decision")
    recording = Recording(root, program, recorded_plan(root).digests, decisions)
    check_complete(root, program, recording.epochs, result.epochs)
    return recording


def replay(
    recording: Recording,
    program: Program,
    wanted: frozenset[str],
    digests: frozenset[str],
    epochs: int,
    seed: int,
    thresholds: Thresholds | None,
) -> Replay:
    """Return the ``wanted`` decisions for ``epochs`` epochs of ``program``; ``digests`` identify its partition.

    ``thresholds``: controller of the threshold that the fitted curve depends on, if any. Raises :class:`ConfigError`
    for decisions that were not recorded, or that cannot be carried over.
    """
    guards = set(guards_of(program)) & wanted
    same = bool(recording.digests & digests) and _same_rows(recording.program, program)
    lacking = sorted(wanted - (set() if same else guards) - set(recording.decisions))
    if lacking:
        raise ConfigError(
            f"--activity: {recording.root} has no record of the decision '{lacking[0]}' "
            f"({len(lacking)} are missing; it has: {', '.join(sorted(recording.decisions))}); expected a run of this "
            "experiment: the same model, communication and freshness (of some communications, several hosts make other "
            "decisions than one host)"
        )
    notes = []
    if not same:
        notes.append(
            f"activity of {recording.name}, recorded on another partition ({recording.program.ranks} ranks), is "
            "used as fractions of what may travel"
        )
    longer = epochs > recording.epochs
    if longer:
        known, period = recording.epochs, program.calendar.period
        if period > 1 and known < 2 * period:
            raise ConfigError(
                f"--activity: {recording.root} was recorded for {known} epochs, expected {2 * period} or more, or all "
                f"{epochs}: one epoch in every {period} may change what is sent from then on, which a whole period "
                "after it shows: record more epochs, or predict no more than were recorded"
            )
        moves = epsilons(thresholds, recording.accuracies, epochs, seed)
        way = way_of_shares(known) if guards else way_on(known, moves, period)
        notes.append(f"activity was recorded for {known} epochs; the {epochs - known} after them follow {way}")
    sources = {name: source for name, source in arrivals(program).items() if name in wanted}
    bounded = [buffer.rows for buffer in program.buffers.values() if isinstance(buffer.rows, Decision)]
    counts = {rows.name: rows for rows in bounded if isinstance(rows.bound, Column)}
    found: dict[str, IntArray] = {}
    if guards and (longer or not same):
        found.update(carried_guards(recording.decisions, recording.program, program, epochs, same))
    carried = CarriedRows(
        recording.decisions, recording.accuracies, recording.program, program, same, epochs, seed, thresholds
    )
    if not same:
        published, untold = carried_publications(carried, wanted)
        found.update(published)
        if untold:
            notes.append(f"what masters published is carried over without regard to {untold}")
    for name in sorted(wanted - set(sources) - set(found)):
        recorded = recording.decisions[name]
        if same and not longer:
            found[name] = recorded[..., :epochs, :]
        elif recorded.ndim == 4:
            found[name] = carried.of_pairs(name)
        elif name in counts:
            found[name] = carried.of_ranks(counts[name])
        else:
            found[name] = _of_each_rank(recording, name, program.ranks, epochs)
    for name, source in sources.items():
        if same and not longer:
            found[name] = recording.decisions[name][..., :epochs, :]
        else:
            found[name] = found[source].sum(axis=0)
    return Replay(found, not same, tuple(notes))


def _same_rows(there: Program, here: Program) -> bool:
    """Whether exchanges with decisions can send the same rows in both programs. With host-aggregated exchange these
    rows also depend on which ranks share a host, even for equal partitions."""
    if there.ranks != here.ranks:
        return False
    routes = {op.route for _, op in here.ops if op.transfer is not None and op.transfer.decision is not None}
    return all(
        route in there.sizes.routes
        and np.array_equal(there.sizes.routes[route].matrix(here.ranks), here.sizes.routes[route].matrix(here.ranks))
        for route in routes
        if route is not None
    )


def _of_each_rank(recording: Recording, name: str, ranks: int, epochs: int) -> IntArray:
    """Carry over, to another partition, a decision that each rank makes alone; possible only if all ranks agreed."""
    recorded = recording.decisions[name]
    if np.any(recorded != recorded[:1]) or epochs > recorded.shape[1]:
        raise ConfigError(
            f"--activity: decision '{name}' of {recording.root} was recorded for {recorded.shape[1]} epochs on "
            f"{recorded.shape[0]} ranks, expected {epochs} epochs and the same partition: ranks differ in it, "
            "or the record is too short"
        )
    return np.repeat(recorded[:1, :epochs], ranks, axis=0)
