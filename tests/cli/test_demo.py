"""The demo: the whole tool on one experiment, within its minute."""

import json
import time
from pathlib import Path

import pytest

from simgnn.cli.main import invoke
from simgnn.record.result import read_result
from simgnn.record.rundir import RunDirectory

LIMIT_S = 60.0


@pytest.mark.slow
@pytest.mark.alone
def test_the_demo_predicts_trains_and_compares_within_a_minute(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = time.monotonic()
    assert invoke(["demo", "--out", str(tmp_path / "demo"), "--json"]) == 0
    assert time.monotonic() - begun <= LIMIT_S
    printed = json.loads(capsys.readouterr().out)
    predicted = read_result(RunDirectory(tmp_path / "demo" / "sim").result)
    measured = read_result(RunDirectory(tmp_path / "demo" / "run").result)
    assert predicted.program_digest == measured.program_digest
    assert predicted.bytes_sent == measured.bytes_sent
    assert measured.accuracy is not None
    assert measured.accuracy[-1].test is not None
    assert measured.accuracy[-1].test > 0.8  # 16 classes: chance is near 0.06
    assert [row["quantity"] for row in printed["table"]][:2] == [
        "epoch, median",
        "communicating while nothing computes, slowest rank",
    ]
    events = json.loads((tmp_path / "demo" / "trace.perfetto.json").read_text())["traceEvents"]
    # ranks of both, and the links of the prediction
    assert {event["pid"] for event in events} == {0, 1, 9_999, 10_000, 10_001}
