"""The worked example of docs/take_home.md, as it is printed there."""

import re
import sys
from pathlib import Path

import pytest

from simgnn.cli.main import invoke
from simgnn.record.result import read_result

PAGE = Path(__file__).parents[2] / "docs" / "take_home.md"


@pytest.mark.usefixtures("forked_ranks")
def test_the_example_gives_the_scores_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = PAGE.read_text()
    blocks = {
        kind: re.findall(rf"^```{kind}\n(.*?)^```", text, flags=re.M | re.S) for kind in ("python", "toml", "bash")
    }
    make, use = blocks["python"]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(blocks["toml"][0])
    first, *commands = blocks["bash"][0].splitlines()
    assert first == "python make_graph.py"
    exec(compile(make, "make_graph.py", "exec"), {})  # in this process, which has imported torch
    for command in commands:
        name, *words = command.split()
        assert name == "simgnn"
        assert invoke(words) == 0, command
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "model", raising=False)
    capsys.readouterr()
    exec(compile(use, "use.py", "exec"), {})
    told = capsys.readouterr().out
    monkeypatch.delitem(sys.modules, "model")
    found = re.fullmatch(r"test accuracy (\S+)\nlargest difference (\S+)\n", told)
    assert found is not None, told
    result = read_result(tmp_path / "run" / "result.json")
    assert result.accuracy[-1].test == pytest.approx(float(found[1]), abs=5e-5)
    assert result.accuracy[-1].test > 0.6, "the example learns something"
    assert float(found[2]) <= 1e-5
