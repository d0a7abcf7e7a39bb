"""What a rank writes down beside its trace: decisions of policies, losses of mini-batches, whence their rows came."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from executor.recording.activity import ActivityRecorder, activity_file
from executor.recording.losses import LossRecorder, loss_file
from executor.recording.row_origins import TakenRecorder, taken_file
from executor.recording.trace import put_aside
from executor.state.context import RankContext
from executor.state.plan import RunPlan
from simgnn.record.activity import decisions_in
from simgnn.record.batches import places_of

Recorder = TypeVar("Recorder")


class Notes:
    """Where handlers of one rank write down what the run leaves beside its trace; nothing where nothing of the kind
    happens. ``start``: epochs that earlier starts of a run have trained; ``resume``: whether what they wrote stays."""

    def __init__(self, plan: RunPlan, context: RankContext, start: int, resume: bool) -> None:
        self._folder, rank = plan.trace, context.rank

        def opened(path: Path, make: Callable[[Path], Recorder]) -> Recorder:
            if resume:
                put_aside(path)
            return make(path)

        self._recorders: list[ActivityRecorder | LossRecorder | TakenRecorder] = []
        self._names: list[Callable[[Path, int], Path]] = []
        if decisions_in(plan.program):
            self._names.append(activity_file)
            activity = opened(activity_file(plan.trace, rank), lambda path: ActivityRecorder(path, rank, start))
            context.note = activity.note
            self._recorders.append(activity)
        if plan.batches is not None:
            self._names.append(loss_file)
            assert context.task is not None
            trained = context.task.train_total
            losses = opened(loss_file(plan.trace, rank), lambda path: LossRecorder(path, rank, trained, start))
            context.note_loss = losses.note
            self._recorders.append(losses)
            self._names.append(taken_file)
            places = places_of(plan.program)
            taken = opened(taken_file(plan.trace, rank), lambda path: TakenRecorder(path, rank, places, start))
            context.note_rows = taken.note
            self._recorders.append(taken)

    def files(self, rank: int) -> list[Path]:
        """Where another rank of the run writes the same."""
        return [name(self._folder, rank) for name in self._names]

    def flush(self, force: bool = True) -> None:
        """Write what was noted; without ``force`` only when it is much."""
        for recorder in self._recorders:
            recorder.flush(force)

    def close(self) -> None:
        """Write the rest and end the files."""
        for recorder in self._recorders:
            recorder.close()
