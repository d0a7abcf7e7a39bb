"""``--activity RUNDIR``: the decisions that a simulation replays."""

from pathlib import Path
from typing import TYPE_CHECKING

from simgnn.errors import ConfigError

if TYPE_CHECKING:
    from simgnn.analysis.replay import Replay
    from simgnn.experiment.prepare import Prepared


def find_activity(prepared: "Prepared", root: Path | None) -> "Replay":
    """What the run in ``root`` decided, for this experiment, and the accuracy that it reached; of decisions that follow
    from the policy alone, these.

    Raises :class:`ConfigError` where decisions are needed and no run is named, and where the run is of another
    experiment, or did not end well.
    """
    from simgnn.analysis.activity_curve import Thresholds
    from simgnn.analysis.recorded_accuracy import recorded_accuracy
    from simgnn.analysis.replay import Replay, different_experiment, read_recording, replay
    from simgnn.experiment.directory import differences
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
    accuracy = recorded_accuracy(root)
    faults, notes = different_experiment(differences(experiment, root), root)
    if not wanted and notes:
        faults += [f"--activity: got {root}, of which only the accuracy counts here; {note}" for note in notes]
    if faults:
        raise ConfigError(faults)
    if not wanted:
        return Replay(scheduled, False, (), root.name, accuracy)
    cut = prepared.partition
    thresholds = experiment.freshness if isinstance(experiment.freshness, Thresholds) else None
    found = replay(
        read_recording(root),
        program,
        frozenset(wanted),
        frozenset({prepared.stats.digest, *([] if cut is None else [cut.cut_digest])}),
        experiment.train.epochs,
        experiment.seed,
        thresholds,
    )
    told = (*found.notes, *notes)
    # what learned something else reached another accuracy
    return Replay({**found.activity, **scheduled}, found.transferred, told, root.name, () if notes else accuracy)
