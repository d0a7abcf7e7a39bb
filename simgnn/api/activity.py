"""Loads the decisions and the accuracy of a recorded run for a simulation (``--activity RUNDIR``)."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from simgnn.analysis.replay.activity import Replay, read_recording, replay
from simgnn.analysis.replay.recorded_run import (
    HOIST,
    WHOLE,
    Difference,
    RecordedPlan,
    different_experiment,
    graph_differences,
    planned_differences,
    recorded_plan,
    recorded_result,
    stated_differences,
)
from simgnn.errors import ConfigError
from simgnn.experiment.schema import Experiment
from simgnn.experiment.slots import SLOTS
from simgnn.planner.directory import differences
from simgnn.planner.prepare import STATISTICS, Prepared
from simgnn.policy import Policy
from simgnn.program.program import Program
from simgnn.program.sizes import IntArray
from simgnn.record.activity import decisions_in
from simgnn.record.result import Accuracy
from simgnn.tomlfile import leaves

RECORDED = "runs/recorded"
GRAPH = "GRAPH"
COUNTED_FROM = (
    f", on the graph that the statistics were counted from or on a smaller one like it ({GRAPH}: statistics can be "
    "simulated, not trained on),"
)
ELSEWHERE = "the accuracy of {} is that of training on another partition ({} ranks), on which what is learned depends"
UNNAMED = (
    "the statistics file does not say which partition it was counted from (it was written by hand or by an earlier "
    "version), so it counts as another one; `simgnn partition --stats` writes files that say it"
)


def check_run(experiment: Experiment, root: Path) -> tuple[Accuracy, ...]:
    """Return the accuracy that the run in ``root`` reached.

    Raises :class:`ConfigError` if the run failed, its files have changed, or ``experiment`` names other policies than
    the run. These checks need no graph and no plan.
    """
    result = recorded_result(root)
    stated = stated_differences(differences(experiment, root), recorded_plan(root).resolved)
    _check_same(stated, root, experiment, _irrelevant(experiment))
    return tuple(result.accuracy or ())


def determined(experiment: Experiment, program: Program) -> dict[str, IntArray]:
    """Return the decisions of ``program`` that policies alone determine, whatever training computes."""
    epochs = experiment.train.epochs
    return {**experiment.freshness.scheduled(program, epochs), **experiment.codec.scheduled(program, epochs)}


def find_activity(prepared: Prepared, root: Path | None, command: Sequence[str] = ()) -> Replay:
    """Return the decisions for a simulation (those of the run in ``root``, and those that policies alone determine) and
    the run's accuracy. ``command``: words of the command that records such a run, up to ``--out``.

    Raises :class:`ConfigError` if decisions are needed and no run is named, or it failed or is of another experiment.
    """
    experiment, program = prepared.experiment, prepared.planned.program
    epochs, scheduled = experiment.train.epochs, determined(experiment, program)
    wanted = sorted(decisions_in(program) - set(scheduled))
    if root is None:
        stated = experiment.codec.assumed(program, epochs) if wanted else {}
        if stated.keys() >= set(wanted):
            return Replay({**scheduled, **stated}, False, assumed=bool(wanted))
        raise ConfigError(_without_record(experiment, wanted, command))
    accuracy, name = check_run(experiment, root), root.resolve().name
    there, origin = recorded_plan(root), prepared.stats.origin
    recording = read_recording(root) if wanted else None
    # where both programs have the same decisions, layer 1 decides nothing: its sums are always exact
    alike = recording is not None and decisions_in(recording.program) == decisions_in(program)
    irrelevant = _irrelevant(experiment) | (frozenset({HOIST}) if alike else frozenset())
    notes = _learned_otherwise(prepared, root, there, irrelevant)
    if not wanted and notes:
        raise ConfigError([f"--activity: got {root}, of which only the accuracy counts here; {n}" for n in notes])
    digests = frozenset({prepared.stats.digest}) if origin is None else origin.digests
    unnamed = (UNNAMED,) * (origin is None)
    if recording is None:
        full = not experiment.batching.mini_batches
        # batches of a rank depend on its host, too
        same = there.digests & (digests if full or origin is None else digests - {origin.cut})
        elsewhere = not same and not (full and _exact(experiment))
        told = (ELSEWHERE.format(name, there.file.ranks), *unnamed) if elsewhere else ()
        return Replay(activity=scheduled, transferred=elsewhere, notes=told, run=name, accuracy=accuracy)
    thresholds = experiment.freshness.thresholds
    found = replay(recording, program, frozenset(wanted), digests, epochs, experiment.seed, thresholds)
    kept = () if notes else accuracy  # what learned something else reached another one
    moved = (*((ELSEWHERE.format(name, there.file.ranks),) if kept else ()), *unnamed) if found.transferred else ()
    told = (*found.notes, *moved, *notes)
    return Replay({**found.activity, **scheduled}, found.transferred, notes=told, run=name, accuracy=kept)


def deciding_policy(experiment: Experiment) -> Policy:
    """Return the policy that decides what is sent from values that training produces, where one does."""
    return experiment.codec if experiment.codec.decides else experiment.freshness


def _without_record(experiment: Experiment, wanted: Sequence[str], command: Sequence[str]) -> str:
    """Return the message for decisions that need a record."""
    codec, deciding = experiment.codec, deciding_policy(experiment)
    option = f", or state the outcome: {codec.decides}" if codec.decides else ""
    words, where = [*(command or ("simgnn", "run", experiment.name))], ""
    if experiment.graph.source.startswith(STATISTICS):
        words, where = [*words, "--set", f"graph.source={GRAPH}"], COUNTED_FROM
    return (
        f"{deciding.slot}.kind = '{deciding.label}': what is sent ('{wanted[0]}' and {len(wanted) - 1} more decisions) "
        f"depends on values that only training produces. Record it once{where} with "
        f"`{shlex.join([*words, '--out', RECORDED])}` (other numbers of ranks serve, too, but what they send then is "
        f"an estimate), then add `--activity {RECORDED}`{option}."
    )


def _learned_otherwise(prepared: Prepared, root: Path, there: RecordedPlan, irrelevant: frozenset[str]) -> list[str]:
    """Describe what the run in ``root`` learned differently from this experiment. Raises :class:`ConfigError` if
    planning chose other policies for the run."""
    experiment, origin = prepared.experiment, prepared.stats.origin
    stated = {".".join(path): value for path, value in leaves(experiment.to_table())}
    # the kinds of policies, on which choices depend, are those of the record by now (check_run)
    lacking = sorted(prepared.planned.resolved.keys() - there.resolved.keys())
    if lacking:
        raise ConfigError(
            f"--activity: {root} does not record the choice for {lacking[0]} (plan/resolved.toml); {WHOLE}"
        )
    found = planned_differences(differences(experiment, root), stated, there.resolved, prepared.planned.resolved)
    graph = None if origin is None else origin.graph
    found = graph_differences(found, experiment.graph.source, there.file.graph_digest, graph)
    return _check_same(found, root, experiment, irrelevant)


def _check_same(
    found: Sequence[Difference], root: Path, experiment: Experiment, irrelevant: frozenset[str]
) -> list[str]:
    """Describe differences that change what is learned. Raises :class:`ConfigError` if one makes another experiment."""
    policies = {slot: type(getattr(experiment, slot)) for slot in SLOTS}
    faults, notes = different_experiment(found, root, policies, irrelevant)
    if faults:
        raise ConfigError(faults)
    return notes


def _irrelevant(experiment: Experiment) -> frozenset[str]:
    """Return the keys of the experiment that affect what it learns only through rounding errors."""
    return frozenset({"communication.rows", "model.order", "model.hoist"} if _exact(experiment) else ())


def _exact(experiment: Experiment) -> bool:
    """Return whether full-graph training learns the same on any partition except for rounding: no row is stale or
    encoded, no rank clips its own gradients, and no layer draws random numbers."""
    fresh = experiment.freshness.exact and not experiment.codec.encodes
    return fresh and not experiment.train.clip_norm and experiment.model.built_in
