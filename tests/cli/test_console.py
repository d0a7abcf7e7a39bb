"""What is printed, and where."""

import json

import pytest

from simgnn import progress
from simgnn.cli.tables import console
from simgnn.report.results import amount, percent, seconds


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0.0, "0 s"), (12.3456, "12.35 s"), (0.0123, "12.3 ms"), (4.56e-6, "4.56 µs"), (2e-9, "2 ns")],
)
def test_seconds(value: float | None, text: str) -> None:
    assert seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (0, "0 B"), (1023, "1,023 B"), (1536, "1.5 KiB"), (2**40, "1 TiB")]
)
def test_amounts(value: int | None, text: str) -> None:
    assert amount(value) == text


def test_percent() -> None:
    assert (percent(None), percent(0.1234)) == ("-", "12.3 %")


def test_json_has_no_nan(capsys: pytest.CaptureFixture[str]) -> None:
    console.print_json({"a": float("nan"), "b": [float("inf"), 1.5], "c": (1, None)})
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [None, 1.5], "c": [1, None]}


def test_progress_off_a_terminal_is_plain_lines_with_the_time_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([10.0, 11.0, 20.0, 30.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    reporter = console.Reporter()
    reporter.stage("graph: g.npz")
    with reporter.counting("training", 4) as counter:
        counter.at(1, "loss 2")
        counter.at(2)
        counter.at(3)
        counter.at(4)
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines() == [
        "simgnn: graph: g.npz",
        "simgnn: training: 1/4 loss 2",
        "simgnn: training: 3/4, 5 s left",
        "simgnn: training: 4/4",
    ]


def test_a_share_is_told_with_what_is_being_done_and_at_every_change(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([10.0, 11.0, 12.0, 20.0, 21.0, 22.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    with console.Reporter().counting("calibrating", 1, share=True) as counter:
        counter.at(0, "messages", 400)
        counter.at(50, "messages", 400)
        counter.at(100, "work", 400)
        counter.at(250, "work", 400)
        counter.at(300, "work", 300)
        counter.at(300, "", 300)
    assert capsys.readouterr().err.splitlines() == [
        "simgnn: calibrating: 0 %: messages",
        "simgnn: calibrating: 25 %, 6 s left: work",
        "simgnn: calibrating: 62 %, 6 s left: work",
        "simgnn: calibrating: 100 %: work",
    ]


def test_quiet_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = console.Reporter(quiet=True)
    reporter.stage("graph")
    with reporter.counting("training", 1) as counter:
        counter.at(1)
    assert capsys.readouterr() == ("", "")
