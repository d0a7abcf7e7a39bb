"""Edge lists as NumPy arrays: in memory and sorted through files, the same graph."""

import numpy as np
import pytest

from simgnn.errors import GraphError
from simgnn.graph import store
from simgnn.graph.load import load_graph
from simgnn.graph.readers import edge_array
from simgnn.graph.store import graph_digest


def load(path, **options):
    return load_graph(str(path), options=options)


@pytest.fixture
def pairs():
    return np.random.default_rng(0).integers(0, 700, (6000, 2))


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("symmetrise", [True, False])
def test_both_ways_give_the_graph_of_the_list(tmp_path, monkeypatch, pairs, dtype, symmetrise):
    np.save(tmp_path / "some.npy", pairs.astype(dtype))
    whole = load(tmp_path / "some.npy", symmetrise=symmetrise)
    dense = np.zeros((whole.vertices, whole.vertices), dtype=bool)
    dense[pairs[:, 1], pairs[:, 0]] = True
    if symmetrise:
        dense |= dense.T
    np.fill_diagonal(dense, False)
    np.testing.assert_array_equal(whole.csr.indices, np.nonzero(dense)[1])
    np.testing.assert_array_equal(whole.csr.degrees(), dense.sum(axis=1))

    monkeypatch.setenv("SIMGNN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(edge_array, "MEMORY_EDGES", 100)
    monkeypatch.setattr(edge_array, "CHUNK_EDGES", 512)
    monkeypatch.setattr(store, "BUCKET_EDGES", 900)
    streamed = load(tmp_path / "some.npy", symmetrise=symmetrise)
    assert isinstance(streamed.csr.indices, np.memmap)
    assert graph_digest(streamed) == graph_digest(whole)
    assert (streamed.facts(), streamed.symmetric) == (whole.facts(), symmetrise)
    loops = np.count_nonzero(pairs[:, 0] == pairs[:, 1])
    assert f"6,000 edges listed: {loops} self loops dropped, {whole.edges:,} different ones" in streamed.notes[0]
    made = list((tmp_path / "cache" / "graphs").iterdir())
    before = made[0].stat().st_mtime_ns
    assert graph_digest(load(tmp_path / "some.npy", symmetrise=symmetrise)) == graph_digest(whole)
    assert [path.stat().st_mtime_ns for path in (tmp_path / "cache" / "graphs").iterdir()] == [before]


def test_another_list_of_the_same_name_is_another_graph(tmp_path, monkeypatch, pairs):
    monkeypatch.setenv("SIMGNN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(edge_array, "MEMORY_EDGES", 100)
    digests = set()
    for part in (pairs, pairs[:-50]):
        np.save(tmp_path / "some.npy", part)
        digests |= {graph_digest(load(tmp_path / "some.npy")), graph_digest(load(tmp_path / "some.npy", vertices=900))}
    assert len(digests) == 4


@pytest.mark.parametrize("limit", [100, 10_000])
def test_bad_lists_are_refused_and_nothing_is_kept(tmp_path, monkeypatch, pairs, limit):
    monkeypatch.setenv("SIMGNN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(edge_array, "MEMORY_EDGES", limit)
    cases = [
        (pairs.astype(float), {}, r"int32 or int64 of shape \[edges, 2\].*got float64 of shape \[6000, 2\]"),
        (pairs.T, {}, r"got int64 of shape \[2, 6000\]"),
        (pairs - 1, {}, "0 or more; got -1"),
        (pairs, {"vertices": 99}, r"got the vertex id 699, expected 0\.\.98 \(graph\.vertices = 99\)"),
        (pairs + 10_000_000, {}, "renumber the vertices"),
    ]
    for array, options, told in cases:
        np.save(tmp_path / "bad.npy", array)
        with pytest.raises(GraphError, match=told) as caught:
            load(tmp_path / "bad.npy", **options)
        assert "bad.npy" in str(caught.value)
    whole = (tmp_path / "bad.npy").read_bytes()
    for kept in (0, 60, len(whole) - 4):
        (tmp_path / "bad.npy").write_bytes(whole[:kept])
        with pytest.raises(GraphError, match=r"bad\.npy: not a readable \.npy file"):
            load(tmp_path / "bad.npy")
    assert not (tmp_path / "cache").exists() or list((tmp_path / "cache" / "graphs").iterdir()) == []


def test_an_empty_list_needs_the_number_of_vertices(tmp_path):
    np.save(tmp_path / "none.npy", np.empty((0, 2), np.int64))
    assert load(tmp_path / "none.npy", vertices=3).vertices == 3
    with pytest.raises(GraphError, match="at least 1 vertex"):
        load(tmp_path / "none.npy")
