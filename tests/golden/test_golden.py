"""Predictions are those of the golden file: see :mod:`tests.golden.cases`."""

import json
from pathlib import Path

import pytest

from simgnn.cli.main import invoke
from tests.golden.cases import GOLDEN, PREDICTED, command, fields, labels, needs_record

QUICK = {
    ("vanilla", "gcn", "2"), ("vanilla", "gat", "2x2"), ("cagnet", "gat", "2"), ("sancus", "sage", "4"),
    ("distdgl", "sage", "2x2"), ("rapidgnn", "gcn", "2x2"), ("pipegcn", "sage", "2x2"), ("bnsgcn", "sage", "2x2"),
    ("adaqp", "gcn", "2x2"), ("capgnn", "gat", "2x2"),
}  # fmt: skip
CASES = [
    pytest.param(case, id="/".join(case), marks=[] if case in QUICK else [pytest.mark.slow])
    for case in labels()
    if not needs_record(case[0])
]


@pytest.mark.parametrize("case", CASES)
def test_predictions_do_not_change(case: tuple[str, str, str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert invoke(command("simulate", case, out)) == 0
    assert fields(out, PREDICTED) == json.loads(GOLDEN.read_text())["/".join(case)]
