"""``--activity RUNDIR``: the decisions that a simulation replays."""

from pathlib import Path
from typing import TYPE_CHECKING

from simgnn.errors import ConfigError

if TYPE_CHECKING:
    from simgnn.analysis.replay import Replay
    from simgnn.experiment.prepare import Prepared
    from simgnn.experiment.schema import Experiment
    from simgnn.record.result import Accuracy

ELSEWHERE = "the accuracy of {} is that of training on another partition ({} ranks), on which what is learned depends"


def check_run(experiment: "Experiment", root: Path) -> "tuple[tuple[Accuracy, ...], list[str]]":
    """The accuracy that the run in ``root`` reached, and what it learned otherwise than ``experiment`` would. Raises
    :class:`ConfigError` where it did not end well, or its policies are other ones: quick to tell."""
    from simgnn.analysis.recorded_accuracy import recorded_accuracy
    from simgnn.analysis.replay import different_experiment
    from simgnn.experiment.directory import differences

    accuracy = recorded_accuracy(root)
    faults, notes = different_experiment(differences(experiment, root), root)
    if faults:
        raise ConfigError(faults)
    return accuracy, notes


def find_activity(prepared: "Prepared", root: Path | None) -> "Replay":
    """What the run in ``root`` decided, for this experiment, and the accuracy that it reached; of decisions that follow
    from the policy alone, these.

    Raises :class:`ConfigError` where decisions are needed and no run is named, and where the run is of another
    experiment, or did not end well.
    """
    from simgnn.analysis.activity_curve import Thresholds
    from simgnn.analysis.replay import Replay, read_recording, recorded_partition, replay
    from simgnn.record.activity import decisions_in

    experiment, program = prepared.experiment, prepared.planned.program
    scheduled = experiment.freshness.scheduled(program, experiment.train.epochs)
    wanted = sorted(decisions_in(program) - set(scheduled))
    if root is None:
        if not wanted:
            return Replay(scheduled, False)
        raise ConfigError(
            f"freshness.kind = '{experiment.freshness.label}': what is sent ('{wanted[0]}' and {len(wanted) - 1} more "
            "decisions) depends on values that only training produces; record it with `simgnn run EXPERIMENT --out "
            "DIR`, then simulate with `--activity DIR`"
        )
    accuracy, notes = check_run(experiment, root)
    if not wanted and notes:
        raise ConfigError([f"--activity: got {root}, of which only the accuracy counts here; {n}" for n in notes])
    cut = prepared.partition
    digests = frozenset({prepared.stats.digest, *([] if cut is None else [cut.cut_digest])})
    if not wanted:
        there = recorded_partition(root)
        full = experiment.batching.label == "full"
        # batches of a rank depend on its host, too
        same = there.digests & (digests if full else {prepared.stats.digest})
        elsewhere = not same and not (full and _exact(experiment))
        told = (ELSEWHERE.format(root.name, there.ranks),) * elsewhere
        return Replay(scheduled, elsewhere, told, root.name, accuracy)
    thresholds = experiment.freshness if isinstance(experiment.freshness, Thresholds) else None
    found = replay(
        read_recording(root),
        program,
        frozenset(wanted),
        digests,
        experiment.train.epochs,
        experiment.seed,
        thresholds,
    )
    told = (*found.notes, *notes)
    # what learned something else reached another accuracy
    return Replay({**found.activity, **scheduled}, found.transferred, told, root.name, () if notes else accuracy)


def _exact(experiment: "Experiment") -> bool:
    """Whether training on the full graph learns the same on any partition, but for rounding: no row is old or encoded,
    no rank clips gradients of its own, and no layer draws."""
    from simgnn.model.spec import BUILT_IN_LAYERS

    fresh = experiment.freshness.label == "always" and not experiment.codec.encodes
    return fresh and not experiment.train.clip_norm and experiment.model.kind in BUILT_IN_LAYERS
