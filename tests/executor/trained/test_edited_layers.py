"""Layers of the user's own whose file was edited or deleted after the run, or cannot be imported at all."""

import re
import sys
from pathlib import Path

import pytest

from simgnn.cli.main import invoke
from tests.executor.runs import small_graph
from tests.executor.trained.exported_runs import (
    BOUND,
    Case,
    evaluated_scores,
    exported_scores,
    raw_data,
    relative_error,
)

SOURCE = (Path(__file__).parent / "own_sums.py").read_text()


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a module that is on the path, and is forgotten afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "edited_layer", raising=False)
    return tmp_path / "edited_layer.py"


def test_an_export_has_the_layers_that_were_trained(file: Path, tmp_path: Path) -> None:
    file.write_text(SOURCE)
    run = Case("vanilla", "edited_layer:Sums", "float64").prepared(small_graph(), tmp_path / "run", 2)
    (scores,) = evaluated_scores([run], 2, tmp_path / "ranks")
    for text in (SOURCE.replace("rows = aggregated +", "rows = 2 * aggregated +"), "no Python", None):
        sys.modules.pop("edited_layer", None)
        file.unlink() if text is None else file.write_text(text)
        found = exported_scores(run, "torch", *raw_data(small_graph()), tmp_path / "model.py")
        assert relative_error(found, scores) <= BOUND["float64"]
        assert (tmp_path / "model_layers.py").read_text() == SOURCE


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("def f(:\n", r"importing 'edited_layer' raised SyntaxError: .*edited_layer\.py:1"),
        ("\nraise ValueError('no mode')\n", r"raised ValueError: no mode \(.*edited_layer\.py:2\)"),
        ("import sys\nsys.exit(3)\n", "raised SystemExit: 3"),
        (SOURCE.replace("super().__init__()", "super().__init__(); raise ValueError('odd')"), "ValueError: odd"),
    ],
)
def test_a_file_that_cannot_be_imported_is_bad_input(
    text: str, told: str, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(text)
    small = ["graph.vertices=60", "graph.edges=200", "partition.kind=random", "model.kind=edited_layer:Sums"]
    words = [word for setting in small for word in ("--set", setting)]
    assert invoke(["run", "vanilla", "--ranks", "1", *words, "--out", str(tmp_path / "out")]) == 2
    message = capsys.readouterr().err
    assert re.search(told, message), message
    assert "internal error" not in message
    assert not (tmp_path / "out").exists()
