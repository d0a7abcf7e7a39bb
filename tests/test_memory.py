"""Memory that a process may take, and checks before much is taken."""

import resource
from pathlib import Path

import pytest

from simgnn import memory
from simgnn.errors import ConfigError, GraphError
from simgnn.experiment.load import load_experiment
from simgnn.graph.load import load_graph
from simgnn.partition.algorithms.metis import metis_owner
from simgnn.planner.prepare import prepare

NONE = Path("/nonexistent")


def group(folder: Path, limit: str, usage: str, version: int, droppable: int = 0) -> None:
    names = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))[version == 1]
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in zip(names, (limit, usage), strict=True):
        (folder / name).write_text(text + "\n")
    (folder / "memory.stat").write_text(f"cache 7\ninactive_file {droppable}\n")


def test_the_tightest_group_counts_and_files_it_can_drop_are_free(tmp_path: Path) -> None:
    (tmp_path / "self").write_text("0::/batch/job\n")
    group(tmp_path / "v2" / "batch", "3000", "1000", 2, droppable=500)
    group(tmp_path / "v2" / "batch" / "job", "max", "900", 2)
    assert memory.available_bytes(tmp_path / "v2", tmp_path / "self") == 2500
    group(tmp_path / "v2" / "batch" / "job", "1000", "900", 2)
    assert memory.available_bytes(tmp_path / "v2", tmp_path / "self") == 100
    (tmp_path / "self").write_text("5:cpu:/\n4:memory,cpuset:/job\n")
    group(tmp_path / "v1" / "memory" / "job", "5000", "1000", 1)
    assert memory.available_bytes(tmp_path / "v1", tmp_path / "self") == 4000


def test_the_limit_of_the_process_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    free = memory.available_bytes(NONE, NONE)
    assert free > 2**20
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1, 1))
    assert memory.available_bytes(NONE, NONE) == 0


def test_a_refusal_says_how_much_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: 2**30)
    memory.check_memory(2**30, "reading", "stop")
    with pytest.raises(GraphError, match=r"^reading takes about 2\.5 GiB of memory, but 1\.0 GiB are free here: stop$"):
        memory.check_memory(2.5 * 2**30, "reading", "stop")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"vertices": 10**9, "edges": 10**6}, r"^graph\.vertices, graph\.edges: generating 1,000,000,000 vertices"),
        ({"vertices": 10**11}, r"^graph\.vertices, graph\.edges: generating"),
        ({"vertices": 10**6, "edges": 10**6, "feature_width": 2**20}, r"feature_width$"),
    ],
)
def test_generating_is_refused_before_it_begins(options: dict[str, int], told: str, tmp_path: Path) -> None:
    with pytest.raises(GraphError, match=told):
        load_graph("synthetic:communities", options=options)


def test_reading_is_refused_before_it_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "g.csv").write_text("0,1\n1,2\n")
    with pytest.raises(GraphError, match=r"g\.csv: sorting 2 edges of 1,000,000,000,000 vertices takes about"):
        load_graph("g.csv", base=tmp_path, options={"vertices": 10**12})
    with pytest.raises(GraphError, match=r"^graph\.stand_in_features: 1,000,000 numbers"):
        load_graph("g.csv", base=tmp_path, options={"vertices": 10**6, "stand_in_features": 10**6})


def test_partitions_and_batches_are_refused_before_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    small = ["graph.vertices=400", "graph.edges=900", "graph.feature_width=4", "graph.classes=3"]
    many = ["train.epochs=10000000", "batching.batch_size=1", "cluster.hosts=2"]
    with pytest.raises(ConfigError, match=r"^batching: drawing batches of 1 seeds .*lower batching\.batch_size"):
        prepare(load_experiment("distdgl", [*small, *many], ranks=8))
    graph = load_graph("synthetic:communities", options={"vertices": 500, "edges": 2000})
    monkeypatch.setattr(memory, "available_bytes", lambda: 2**16)
    with pytest.raises(ConfigError, match=r"^partition\.kind = 'metis': dividing 3,\d+ edges"):
        metis_owner(graph, 2, 0, None, 1.03)
