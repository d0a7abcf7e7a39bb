"""Traces of runs that were broken off and resumed, put together: each epoch as its last start wrote it."""

from pathlib import Path

import pytest
import torch

from executor.recording.report import merge_trace
from executor.recording.trace import Recorder, put_aside
from executor.state.buffers import Now
from executor.state.context import Sent
from simgnn.program.kinds import OpKind
from simgnn.program.ops import Op
from tests.executor.harness import tiny_program


def _start(folder: Path, epochs: range, number: int) -> None:
    """A start of a run on two ranks that writes its number as the bytes of each epoch, and then breaks off."""
    for rank in range(2):
        path = folder / f"rank-{rank}.arrow"
        put_aside(path)
        recorder = Recorder(path, rank, torch.device("cpu"), epochs.start)
        for epoch in epochs:
            recorder.add(Now(epoch, 0, epoch), 0, float(epoch), epoch + 1.0, Sent(number, 0, 0, 0))
        recorder.flush()


@pytest.mark.parametrize("empty", ["none", "between", "last"])
def test_every_epoch_is_told_once(empty: str, tmp_path: Path) -> None:
    program = tiny_program(2, {"steady": [Op("work", OpKind.BARRIER, "comm")]}, [])
    starts = [range(5), range(3, 6), range(5, 8)]
    starts = {"none": starts, "between": [starts[0], range(3, 3), *starts[1:]], "last": [*starts, range(7, 7)]}[empty]
    for number, epochs in enumerate(starts):
        _start(tmp_path, epochs, number)
    found = [(row["rank"], row["epoch"], row["bytes_sent"]) for row in merge_trace(tmp_path, program).to_pylist()]
    last = {epoch: number for number, epochs in enumerate(starts) for epoch in epochs}
    assert found == [(rank, epoch, last[epoch]) for rank in range(2) for epoch in range(8)]
