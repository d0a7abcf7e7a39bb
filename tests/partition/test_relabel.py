"""Contiguous ids: ranges, inverses, whole rows in order, exact halos, every edge once (DistDGL 13.1, 13.2)."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from partition_graphs import graphs, random_graph

from simgnn.errors import ConfigError, GraphError
from simgnn.graph.graph import Graph
from simgnn.partition.local.contiguous_ids import IdMaps, relabelled_parts
from simgnn.partition.local.edge_cut import build_local_graphs
from simgnn.partition.partition import Partition


def _owner(vertices: int, parts: int, seed: int) -> NDArray[np.int32]:
    return np.random.default_rng(seed).integers(0, parts, vertices).astype(np.int32)


@settings(max_examples=150, deadline=None)
@given(graphs(), st.integers(1, 6), st.integers(0, 5))
def test_ids_are_ranges_and_inverses(graph: Graph, parts: int, seed: int) -> None:
    owner = _owner(graph.vertices, parts, seed)
    maps, gids = IdMaps.of(owner, parts), np.arange(graph.vertices)
    assert maps.node_map.dtype == maps.new2old.dtype == np.int64
    np.testing.assert_array_equal(maps.old2new[maps.new2old], gids)
    np.testing.assert_array_equal(maps.new2old[maps.old2new], gids)
    assert (maps.node_map[0], maps.node_map[-1]) == (0, graph.vertices)
    np.testing.assert_array_equal(np.diff(maps.node_map), np.bincount(owner, minlength=parts))
    for part in range(parts):
        np.testing.assert_array_equal(maps.core(part), np.flatnonzero(owner == part))
        mine = np.arange(maps.node_map[part], maps.node_map[part + 1])
        assert (maps.part_of(mine) == part).all()


@settings(max_examples=150, deadline=None)
@given(graphs(), st.integers(1, 6), st.integers(0, 5))
def test_partitions_hold_whole_rows_and_exact_halos(graph: Graph, parts: int, seed: int) -> None:
    owner = _owner(graph.vertices, parts, seed)
    maps, found = IdMaps.of(owner, parts), []
    degrees = graph.csr.degrees()
    for part in relabelled_parts(graph.csr, owner, maps):
        core, rows = maps.core(part.part), []
        assert part.core == len(core)
        assert part.indices.dtype == np.int32
        assert part.indptr[-1] == degrees[core].sum()
        for row, vertex in enumerate(core):
            sources = graph.csr.indices[graph.csr.indptr[vertex] : graph.csr.indptr[vertex + 1]]
            # the order too: which neighbours a sampler draws depends on it
            np.testing.assert_array_equal(part.oid[part.indices[part.indptr[row] : part.indptr[row + 1]]], sources)
            rows += sources.tolist()
            found += [(int(vertex), source) for source in sources.tolist()]
        np.testing.assert_array_equal(part.oid[part.core :], maps.new2old[part.halo_gid])
        assert part.oid[part.core :].tolist() == sorted(set(rows) - set(core.tolist()), key=lambda v: maps.old2new[v])
        lids = np.arange(len(part.oid))
        np.testing.assert_array_equal(part.gid_of(lids), maps.old2new[part.oid])
    assert len(found) == len(set(found)) == graph.edges


def test_halos_are_those_of_local_graphs() -> None:
    graph, owner = random_graph(120, 500, seed=3), _owner(120, 4, 1)
    maps = IdMaps.of(owner, 4)
    local = build_local_graphs(graph.csr, Partition("edge-cut", 4, owner), "none")
    for part, one in zip(relabelled_parts(graph.csr, owner, maps), local, strict=True):
        np.testing.assert_array_equal(one.owned, maps.core(part.part))
        np.testing.assert_array_equal(one.halo, maps.new2old[part.halo_gid])


def test_ids_out_of_range_are_refused() -> None:
    graph, owner = random_graph(20, 15, seed=1), _owner(20, 3, 0)
    maps = IdMaps.of(owner, 3)
    with pytest.raises(ConfigError, match=r"expected owners 0\.\.1, got 0\.\.2"):
        IdMaps.of(owner, 2)
    for wrong in ([0, 20], [-1, 3]):
        with pytest.raises(GraphError, match=r"gids: expected 0\.\.19, got"):
            maps.part_of(np.array(wrong))
    part = next(iter(relabelled_parts(graph.csr, owner, maps)))
    with pytest.raises(GraphError, match=r"lids of partition 0: expected 0\.\."):
        part.gid_of(np.array([len(part.oid)]))
