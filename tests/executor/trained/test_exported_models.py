"""Exported models give the scores of the run's own last evaluation, on raw data and without simgnn."""

import ast
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from executor.trained.export import export_model
from simgnn.graph.build import assemble_edges
from simgnn.graph.graph import Graph
from simgnn.graph.load import with_centred_features
from simgnn.record.trained import open_trained
from tests.executor.runs import small_graph
from tests.executor.trained.exported_runs import (
    BOUND,
    Case,
    evaluated_scores,
    exported_model,
    exported_scores,
    raw_data,
    relative_error,
    weighted_data,
)

FAST = {
    "gcn": Case("vanilla", "gcn"),
    "gat": Case("vanilla", "gat", "float64", ("model.heads=2",)),
    "own": Case("vanilla", "own", "float64"),
    "whole": Case("vanilla", "tests.executor.trained.own_sums:Whole", "float64"),
    "cached": Case("cdfgnn", "gin", "float64"),
    "vectors": Case("distdgl", "gcn", "float64", ("placement.sparse_embedding=3",), hosts=2),
    "centred": Case("vanilla", "sage", "float64"),
    "centred sparse": Case("vanilla", "sage", "float64"),
    "directed": Case("vanilla", "gcn", "float64", ("graph.symmetrise=false",)),
    "no weights": Case("vanilla", "tests.executor.trained.own_sums:WeightedWhole", "float64"),
}
SLOWLY = ("train.learning_rate=0.001",)
"""For GIN, whose last hidden rows are few: they would all become 0, and scores the same for all vertices."""
WEIGHTED = {
    "gcn": Case("vanilla", "gcn"),
    "sage": Case("vanilla", "sage", "float64"),
    "gin": Case("cdfgnn", "gin", "float64", SLOWLY),
    "whole": Case("vanilla", "tests.executor.trained.own_sums:WeightedWhole", "float64"),
    "directed": Case("vanilla", "gcn", "float64", ("graph.symmetrise=false",)),
}
"""Runs on weighted edges."""

PLAIN = """\
import sys
sys.modules["simgnn"] = sys.modules["executor"] = None
import torch, model
x, edges, scores = torch.load("data.pt")
with torch.no_grad():
    assert torch.equal(model.load()(x, edges), scores)
"""


def _name(case: Case) -> str:
    return f"{case.system}_{case.kind}_{case.dtype}"


def test_scores_are_those_of_the_last_evaluation(tmp_path: Path) -> None:
    raw = {name: small_graph(sparse_features="sparse" in name) for name in FAST}
    raw["directed"] = _directed(raw["directed"])
    graphs = {name: with_centred_features(graph, name) if "centred" in name else graph for name, graph in raw.items()}
    folders = [case.prepared(graphs[name], tmp_path / name, 2) for name, case in FAST.items()]
    expected = evaluated_scores(folders, 2, tmp_path / "ranks")
    for (name, case), folder, scores in zip(FAST.items(), folders, expected, strict=True):
        x, edges = raw_data(raw[name])
        for target in ("pyg", "torch"):
            out = tmp_path / f"{target}.py"
            assert relative_error(exported_scores(folder, target, x, edges, out), scores) <= BOUND[case.dtype], name
            if "centred" in name:  # by the mean of the training graph, not of what is given
                assert relative_error(exported_scores(folder, target, x + 1, edges, out), scores) > 1e-3
    _works_without_simgnn(tmp_path / "own", *raw_data(raw["own"]), tmp_path / "home")


def test_weights_of_edges_do_what_they_did_in_training(tmp_path: Path) -> None:
    data = {name: weighted_data(name != "directed") for name in WEIGHTED}
    folders = [case.prepared(data[name][0], tmp_path / name, 2) for name, case in WEIGHTED.items()]
    expected = evaluated_scores(folders, 2, tmp_path / "ranks")
    for (name, case), folder, scores in zip(WEIGHTED.items(), folders, expected, strict=True):
        _, x, edges, weights = data[name]
        for target in ("pyg", "torch"):
            model = exported_model(folder, target, tmp_path / f"{target}.py")
            with torch.no_grad():
                assert relative_error(model(x, edges, weights), scores) <= BOUND[case.dtype], name
                assert torch.equal(model(x, edges, weights[:, None]), model(x, edges, weights))
                assert relative_error(model(x, edges, torch.ones(500)), scores) > 1e-3
            for wrong in (None, weights[1:], weights.new_full((500,), float("nan"))):
                with pytest.raises(ValueError, match="edge_weight"):
                    model(x, edges, wrong)
            with pytest.raises(ValueError, match=r"trained with weights of edges: expected edge_weight \[500\]"):
                model(x, edges)
            if name in ("gcn", "sage"):
                with pytest.raises(ValueError, match="not negative"):
                    model(x, edges, -weights)


def _directed(graph: Graph) -> Graph:
    """The graph with every third edge."""
    target = np.repeat(np.arange(graph.vertices), graph.csr.degrees())[::3]
    edges = assemble_edges(graph.csr.indices[::3], target, graph.vertices, symmetrise=False)
    return replace(graph, csr=edges.csr, symmetric=edges.symmetric)


def _works_without_simgnn(folder: Path, x: torch.Tensor, edges: torch.Tensor, home: Path) -> None:
    scores = exported_scores(folder, "pyg", x, edges, home / "model.py")
    written = sorted(path.name for path in home.iterdir() if path.is_file())  # Python adds its own __pycache__
    assert written == ["model.pt", "model.py", "model_layers.py"]
    torch.save((x, edges, scores), home / "data.pt")
    subprocess.run([sys.executable, "-c", PLAIN], cwd=home, check=True)
    tree = ast.parse((home / "model.py").read_text())
    assert ast.get_docstring(tree) is not None


def test_statistics_that_ranks_keep_apart_are_told(tmp_path: Path) -> None:
    names = ("tests.executor.layers.own_layers:Drop", "tests.executor.trained.own_sums:Normalised")
    cases = [Case("vanilla", name, settings=("train.epochs=1",)) for name in names]
    for ranks in (2, 1):
        places = [tmp_path / f"{place}-{ranks}" for place in range(len(cases))]
        folders = [case.prepared(small_graph(), at, ranks) for case, at in zip(cases, places, strict=True)]
        expected = evaluated_scores(folders, ranks, tmp_path / f"ranks-{ranks}")
        wanted = ("norm.running_mean and other statistics of the layers are those of rank 0", "norm normalises by")
        for folder, scores, what in zip(folders, expected, wanted, strict=True):
            out = tmp_path / "model.py"
            notes = " ".join(export_model(open_trained(folder, "last"), "pyg", out))
            text = " ".join((ast.get_docstring(ast.parse(out.read_text())) or "").split())
            error = relative_error(exported_scores(folder, "torch", *raw_data(small_graph()), out), scores)
            for told in (notes, text):
                assert (what in told) == (ranks > 1)
                assert ("no one model has the scores of the run's evaluation" in told) == (ranks > 1)
            assert (error <= BOUND["float32"]) == (ranks == 1)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_every_model_of_every_system_is_exported_exactly(
    ranks: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = small_graph(400)
    x, edges = raw_data(graph)
    cases = [
        Case(system, kind, dtype)
        for system in ("vanilla", "cdfgnn", "distdgl")
        for kind in ("gcn", "sage", "gin", "gat", "own")
        for dtype in ("float32", "float64")
        if (system, kind) != ("distdgl", "own")  # mini-batches take built-in layers only
    ]
    folders = [case.prepared(graph, tmp_path / _name(case), ranks) for case in cases]
    expected = evaluated_scores(folders, ranks, tmp_path / "ranks")
    worst: dict[tuple[str, str, str], float] = {}
    for case, folder, scores in zip(cases, folders, expected, strict=True):
        for target in ("pyg", "torch"):
            found = exported_scores(folder, target, x, edges, tmp_path / f"{_name(case)}_{target}.py")
            group = (case.system, case.dtype, target)
            worst[group] = max(worst.get(group, 0.0), relative_error(found, scores))
    with capsys.disabled():
        for (system, dtype, target), error in worst.items():
            print(f"\n{ranks} ranks, {system}, {dtype}, --to {target}: {error:.1e}", end="")
    assert all(error <= BOUND[dtype] for (_, dtype, _), error in worst.items())


@pytest.mark.slow
@pytest.mark.parametrize("symmetrise", [True, False])
@pytest.mark.parametrize("system", ["vanilla", "cdfgnn"])  # mini-batches reject weights of edges
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_every_weighted_model_is_exported_exactly(
    ranks: int, system: str, symmetrise: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph, x, edges, weights = weighted_data(symmetrise)
    settings = (*SLOWLY, f"graph.symmetrise={str(symmetrise).lower()}")
    cases = [
        Case(system, kind, dtype, settings)
        for kind in ("gcn", "sage", "gin", "tests.executor.trained.own_sums:WeightedSums")
        for dtype in ("float32", "float64")
    ]
    names = [f"run_{place}" for place in range(len(cases))]
    folders = [case.prepared(graph, tmp_path / name, ranks) for name, case in zip(names, cases, strict=True)]
    expected = evaluated_scores(folders, ranks, tmp_path / "ranks")
    worst: dict[tuple[str, str], float] = {}
    for name, case, folder, scores in zip(names, cases, folders, expected, strict=True):
        assert float(scores.std(0).max()) > 1e-3 * float(scores.abs().max()), "vertices have different scores"
        for target in ("pyg", "torch"):
            found = exported_scores(folder, target, x, edges, tmp_path / f"{name}_{target}.py", weights)
            group = (case.dtype, target)
            worst[group] = max(worst.get(group, 0.0), relative_error(found, scores))
    with capsys.disabled():
        for (dtype, target), error in worst.items():
            print(f"\nweighted, {ranks} ranks, {system}, {symmetrise=}, {dtype}, --to {target}: {error:.1e}", end="")
    assert all(error <= BOUND[dtype] for (dtype, _), error in worst.items())
