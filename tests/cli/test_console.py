"""What is printed, and where."""

import json

import pytest

from simgnn import progress
from simgnn.cli.tables import console, elapsed
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


def test_short_work_is_not_told_off_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 1.0, 2.0, 10.0, 11.0, 20.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    reporter = console.Reporter()
    with reporter.counting("reading", 2, patient=True) as counter:
        counter.at(1)
        counter.at(2)
    assert capsys.readouterr().err == ""
    with reporter.counting("reading", 3, patient=True) as counter:
        counter.at(1)
        counter.at(2)
    assert capsys.readouterr().err == "simgnn: reading: 2/3, 9 s left\n"


def test_waiting_off_a_terminal_is_one_line_where_it_will_be_long(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = console.Reporter()
    for expected_s in (None, 1.0, 40.0):
        with reporter.waiting("partitioning", expected_s):
            pass
    assert capsys.readouterr().err == "simgnn: partitioning: about 40 s, by the last one here\n"


def test_a_terminal_shows_the_time_that_native_code_takes(capfd: pytest.CaptureFixture[str]) -> None:
    assert elapsed.line("metis", 3, None) == "metis: 3 s (it does not tell how far it is)"
    assert elapsed.line("metis", 3, 40) == "metis: 3 s of about 40 s, by the last one here"
    assert elapsed.line("metis", 50, 40) == "metis: 50 s, longer than the estimate of 40 s"
    with elapsed.shown_elapsed("metis", 40):
        pass
    told = capfd.readouterr()
    assert told.out == ""
    assert told.err.startswith("\r\x1b[Kmetis: 0 s of about 40 s")
    assert told.err.endswith("\r\x1b[K")
