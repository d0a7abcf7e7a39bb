"""``--activity RUNDIR``: the decisions that a simulation replays."""

from pathlib import Path
from typing import TYPE_CHECKING

from simgnn.errors import ConfigError

if TYPE_CHECKING:
    from simgnn.analysis.replay import Replay
    from simgnn.experiment.prepare import Prepared


def find_activity(prepared: "Prepared", root: Path | None) -> "Replay":
    """What the run in ``root`` decided, for this experiment; of decisions that follow from the policy alone, these.

    Raises :class:`ConfigError` where decisions are needed and no run is named, where a run is named and nothing is to
    be decided, and where the run is of another experiment.
    """
    from simgnn.analysis.activity_curve import Thresholds
    from simgnn.analysis.replay import Replay, different_experiment, read_recording, replay
    from simgnn.experiment.directory import differences
    from simgnn.record.activity import decisions_in

    experiment, program = prepared.experiment, prepared.planned.program
    scheduled = experiment.freshness.scheduled(program, experiment.train.epochs)
    wanted = sorted(decisions_in(program) - set(scheduled))
    if not wanted:
        if root is not None:
            raise ConfigError(
                f"--activity: got {root}, expected none: what this experiment sends does not depend on training, so "
                "there are no decisions to replay; leave the option out"
            )
        return Replay(scheduled, False, ())
    if root is None:
        raise ConfigError(
            f"freshness.kind = '{experiment.freshness.label}': what is sent ('{wanted[0]}' and {len(wanted) - 1} more "
            "decisions) depends on values that only training produces; record it with `simgnn run EXPERIMENT --out "
            "DIR`, then simulate with `--activity DIR`"
        )
    recording = read_recording(root)
    faults, notes = different_experiment(differences(experiment, root), root)
    if faults:
        raise ConfigError(faults)
    thresholds = experiment.freshness if isinstance(experiment.freshness, Thresholds) else None
    found = replay(
        recording,
        program,
        frozenset(wanted),
        prepared.stats.digest,
        experiment.train.epochs,
        experiment.seed,
        thresholds,
    )
    return Replay({**found.activity, **scheduled}, found.transferred, (*found.notes, *notes))
