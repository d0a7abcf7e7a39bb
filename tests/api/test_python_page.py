"""The examples of docs/python.md, as they are printed there, one after another."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "python.md"


@pytest.mark.usefixtures("forked_ranks")
def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.M | re.S)
    monkeypatch.chdir(tmp_path)
    known: dict[str, object] = {}
    told = []
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), known)
        told.append(capsys.readouterr().out)
    assert len(blocks) == 6
    assert [line.split()[1] for line in told[1].splitlines()[1:]] == ["vanilla", "cagnet"]
    assert told[3].split()[1] == "0", "bytes that differ"
    assert (tmp_path / "both.html").is_file()
    assert "did you mean 'epochs'" in told[5]
    assert "model.kind: got 'gnc'" in told[5]
