"""Chooses where a run writes what it reports of every epoch."""

from executor.recording.epoch_log import LossFile, Sink
from simgnn.record.result import Metric
from simgnn.record.rundir import RunDirectory


def sinks_of(run: RunDirectory, metric: Metric, log: str | None) -> list[Sink]:
    """Return where a run writes its epochs. ``log``: a kind of :data:`simgnn.record.logs.LOGS`, or None."""
    sinks: list[Sink] = [LossFile(run.losses, metric)]
    if log == "tensorboard":
        # an extra, which may be missing
        from executor.recording.tensorboard import EventFile

        sinks.append(EventFile(run.tensorboard, metric))
    return sinks
