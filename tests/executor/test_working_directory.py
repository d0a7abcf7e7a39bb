"""What lies where simgnn is started: a user's classes are found there, other files hide no module."""

import subprocess
import sys
from pathlib import Path

import pytest

from executor.launch import startup
from simgnn.record.result import read_result

LAYER = """
import torch

class Own(torch.nn.Module):
    def __init__(self, width_in, width_out, activation):
        super().__init__()
        self.linear = torch.nn.Linear(width_in, width_out)

    def forward(self, csr, rows):
        return self.linear(rows)[: csr.rows]
"""


def test_ranks_find_a_layer_beside_the_experiment_and_no_file_there_hides_a_module(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit('the file torch.py was run')")
    (tmp_path / "mine.py").write_text(LAYER)
    settings = ["graph.source=synthetic:communities", "graph.vertices=300", "train.epochs=2", "partition.kind=random",
                "model.kind=mine:Own"]  # fmt: skip
    words = [word for setting in settings for word in ("--set", setting)]
    command = [sys.executable, "-P", "-m", "simgnn", "run", "vanilla", "--ranks", "2", "--out", "out", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "torch.py" not in done.stdout + done.stderr
    assert read_result(tmp_path / "out" / "result.json").status == "ok"


def test_the_first_place_that_python_m_searches_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), "/elsewhere", str(tmp_path)])
    startup.leave_working_directory()
    # named a second time, by PYTHONPATH: that is what the user wants
    assert sys.path == ["/elsewhere", str(tmp_path)]
    checkout = Path(startup.__file__).resolve().parents[2]
    monkeypatch.chdir(checkout)
    monkeypatch.setattr(sys, "path", [str(checkout), "/elsewhere"])
    startup.leave_working_directory()
    assert sys.path[0] == str(checkout)
