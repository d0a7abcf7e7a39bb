"""Weights of edges from the command line: predictions say what is assumed, and both commands reject alike."""

from pathlib import Path

import pytest

from simgnn.api.predict import FALLBACK_PROFILE
from simgnn.cli.main import invoke
from simgnn.record.result import WEIGHTED_SUMS, read_result
from simgnn.record.rundir import RunDirectory


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weighted")
    edges = "".join(f"{u},{(7 * u + 3) % 50},{1 + u / 10}\n" for u in range(50))
    (folder / "g.csv").write_text("source,target,weight\n" + edges)
    (folder / "e.toml").write_text(
        'extends = "vanilla"\n[graph]\nsource = "g.csv"\nstand_in_features = 4\nclasses = 2\n[model]\nhidden = 4\n'
    )
    return folder / "e.toml"


def test_a_prediction_says_that_weighted_sums_are_assumed(
    experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    simulate = ["simulate", str(experiment), "--ranks", "2", "--epochs", "2", "--hardware", FALLBACK_PROFILE]
    assert invoke([*simulate, "--out", str(tmp_path / "weighted")]) == 0
    told = " ".join(capsys.readouterr().err.split())
    assert "edges have weights, 1 to 5.9" in told
    assert f"assumed: {WEIGHTED_SUMS} take as long as plain sums" in told
    assert WEIGHTED_SUMS in read_result(RunDirectory(tmp_path / "weighted").result).assumed
    assert invoke([*simulate, "--set", "graph.weights=ignore", "--out", str(tmp_path / "plain")]) == 0
    assert WEIGHTED_SUMS not in read_result(RunDirectory(tmp_path / "plain").result).assumed


@pytest.mark.parametrize("command", ["run", "simulate"])
def test_both_commands_reject_a_model_that_cannot_use_weights(
    command: str, experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [command, str(experiment), "--ranks", "2", "--set", "model.kind=gat", "--out", str(tmp_path / "run")]
    assert invoke([*words, "--hardware", FALLBACK_PROFILE]) == 2
    assert "model.kind: got 'gat' with a graph whose edges have weights" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
