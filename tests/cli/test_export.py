"""``simgnn export``: a run's model as a plain PyTorch module, and what is refused."""

import json
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from simgnn.cli.main import invoke

pytestmark = pytest.mark.usefixtures("forked_ranks")


def test_a_finished_run_is_exported_and_never_replaces_files_unasked(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = tmp_path / "run", tmp_path / "home" / "model.py"
    assert invoke(["run", str(small), "--ranks", "1", "--out", str(run), "--json"]) == 0
    capsys.readouterr()
    command = ["export", str(run), "--to", "torch", "--out", str(out)]
    assert invoke([*command, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["module"], told["weights"]) == (str(out), str(out.with_suffix(".pt")))
    assert "checked on a random graph" in told["notes"][-1]
    text = out.read_text()
    assert "after epoch 4" in text
    assert "simgnn" not in [line.split()[1] for line in text.splitlines() if line.startswith(("import ", "from "))]
    out.write_text("# edited\n")
    assert invoke(command) == 2
    assert "exists already" in capsys.readouterr().err
    assert out.read_text() == "# edited\n"
    assert invoke([*command, "--force", "--weights", "best"]) == 0
    best = json.loads((run / "model" / "model.json").read_text())["best"]["epoch"]
    assert f"after epoch {best}" in out.read_text()
    assert sorted(path.name for path in out.parent.iterdir()) == ["model.pt", "model.py"]
    # weights that are not those of the description
    path = run / "model" / "last.safetensors"
    assert "layers.0.weight" in load_file(path)
    path.write_bytes(path.read_bytes()[:100])
    scores = ["infer", str(run), "--out", str(tmp_path / "scores.parquet")]
    for words in ([*command, "--force"], scores):
        assert invoke(words) == 2
        assert "last.safetensors: not a readable file of weights" in capsys.readouterr().err
    (run / "experiment.toml").write_text("seed = 3\n")
    assert invoke(scores) == 2
    assert "experiment.toml: not a readable record of an experiment (no entry 'graph')" in capsys.readouterr().err


def test_what_cannot_be_exported_is_refused(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepared = tmp_path / "prepared"
    assert invoke(["run", str(small), "--ranks", "1", "--out", str(prepared), "--prepare"]) == 0
    out = tmp_path / "model.py"
    for words, told in (
        ([str(prepared), "--to", "pyg"], "has not finished"),
        ([str(tmp_path), "--to", "pyg"], "is not a run directory"),
        ([str(prepared), "--to", "onnx"], "--to: got 'onnx'"),
        ([str(prepared), "--to", "pyg", "--weights", "first"], "--weights: got 'first'"),
    ):
        assert invoke(["export", *words, "--out", str(out)]) == 2
        assert told in " ".join(capsys.readouterr().err.split())
    for name in ("model.txt", "my-model.py", "class.py", "torch.py", "random.py"):
        assert invoke(["export", str(prepared), "--to", "pyg", "--out", str(tmp_path / name)]) == 2
        assert "expected a Python module" in " ".join(capsys.readouterr().err.split())
    assert not out.exists()
