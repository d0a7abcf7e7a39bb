"""Activity: names of decisions, tables and back, what is refused, parts of a resumed run."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.recording.side_records import DecisionRecorder, merged_records, record_file
from executor.recording.trace import put_aside
from executor.state.buffers import Now
from simgnn.errors import ConfigError
from simgnn.record.activity import ACTIVITY_SCHEMA, columns_of, decisions_of, read_activity
from simgnn.record.rundir import write_table


def table(*rows: tuple[int, int, str, int, int, int]) -> pa.Table:
    """Rows (epoch, step, decision, rank, peer, value)."""
    epoch, step, decisions, rank, peer, value = zip(*rows, strict=True)
    point, phase, name = columns_of(decisions)
    columns = (epoch, step, point, phase, rank, peer, name, value)
    return pa.table(dict(zip(ACTIVITY_SCHEMA.names, map(list, columns), strict=True)), schema=ACTIVITY_SCHEMA)


@given(st.lists(st.text("abc1-", min_size=1), min_size=1, max_size=5))
def test_names_come_apart_and_together(parts: list[str]) -> None:
    name = "/".join(parts)
    (stored,) = zip(*columns_of([name]), strict=True)
    assert "/".join(filter(None, stored)) == name


def test_the_columns_of_names() -> None:
    assert list(columns_of(["sync/1/forward/rows", "agreed/go"])) == [
        ("sync/1", ""),
        ("forward", "agreed"),
        ("rows", "go"),
    ]


def test_decisions_with_and_without_peers() -> None:
    found = decisions_of(
        table(
            (0, 0, "a/f/rows", 0, 1, 5), (0, 0, "a/f/rows", 1, 0, 7), (1, 0, "a/f/rows", 0, 1, 0),
            (0, 0, "agreed/go", 0, -1, 1), (0, 0, "agreed/go", 1, -1, 1), (1, 0, "agreed/go", 0, -1, 0),
        ),
        2,
    )  # fmt: skip
    assert found["a/f/rows"].shape == (2, 2, 2, 1)
    assert found["a/f/rows"][..., 0, 0].tolist() == [[0, 5], [7, 0]]
    # rank 1 decided nothing in epoch 1
    assert found["a/f/rows"][..., 1, 0].tolist() == [[0, 0], [-1, -1]]
    assert found["agreed/go"][..., 0].tolist() == [[1, 0], [1, -1]]


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no activity\.parquet"):
        read_activity(tmp_path / "activity.parquet")
    write_table(pa.table({"epoch": [1]}), tmp_path / "activity.parquet")
    with pytest.raises(ConfigError, match="another version"):
        read_activity(tmp_path / "activity.parquet")
    nulls = table((0, 0, "a/f/rows", 0, 1, 5)).set_column(7, "value", pa.array([None], pa.int64()))
    write_table(nulls, tmp_path / "activity.parquet")
    with pytest.raises(ConfigError, match="column 'value' has cells that are empty"):
        read_activity(tmp_path / "activity.parquet")


def test_a_resumed_run_tells_every_epoch_once(tmp_path: Path) -> None:
    for rank in range(2):
        path = record_file(tmp_path, rank, "activity")
        # broken off in epoch 3, after a checkpoint of two epochs
        for start, stop in ((0, 4), (2, 5)):
            put_aside(path)
            recorder = DecisionRecorder(tmp_path, rank, start)
            for epoch in range(start, stop):
                recorder.note(Now(epoch, 0, epoch), "a/f/rows", 1 - rank, 100 * start + epoch)
            recorder.close()
    found = decisions_of(merged_records(tmp_path, "activity"), 2)
    assert found["a/f/rows"][0, 1, :, 0].tolist() == [0, 1, 202, 203, 204]
    assert np.array_equal(found["a/f/rows"][1, 0], found["a/f/rows"][0, 1])
