"""Losses of mini-batches, written down by ranks: of a resumed run, and of a rank that was killed."""

from pathlib import Path

import torch

from executor.recording.side_records import LossRecorder, merged_records, record_file
from executor.recording.trace import put_aside
from executor.state.buffers import Now

TRAINED = 10


def _start(path: Path, epochs: range, shift: float, closed: bool = True) -> None:
    """A start of a run whose two steps an epoch have the mean losses EPOCH + ``shift`` and half a tenth more."""
    put_aside(path)
    recorder = LossRecorder(path.parent, 3, TRAINED, epochs[0])
    metrics = torch.zeros(4, dtype=torch.float64)
    for epoch in epochs:
        for step in range(2):
            metrics[0] = epoch + shift + 0.05 * step
            recorder.note(Now(epoch, step, 2 * epoch + step), metrics)
            metrics.fill_(-1)  # what is noted is the rank's own part: the buffer is summed over ranks in place
        recorder.flush()
    if closed:
        recorder.close()


def test_epochs_after_a_checkpoint_are_those_of_the_last_start(tmp_path: Path) -> None:
    path = record_file(tmp_path, 3, "losses")
    _start(path, range(3), shift=0.0, closed=False)
    _start(path, range(1, 4), shift=0.5)
    rows = merged_records(tmp_path, "losses").sort_by([("epoch", "ascending"), ("step", "ascending")]).to_pylist()
    assert [(row["rank"], row["epoch"], row["step"]) for row in rows] == [(3, e, s) for e in range(4) for s in range(2)]
    expected = [TRAINED * (epoch + 0.5 * (epoch > 0) + 0.05 * step) for epoch in range(4) for step in range(2)]
    torch.testing.assert_close(torch.tensor([row["loss_sum"] for row in rows]), torch.tensor(expected))


def test_a_start_that_wrote_nothing_takes_nothing_away(tmp_path: Path) -> None:
    path = record_file(tmp_path, 3, "losses")
    _start(path, range(3), shift=0.0, closed=False)
    put_aside(path)
    LossRecorder(tmp_path, 3, TRAINED, 2).close()
    _start(path, range(2, 4), shift=0.5)
    rows = merged_records(tmp_path, "losses").to_pylist()
    assert sorted((row["epoch"], row["step"]) for row in rows) == [(e, s) for e in range(4) for s in range(2)]


def test_a_run_that_wrote_nothing_has_no_losses(tmp_path: Path) -> None:
    assert merged_records(tmp_path, "losses").num_rows == 0
