"""A validation from draw to score: what comes before what, interruptions, tampering, scoring again."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from simgnn.api.backend import CommandBackend
from simgnn.cli.main import invoke
from simgnn.cli.tables.console import Reporter
from simgnn.errors import BackendError, ConfigError
from simgnn.locks import locked_folder
from simgnn.report.validation import print_scoreboard, write_report
from simgnn.study.validate.scoreboard import ROOFLINE, SIMULATOR, Scoreboard
from simgnn.study.validate.suite_runs import keep, rescore, validate
from tests.study.worlds import SUITE, Pretended, small_suite


def test_everything_is_frozen_before_the_first_run(finished: tuple[Scoreboard, Path, Pretended]) -> None:
    names = finished[2].names()
    first_run = names.index("run")
    assert names[:3] == ["check", "calibrate", "canary"]
    assert not {"calibrate", "declare", "prepare", "predict"} & set(names[first_run:])
    assert names.count("run") == 8 * 3
    assert names.count("canary") == 8 * 3 + 1


def test_repeats_are_interleaved_and_testbeds_come_and_go(finished: tuple[Scoreboard, Path, Pretended]) -> None:
    events = finished[2].events
    runs = [event.removeprefix("run ") for event in events if event.startswith("run ")]
    for repeat in range(3):
        part = runs[8 * repeat : 8 * repeat + 8]
        assert all(name.endswith(f"~{repeat}") for name in part)
        assert len(set(part)) == 8
    assert [case.split("~")[0] for case in runs[:8]] != [case.split("~")[0] for case in runs[8:16]]
    inside = False
    for event in events:
        inside = {"up": True, "down": False}.get(event.split()[0], inside)
        if event.startswith("run "):
            assert inside == ("-far-" in event)
    assert finished[2].names().count("up") == finished[2].names().count("down") == 3


def test_the_score_is_that_of_the_known_factor(finished: tuple[Scoreboard, Path, Pretended]) -> None:
    board = finished[0]
    lines = {(line.predictor, line.group): line.score for line in board.lines}
    own = lines[SIMULATOR, "all"]
    assert own.n == 8
    assert own.median_error == pytest.approx(1 - 1 / 1.1, abs=0.01)
    assert own.bias == pytest.approx(1 / 1.1 - 1, abs=0.01)
    assert own.tau == 1.0
    assert own.regret == 0.0
    assert own.coverage is None or 0 <= own.coverage <= 1
    assert (ROOFLINE, "all") in lines
    assert ("regression, graph held out", "all") in lines
    assert lines[SIMULATOR, "topology far"].n == 4
    assert {(v.group, v.bar) for v in board.verdicts} >= {("all", "median_error"), ("what-if", "median_error")}
    assert board.holds
    assert board.drift.median == pytest.approx(1.2)
    assert {part.part for part in board.parts} >= {"compute_s", "wait_s", "transfer_s"}


def test_a_rate_that_is_cut_down_is_noticed(finished: tuple[Scoreboard, Path, Pretended]) -> None:
    (entry,) = finished[0].sensitivity
    assert entry.worse
    assert entry.fails


def test_it_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    suite, root = small_suite(repeats=2), tmp_path / "small"
    broken = Pretended(fail_at=6)
    with pytest.raises(BackendError, match="a rank died"):
        validate(suite, root, broken)
    assert broken.names().count("up") == broken.names().count("down")
    again = Pretended()
    board = validate(suite, root, again)
    assert again.names().count("run") == 16 - 5
    assert not {"calibrate", "prepare", "predict", "declare"} & set(again.names())
    assert all(line.repeats == 2 for line in board.cases)
    idle = Pretended()
    assert validate(suite, root, idle).as_dict() == board.as_dict()
    assert idle.events == []


def test_a_testbed_that_was_refused_is_not_taken_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is up for somebody else, whose runs taking it down would end."""
    backend = Pretended()

    def refused(testbed: Path) -> None:
        raise BackendError(f"testbed: '{testbed.name}' is in use by process 1")

    monkeypatch.setattr(backend, "up", refused)
    with pytest.raises(BackendError, match="in use by process 1"):
        validate(small_suite(), tmp_path / "out", backend)
    assert "down" not in backend.names()


def test_what_is_frozen_stays(finished: tuple[Scoreboard, Path, Pretended], tmp_path: Path) -> None:
    _, root, _ = finished
    with pytest.raises(ConfigError, match="another suite"):
        validate(small_suite(repeats=4), root, Pretended())
    kept = tmp_path / "kept"
    keep(root, kept)
    with (kept / "profile.toml").open("a") as file:
        file.write("# faster\n")
    with pytest.raises(ConfigError, match=r"profile\.toml changed"):
        rescore(kept, Pretended())
    occupied = tmp_path / "occupied"
    occupied.mkdir()
    (occupied / "thesis.tex").touch()
    with pytest.raises(ConfigError, match="not empty and holds no validation"):
        validate(small_suite(), occupied, Pretended())


def test_a_testbed_that_would_be_another_now_is_not_gone_on_with(
    finished: tuple[Scoreboard, Path, Pretended], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite, running, preparing = small_suite(repeats=1), tmp_path / "running", tmp_path / "preparing"
    with pytest.raises(BackendError, match="a rank died"):
        validate(suite, running, Pretended(fail_at=2))
    broken = Pretended()
    with monkeypatch.context() as patched:
        patched.setattr(broken, "prepare", interrupted)
        with pytest.raises(KeyboardInterrupt):
            validate(suite, preparing, broken)
    declared = preparing / "profiles" / "far-P2.testbed.toml"
    assert 'queue = "fair"' in declared.read_text(), "no default decides later"
    monkeypatch.setattr("simgnn.study.validate.freeze.QUEUE", "fifo")
    for root in (running, preparing):
        again = Pretended()
        with pytest.raises(ConfigError, match=r"far-P2\.testbed\.toml: queue: got fair, expected fifo"):
            validate(suite, root, again)
        assert not {"declare", "predict", "up", "run"} & set(again.names())
    declared.write_text(declared.read_text().replace('queue = "fair"\n', ""))  # as earlier versions wrote it
    with pytest.raises(ConfigError, match=r"queue: got nothing, expected fifo"):
        validate(suite, preparing, Pretended())
    done, root, _ = finished
    assert validate(small_suite(), root, Pretended()).as_dict() == done.as_dict(), "nothing is left to run"


def test_names_that_hold_what_folders_are_told_apart_by_share_none(tmp_path: Path) -> None:
    """Names may hold dots and dashes: no run overwrites what another case starts from, no profile a declaration."""
    own = {"model": {"kind": "gcn", "hidden": 8}}
    experiments = [{"name": name, "set": own} for name in ("gcn", "gcn.0", "gcn.1")]
    topologies = [{"name": name, "hosts": 2, "link": "1 Gbit/s"} for name in ("x", "testbed-x", "x-P2.testbed")]
    plain = {"sensitivity": [], "group_bars": [], "bars": {"median_error": 0.15}, "hold_out": ["experiment"]}
    axes = {"experiments": experiments, "topologies": topologies, "graphs": SUITE["graphs"][:1]}
    changes = {"repeats": 2, **axes, **plain}
    backend = Pretended()
    board = validate(small_suite(**changes), tmp_path / "small", backend)
    assert [line.repeats for line in board.cases] == [2] * 9
    assert len(list((tmp_path / "small" / "profiles").iterdir())) == 6
    assert validate(small_suite(**changes), tmp_path / "small", Pretended()).as_dict() == board.as_dict()


def test_a_folder_of_before_says_that_it_cannot_be_gone_on_with(tmp_path: Path) -> None:
    root = tmp_path / "small"
    with pytest.raises(BackendError, match="a rank died"):
        validate(small_suite(repeats=1), root, Pretended(fail_at=2))
    declared = root / "profiles" / "far-P2.testbed.toml"
    declared.rename(declared.with_name("testbed-far-P2.toml"))
    frozen = json.loads((root / "frozen.json").read_text())
    digests = frozen["digests"]
    digests["profiles/testbed-far-P2.toml"] = digests.pop("profiles/far-P2.testbed.toml")
    (root / "frozen.json").write_text(json.dumps(frozen))
    with pytest.raises(ConfigError, match=r"far-P2\.testbed\.toml: no such file"):
        validate(small_suite(repeats=1), root, Pretended())


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_ground_truth_is_small_and_scores_the_same_without_graphs(
    finished: tuple[Scoreboard, Path, Pretended], tmp_path: Path
) -> None:
    board, root, _ = finished
    kept = tmp_path / "truth"
    keep(root, kept)
    assert not (kept / "work").exists()
    assert sum(path.stat().st_size for path in kept.rglob("*") if path.is_file()) < 200_000
    again = Pretended()
    (kept / "bound.toml").write_text("median_error = 0.1\n")
    same = rescore(kept, again)
    assert set(again.names()) == {"predict"}
    assert replace(same, guard=()).as_dict() == replace(board, guard=()).as_dict()
    assert [(verdict.limit, verdict.holds) for verdict in same.guard] == [(0.1, True)]
    assert same.guarded
    (kept / "bound.toml").write_text("median = 0.1\n")
    with pytest.raises(ConfigError, match="did you mean 'median_error'"):
        rescore(kept, again)
    with pytest.raises(ConfigError, match="--keep"):
        keep(root, kept)


def test_a_simulator_that_got_worse_breaks_the_bound(
    finished: tuple[Scoreboard, Path, Pretended], tmp_path: Path
) -> None:
    kept = tmp_path / "truth"
    keep(finished[1], kept)
    (kept / "bound.toml").write_text("median_error = 0.15\n")
    worse = Pretended()
    worse.slower = 1.5
    board = rescore(kept, worse)
    assert not board.guarded
    assert [(verdict.bar, verdict.holds) for verdict in board.guard] == [("median_error", False)]


def test_another_program_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Pretended()
    honest = backend.run
    monkeypatch.setattr(backend, "run", lambda *a: honest(*a).model_copy(update={"program_digest": "0" * 64}))
    with pytest.raises(BackendError, match="trained program 000000000000"):
        validate(small_suite(), tmp_path / "small", backend)


def test_reports(
    finished: tuple[Scoreboard, Path, Pretended], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    board = finished[0]
    print_scoreboard(board)
    told = capsys.readouterr().out
    for words in ("small-random-P2-here-narrow", "predicted", "measured", "spread", "error", "largest", "n = 8",
                  "noise forgiven", "passed: every bar holds",
                  "reference work"):  # fmt: skip
        assert words in told
    page = tmp_path / "deep" / "report.html"
    write_report(board, page)
    text = page.read_text()
    assert "Validation: small" in text
    assert "plotly" in text.lower()
    assert 'src="http' not in text
    json.dumps(board.as_dict())


def test_bad_calls_exit_with_status_2(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert invoke(["validate", "quik"]) == 2
    assert "did you mean 'quick'" in capsys.readouterr().err
    assert invoke(["validate", "nothing", "--rescore"]) == 2
    assert "no runs are stored" in capsys.readouterr().err
    assert invoke(["validate", "quick", "--rescore", "--out", str(tmp_path)]) == 2
    assert "no validation" in capsys.readouterr().err


def test_what_would_stop_the_runs_is_told_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise ConfigError("testbed: got a user without root, expected root")

    backend = Pretended()
    monkeypatch.setattr(backend, "check_testbed", refuse)
    with pytest.raises(ConfigError, match="expected root"):
        validate(small_suite(), tmp_path / "small", backend)
    monkeypatch.delenv("SIMGNN_DATA", raising=False)
    real = [{"name": "real", "set": {"graph": {"source": "$SIMGNN_DATA/cora.npz"}}}]
    with pytest.raises(ConfigError, match="SIMGNN_DATA is not set"):
        validate(small_suite(graphs=real, hold_out=[]), tmp_path / "small", backend)
    assert backend.events == []
    assert not (tmp_path / "small").exists()


def test_two_validations_never_share_a_folder(
    finished: tuple[Scoreboard, Path, Pretended], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, backend = tmp_path / "small", Pretended()
    with locked_folder(root, "--out"):
        with pytest.raises(ConfigError, match=f"--out: {root} is in use by process {os.getpid()}; wait for it"):
            validate(small_suite(), root, backend)
        assert invoke(["validate", "quick", "--out", str(root)]) == 2
        assert f"in use by process {os.getpid()}" in " ".join(capsys.readouterr().err.split())
    assert backend.events == []
    assert not root.exists()
    keep(finished[1], tmp_path / "kept")
    assert not (tmp_path / "kept" / ".lock").exists()


@pytest.mark.parametrize(("status", "error"), [(0, None), (1, None), (2, ConfigError), (3, BackendError)])
def test_a_machine_without_testbeds_is_bad_input(
    status: int, error: type[Exception] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = f"import sys; print('executor: error: testbed: no root'); sys.exit({status})"
    monkeypatch.setattr("simgnn.api.executor_process.check_executor", lambda: None)
    real = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda words, **options: real([sys.executable, "-c", script], **options))
    if error is None:
        CommandBackend(Reporter(quiet=True)).check_testbed()
        return
    with pytest.raises(error, match="testbed: no root") as caught:
        CommandBackend(Reporter(quiet=True)).check_testbed()
    assert str(caught.value).startswith("testbed")
