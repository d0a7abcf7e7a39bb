"""A prediction of attention says so where its statistics do not count the edges from halo rows."""

from dataclasses import replace
from pathlib import Path

import pytest

from simgnn.cli.main import invoke
from simgnn.emit.sums.own_first import CUT_EDGES
from simgnn.partition.statistics.file import load_stats, save_stats
from simgnn.planner.prepare import ONE_SUM
from simgnn.record.result import read_result


@pytest.mark.parametrize(("kind", "counted"), [("gat", True), ("gat", False), ("gcn", False)])
def test_one_sum_in_place_of_two_is_told(kind: str, counted: bool, tmp_path: Path) -> None:
    file, out = tmp_path / "s.toml", tmp_path / "out"
    small = ["--set", "graph.vertices=80", "--set", "graph.edges=300", "--set", "partition.kind=random"]
    assert invoke(["partition", "vanilla", *small, "--ranks", "2", "--stats", str(file)]) == 0
    if not counted:
        stats = load_stats(file)
        save_stats(replace(stats, tables={k: v for k, v in stats.tables.items() if k != CUT_EDGES}), file)
    model = ["--set", f"model.kind={kind}", "--set", "model.hidden=8", "--set", "partition.kind=random"]
    command = ["simulate", "vanilla", "--set", f"graph.source=stats:{file}", *model, "--ranks", "2", "--out", str(out)]
    assert invoke(command) == 0
    assert (ONE_SUM in read_result(out / "result.json").extrapolated) == (kind == "gat" and not counted)
