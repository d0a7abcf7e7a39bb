"""Training without labels from the command line: run, simulate, infer, export, and what is refused."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from simgnn.cli.main import invoke
from simgnn.record.result import read_result
from simgnn.record.rundir import RunDirectory

pytestmark = pytest.mark.usefixtures("forked_ranks")

GRAPH = ["graph.source=synthetic:communities", "graph.vertices=120", "graph.edges=500", "graph.classes=4"]
SMALL = [
    *GRAPH,
    "graph.feature_width=6",
    "model.layers=2",
    "model.hidden=5",
    "batching.fanouts=[3,2]",
    "train.epochs=2",
]
UNSUPERVISED = [*SMALL, "batching.batch_size=16", "batching.unsupervised=true", "batching.negatives=2"]


def words(settings: list[str]) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


@pytest.mark.slow
def test_a_run_gives_embeddings_and_no_accuracy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert invoke(["run", "distdgl", "--ranks", "2", "--out", str(run), *words(UNSUPERVISED)]) == 0
    shown = capsys.readouterr().out
    assert "none: trained without labels" in shown
    assert "test area under the curve" in shown
    result = read_result(RunDirectory(run).result)
    assert result.accuracy is None
    assert "batching.unsupervised" in (result.accuracy_missing or "")
    (last,) = result.area_under_curve or ()
    assert last.train is None
    assert 0 <= (last.validation or -1) <= 1
    table = tmp_path / "embeddings.parquet"
    assert invoke(["infer", str(run), "--out", str(table), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["embeds"], told["accuracy"]) == (True, None)
    assert pq.read_table(table).schema.names == ["vertex", *(f"embedding_{column}" for column in range(5))]
    module = tmp_path / "model.py"
    assert invoke(["export", str(run), "--to", "torch", "--out", str(module), "--json"]) == 0
    capsys.readouterr()
    assert "embeddings = model(" in module.read_text()
    assert "argmax" not in module.read_text()


@pytest.mark.slow
def test_a_prediction_has_no_accuracy_either(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["simulate", "distdgl", "--ranks", "2", "--hardware", "cpu-25gbe-4", "--json", *words(UNSUPERVISED)]
    assert invoke(arguments) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["accuracy"] is None
    assert told["accuracy_missing"]
    assert told["epoch_s_median"] > 0


@pytest.mark.parametrize(
    ("system", "settings", "key"),
    [
        ("distdgl", ["batching.negatives=0"], "batching.negatives"),
        ("vanilla", [], "batching.unsupervised"),
    ],
)
def test_bad_input_ends_with_status_2(
    system: str, settings: list[str], key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = [*GRAPH, "graph.feature_width=6", "batching.unsupervised=true", *settings]
    out = tmp_path / "run"
    assert invoke(["run", system, "--ranks", "1", "--out", str(out), "--prepare", *words(chosen)]) == 2
    assert key in capsys.readouterr().err
    assert not out.exists()
