"""``simgnn infer`` gives the scores of the run's last evaluation, on any number of ranks, and serves other graphs."""

import json
import runpy
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file

from simgnn.api.take_home import infer_run
from simgnn.cli.main import invoke
from simgnn.cli.tables.console import Reporter
from simgnn.errors import ConfigError, GraphError
from simgnn.graph.graph import Graph
from simgnn.graph.load import with_centred_features
from simgnn.graph.store import save_graph
from simgnn.progress import Progress
from simgnn.record.result import read_result
from simgnn.record.rundir import RunDirectory
from tests.executor.forked import forked_ranks
from tests.executor.runs import small_graph
from tests.executor.trained.exported_runs import (
    BOUND,
    Case,
    evaluated_scores,
    exported_scores,
    raw_data,
    relative_error,
)

__all__ = ["forked_ranks"]
pytestmark = pytest.mark.usefixtures("forked_ranks")
QUIET = Reporter(quiet=True)
CASES = {
    "vectors": (Case("distdgl", "gcn", "float64", ("placement.sparse_embedding=3",), hosts=2), 2),
    "several": (Case("cdfgnn", "gin", "float64"), 1),
    "own": (Case("vanilla", "own"), 3),
    "centred": (Case("vanilla", "gat", "float64", ("model.heads=2", "graph.centre=true")), 2),
}
"""Runs on two ranks, and the ranks that compute their scores; "several": with several labels a vertex."""


NAMES = ("ant", 'bee"""', "cat\\", "dog", "elk")
"""Names of classes, also such as would end a text in an exported module."""


def _table(path: Path) -> tuple[torch.Tensor, list[object]]:
    """Scores and predicted classes of a table."""
    table = pq.read_table(path)
    assert table["vertex"].to_pylist() == list(range(len(table)))
    names = [name for name in table.column_names if name.startswith("score_")]
    named = ["class_name"] if "class_name" in table.column_names else []
    assert table.column_names == ["vertex", "class", *named, *names]
    classes = table["class"].to_pylist()
    if named:
        assert table["class_name"].to_pylist() == [NAMES[place] for place in classes]
    return torch.from_numpy(np.stack([table[name].to_numpy() for name in names], 1)), classes


def test_scores_are_those_of_the_last_evaluation(tmp_path: Path) -> None:
    folders, graphs = [], {}
    for name, (case, _) in CASES.items():
        graph = small_graph(sparse_features=name == "centred", multilabel=name == "several")
        save_graph(graph, tmp_path / f"{name}.graph")
        graphs[name] = graph
        settings = (*case.settings, f"graph.source={tmp_path / f'{name}.graph'}")
        trained = with_centred_features(graph, name) if name == "centred" else graph
        folders.append(replace(case, settings=settings).prepared(trained, tmp_path / name, 2))
    expected = evaluated_scores(folders, 2, tmp_path / "ranks")
    for (name, (case, ranks)), folder, scores in zip(CASES.items(), folders, expected, strict=True):
        out = tmp_path / f"{name}.parquet"
        told = infer_run(folder, None, (), ranks, "last", out, QUIET)
        found, classes = _table(out)
        assert relative_error(found, scores) <= BOUND[case.dtype], name
        evaluated = read_result(RunDirectory(folder).result).accuracy[-1].model_dump()
        assert told.accuracy is not None
        assert {split: evaluated[split] for split in told.accuracy} == pytest.approx(told.accuracy, abs=1e-15), name
        if name == "several":
            assert classes == [torch.nonzero(row > 0).flatten().tolist() for row in found]
        else:
            assert classes == found.argmax(1).tolist()
    with pytest.raises(GraphError, match="learned a vector for each vertex"):
        infer_run(tmp_path / "vectors", str(tmp_path / "own.graph"), (), 1, "last", tmp_path / "no.parquet", QUIET)
    shutil.rmtree(tmp_path / "own.graph")
    save_graph(small_graph(seed=9), tmp_path / "own.graph")
    with pytest.raises(GraphError, match="has changed since"):
        infer_run(tmp_path / "own", None, (), 1, "last", tmp_path / "no.parquet", QUIET)
    assert not (tmp_path / "no.parquet").exists()
    assert not list(tmp_path.glob(".*")), "nothing temporary stays"


def _without_labels(graph: Graph) -> Graph:
    return replace(graph, labels=None, train_mask=None, validation_mask=None, test_mask=None, classes=0)


def test_another_graph_needs_no_labels_but_the_same_features(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Case("vanilla", "sage").prepared(replace(small_graph(), class_names=NAMES), tmp_path / "run", 1)
    evaluated_scores([run], 1, tmp_path / "ranks")
    other = _without_labels(small_graph(130, seed=5))
    for name, graph in {
        "other": other,
        "narrow": _without_labels(small_graph(width=7)),
        "bare": replace(other, features=None),
    }.items():
        save_graph(graph, tmp_path / name)
    command = ["infer", str(run), "--out", str(tmp_path / "scores.parquet"), "--json"]
    assert invoke([*command, "--graph", str(tmp_path / "other"), "--ranks", "2"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["vertices"], told["accuracy"], told["epoch"]) == (130, None, 5)
    found, _ = _table(tmp_path / "scores.parquet")
    assert "class_name" in pq.read_schema(tmp_path / "scores.parquet").names
    expected = exported_scores(run, "torch", *raw_data(other), tmp_path / "model.py")
    written = runpy.run_path(str(tmp_path / "model.py"))
    assert written["CLASS_NAMES"] == NAMES
    assert "CLASS_NAMES" in written["__doc__"]
    assert relative_error(found, expected) <= BOUND["float32"]
    before = (tmp_path / "scores.parquet").read_bytes()
    for words, reason in (
        (["--graph", str(tmp_path / "narrow")], "has 7 features a vertex, expected 12"),
        (["--graph", str(tmp_path / "bare")], "has no features, expected 12 a vertex"),
        (["--graph", str(tmp_path / "missing")], "not found"),
        (["--graph", str(tmp_path / "other"), "--set", "model.kind=gat"], "expected an option of the graph"),
        (["--set", "graph.vertices=3"], "without --graph"),
        (["--ranks", "0"], "--ranks: got 0"),
        (["--weights", "first"], "--weights: got 'first'"),
    ):
        assert invoke([*command, *words]) == 2, words
        assert reason in " ".join(capsys.readouterr().err.split())
    assert (tmp_path / "scores.parquet").read_bytes() == before
    weights = load_file(run / "model" / "last.safetensors")
    next(iter(weights.values())).view(-1)[0] = torch.inf
    save_file(weights, run / "model" / "last.safetensors")
    on_other = [*command, "--graph", str(tmp_path / "other")]
    for words in (on_other, ["export", str(run), "--to", "torch", "--out", str(tmp_path / "diverged.py")]):
        assert invoke(words) == 2
        assert "not finite" in capsys.readouterr().err


def test_a_run_without_a_model_is_refused(tmp_path: Path) -> None:
    run = Case("vanilla", "gcn").prepared(small_graph(), tmp_path / "run", 1)
    out = tmp_path / "scores.parquet"
    with pytest.raises(ConfigError, match="has not finished"):
        infer_run(run, None, (), 1, "last", out, QUIET)
    with pytest.raises(ConfigError, match="is not a run directory"):
        infer_run(tmp_path, None, (), 1, "last", out, QUIET)
    with pytest.raises(ConfigError, match=r"ends with \.parquet"):
        infer_run(run, None, (), 1, "last", tmp_path / "scores.csv", QUIET)
    assert not out.exists()


@pytest.mark.slow
def test_weights_of_edges(tmp_path: Path) -> None:
    plain = small_graph()
    weights = np.random.default_rng(0).exponential(size=plain.edges)
    graphs = {"plain": plain, "weighted": replace(plain, csr=replace(plain.csr, weights=weights))}
    folders = {}
    for name, graph in graphs.items():
        save_graph(graph, tmp_path / f"{name}.graph")
        case = Case("vanilla", "sage", "float64", (f"graph.source={tmp_path / f'{name}.graph'}",))
        folders[name] = case.prepared(graph, tmp_path / name, 2)
    expected = dict(zip(folders, evaluated_scores(list(folders.values()), 2, tmp_path / "ranks"), strict=True))

    told: list[str] = []

    def scores(run: str, graph: str | None = None, *overrides: str) -> torch.Tensor:
        source = None if graph is None else str(tmp_path / f"{graph}.graph")
        told.clear()
        infer_run(folders[run], source, overrides, 3, "last", tmp_path / "scores.parquet", Progress(told.append))
        return _table(tmp_path / "scores.parquet")[0]

    assert relative_error(scores("weighted"), expected["weighted"]) <= BOUND["float64"]
    assert not any("counts as 1" in line for line in told)
    unweighted = scores("weighted", "plain")
    assert any("has none, or only ones: each edge counts as 1" in line for line in told)
    assert relative_error(unweighted, expected["weighted"]) > 1e-3
    assert torch.equal(unweighted, scores("weighted", "weighted", "graph.weights=ignore"))
    with pytest.raises(GraphError, match=r"trained without.*--set graph\.weights=ignore"):
        scores("plain", "weighted")
    assert relative_error(scores("plain", "weighted", "graph.weights=ignore"), expected["plain"]) <= BOUND["float64"]
