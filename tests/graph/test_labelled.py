"""``graph.labelled``: a share of a graph's vertices stays labelled, on graphs of every source."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgnn.errors import ConfigError, GraphError
from simgnn.experiment.load import load_experiment
from simgnn.graph.csr import CSR
from simgnn.graph.graph import MASKS, Graph
from simgnn.graph.labelled import with_fewer_labels
from simgnn.graph.load import load_graph
from simgnn.graph.store import graph_digest, open_graph, save_graph
from simgnn.planner.prepare import prepare


def graph_with(*counts: int, vertices: int = 200) -> Graph:
    """A graph without edges with so many training, validation and test vertices."""
    kinds = np.repeat([0, 1, 2, 3], [*counts, vertices - sum(counts)])
    kinds = np.random.default_rng(1).permutation(kinds)
    masks: dict[str, Any] = {f"{name}_mask": kinds == place for place, name in enumerate(MASKS)}
    csr = CSR(np.zeros(vertices + 1, np.int64), np.zeros(0, np.int32), vertices)
    return Graph("bare", csr, labels=np.zeros(vertices, np.int64), classes=1, **masks)


def sizes(graph: Graph) -> list[int]:
    return [int(np.count_nonzero(getattr(graph, f"{name}_mask"))) for name in MASKS]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 60), min_size=3, max_size=3).filter(any), st.floats(0, 1), st.integers(0, 9))
def test_kinds_shrink_in_proportion_to_a_part_of_what_they_were(counts: list[int], part: float, seed: int) -> None:
    graph = graph_with(*counts)
    wanted = max(1, round(part * sum(counts)))
    found = with_fewer_labels(graph, wanted / 200, seed)
    kept = sizes(found)
    for count, had in zip(kept, counts, strict=True):
        exact = had * wanted / sum(counts)
        assert min(had, 1) <= count <= had
        assert abs(count - exact) < 1 or (count == 1 and exact < 1)
    assert sum(kept) == wanted or (min(count for count in kept if count) == 1 and sum(kept) <= wanted + 2)
    for name in MASKS:
        assert not (getattr(found, f"{name}_mask") & ~getattr(graph, f"{name}_mask")).any()
    assert with_fewer_labels(graph, wanted / 200, seed).notes == found.notes
    assert graph_digest(with_fewer_labels(graph, wanted / 200, seed)) == graph_digest(found)


def test_all_of_them_are_those_that_there_were() -> None:
    graph = graph_with(120, 40, 40)
    assert graph_digest(with_fewer_labels(graph, 1.0, 0)) == graph_digest(graph)


def test_seeds_and_shares() -> None:
    graph = graph_with(120, 40, 40)
    few, more = (with_fewer_labels(graph, share, 3) for share in (0.1, 0.3))
    assert (sizes(few), sizes(more)) == ([12, 4, 4], [36, 12, 12])
    for name in MASKS:
        assert not (getattr(few, f"{name}_mask") & ~getattr(more, f"{name}_mask")).any()
    assert graph_digest(few) != graph_digest(with_fewer_labels(graph, 0.1, 4))
    assert few.labels is graph.labels
    no_test = replace(graph, test_mask=None)
    assert with_fewer_labels(no_test, 0.1, 3).test_mask is None


def test_more_than_there_are_and_none_at_all_are_refused() -> None:
    with pytest.raises(GraphError, match=r"graph\.labelled: got 0\.5.*has 20 labelled ones, expected at most 0\.1"):
        with_fewer_labels(graph_with(10, 5, 5), 0.5, 0)
    with pytest.raises(GraphError, match=r"graph\.labelled: got 0\.5.*no labelled vertices"):
        with_fewer_labels(replace(graph_with(1, 1, 1), train_mask=None, validation_mask=None, test_mask=None), 0.5, 0)
    for share in (0, -0.1, 1.5, "few", True):
        with pytest.raises(ConfigError, match=r"graph\.labelled: got"):
            load_experiment("vanilla", {"graph.labelled": share})
    with pytest.raises(ConfigError, match=r"graph\.labelled: got 0\.5 with graph\.source = 'stats:"):
        load_experiment("vanilla", {"graph.labelled": 0.5, "graph.source": "stats:x.toml"})


@pytest.mark.parametrize("kind", ["communities", "rmat", "file", "folder", "splits", "random classes"])
def test_graphs_of_every_source(kind: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"labelled": 0.1}
    source = f"synthetic:{kind}"
    if kind in ("communities", "rmat", "splits"):
        options |= {"vertices": 400, "edges": 1000, "classes": 4}
        if kind == "splits":
            source = "synthetic:communities"
            options["splits"] = {"train": 0.5, "validation": 0.25, "test": 0.25, "seed": 1}
    elif kind == "folder":
        save_graph(load_graph("synthetic:rmat", options={"vertices": 400, "edges": 1000}), tmp_path / "kept")
        source = str(tmp_path / "kept")
    else:
        pairs = np.stack((np.arange(400), (np.arange(400) + 1) % 400), axis=1)
        np.save(tmp_path / "edges.npy", pairs)
        source = str(tmp_path / "edges.npy")
        if kind == "file":
            np.save(tmp_path / "y.npy", np.arange(400) % 4)
            options["labels"] = str(tmp_path / "y.npy")
        else:
            options["classes"] = 4
    expected = [20, 10, 10] if kind == "splits" else [24, 8, 8]
    graph = load_graph(source, options=options, seed=5)
    assert sizes(graph) == expected
    assert graph_digest(graph) == graph_digest(load_graph(source, options=options, seed=5))
    assert graph_digest(graph) != graph_digest(load_graph(source, options=options, seed=6))
    assert any("40 of 400 vertices" in note for note in graph.notes)


def test_results_say_so(tmp_path: Path) -> None:
    settings = {"graph.vertices": 400, "graph.edges": 1000, "graph.labelled": 0.05}
    for turn in range(2):  # newly partitioned, then from the cache
        prepared = prepare(load_experiment("vanilla", settings, ranks=2), cache=tmp_path)
        assert prepared.stats.notes[0].startswith("labelled: 20 of 400 vertices (12 train, 4 validation, 4 test)"), turn
    whole = prepare(load_experiment("vanilla", {**settings, "graph.labelled": 1.0}, ranks=2), cache=tmp_path)
    assert "400 of 400" in whole.stats.notes[0]


def test_a_saved_graph_keeps_the_note(tmp_path: Path) -> None:
    graph = with_fewer_labels(graph_with(120, 40, 40), 0.1, 0)
    save_graph(graph, tmp_path / "kept")
    assert open_graph(tmp_path / "kept").result_notes == graph.result_notes != ()
