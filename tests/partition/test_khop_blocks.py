"""Blocks around labelled vertices (ByteGNN): a slow reading, bounds, ties, hosts, streamed edges, refusals."""

from dataclasses import replace
from fractions import Fraction
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from khop_reference import literal_blocks, literal_parts
from partition_graphs import graph_of, graphs, random_graph
from pydantic import ValidationError

from simgnn.errors import ConfigError
from simgnn.experiment.load import load_experiment
from simgnn.graph.graph import MASKS, Graph
from simgnn.graph.labelled import with_fewer_labels
from simgnn.graph.store import open_graph, save_graph
from simgnn.partition.algorithms import khop_blocks as algorithm
from simgnn.partition.algorithms.khop_blocks import khop_blocks
from simgnn.partition.partition import Partition, partitioned
from simgnn.partition.partitioners.khop_blocks import KhopBlocks
from simgnn.partition.statistics.partition_stats import vertex_types
from simgnn.partition.store import partition_artifact
from simgnn.planner.epoch_work import with_weights
from simgnn.policy import Assignment, Partitioner
from simgnn.sampling.draw.sampler import Sampler

ONE_HOST_OF = {ranks: np.zeros(ranks, np.int64) for ranks in range(1, 17)}


def labelled(graph: Graph) -> np.ndarray:
    return vertex_types(graph) < len(MASKS)


def counts(graph: Graph, partition: Partition) -> np.ndarray:
    """Labelled vertices by part and kind, int64 [P, 3]."""
    found = np.zeros((partition.ranks, len(MASKS)), np.int64)
    for kind, name in enumerate(MASKS):
        np.add.at(found[:, kind], partition.owner[getattr(graph, f"{name}_mask")], 1)
    return found


def largest_allowed(graph: Graph, ranks: int, slack: float = 0.05) -> list[int]:
    totals = [int(getattr(graph, f"{name}_mask").sum()) for name in MASKS]
    return [max(ceil(Fraction(str(1 + slack)) * total / ranks), 1) for total in totals]


def with_labels(graph: Graph, seed: int, share: float) -> Graph:
    """The graph with about this share of its vertices labelled, of a random kind each."""
    random = np.random.default_rng(seed)
    kind = np.where(random.random(graph.vertices) < share, random.integers(0, 3, graph.vertices), 3)
    masks: dict[str, Any] = {f"{name}_mask": kind == place for place, name in enumerate(MASKS)}
    return replace(graph, **masks)


@settings(max_examples=150, deadline=None)
@given(graphs(), st.integers(0, 99), st.sampled_from([0.05, 0.2, 0.6]), st.integers(1, 4))
def test_a_block_is_the_nearest_labelled_vertex_and_the_lowest_of_several(
    graph: Graph, seed: int, share: float, hops: int
) -> None:
    graph = with_labels(graph, seed, share)
    assert khop_blocks(graph.csr, labelled(graph), hops).tolist() == literal_blocks(graph, hops)


WEIGHTS = st.sampled_from([(1, 1, 1), (3, 1, 0), (0, 0, 1)])
SLACKS = st.sampled_from([None, Fraction(0), Fraction(1, 2)])


@settings(max_examples=150, deadline=None)
@given(graphs(), st.integers(0, 99), st.integers(1, 5), WEIGHTS, SLACKS, SLACKS, st.sampled_from(["id", "size"]))
def test_parts_are_those_of_the_slow_reading(
    graph: Graph, seed: int, ranks: int, weights: Any, labels: Any, vertices: Any, order: Any
) -> None:
    graph = with_labels(graph, seed, 0.4)
    ranks = min(ranks, graph.vertices)
    if not any(weight and getattr(graph, f"{name}_mask").any() for weight, name in zip(weights, MASKS, strict=True)):
        return
    policy = KhopBlocks(
        hops=2, weights=weights, label_slack=_slack(labels), vertex_slack=_slack(vertices), order=order, across="ranks"
    )
    found = partitioned(policy, graph, ONE_HOST_OF[ranks], seed)
    block = literal_blocks(graph, 2)
    centres = np.flatnonzero(labelled(graph)).tolist()
    if order == "size":
        centres.sort(key=lambda centre: (-block.count(centre), centre))
    everything = range(graph.vertices)
    part, forced = literal_parts(graph, block, centres, ranks, weights, labels, vertices, everything)
    assert found.owner.tolist() == [part[v] for v in everything]
    assert found.counted["forced_blocks"] == forced
    assert found.counted["blocks"] == len(centres)
    assert found.counted["vertices_in_no_block"] == block.count(-1)


def _slack(share: Fraction | None) -> Any:
    return "none" if share is None else float(share)


def test_ties_go_to_the_larger_balance_then_the_smaller_part_then_the_first() -> None:
    # five labelled vertices without edges: every score is 0, so that balance decides, then size, then number
    graph = _labelled_as(graph_of(np.empty((0, 2), np.int64), 5), train=[0, 1, 2, 3, 4])
    found = partitioned(KhopBlocks(hops=1, order="id", label_slack="none"), graph, ONE_HOST_OF[2], 0)
    assert found.owner.tolist() == [0, 1, 0, 1, 0]
    # 0 has a block of two (vertex 3); 1 and 2 are of other kinds, and with no weight they change no balance
    pair = _labelled_as(graph_of(np.array([[0, 3]]), 4), train=[0], validation=[1, 2])
    alike = KhopBlocks(hops=1, order="id", weights=(1, 0, 0), label_slack="none")
    assert partitioned(alike, pair, ONE_HOST_OF[2], 0).owner.tolist() == [0, 1, 1, 0]
    # equal hops: the vertex between two labelled ones belongs to the lower; order by size puts its block first
    path = _labelled_as(graph_of(np.array([[1, 2], [2, 0]]), 3), train=[0, 1])
    assert khop_blocks(path.csr, labelled(path), 2).tolist() == [0, 1, 0]
    # equal sizes of vertices in no block: the first part
    lonely = _labelled_as(graph_of(np.empty((0, 2), np.int64), 6), train=[0, 1])
    assert partitioned(KhopBlocks(hops=1, order="id"), lonely, ONE_HOST_OF[2], 0).owner.tolist() == [0, 1, 0, 1, 0, 1]


def _labelled_as(graph: Graph, **kinds: list[int]) -> Graph:
    masks: dict[str, Any] = {f"{name}_mask": np.isin(np.arange(graph.vertices), kinds.get(name, [])) for name in MASKS}
    return replace(graph, **masks)


def test_blocks_follow_in_edges_the_direction_of_sampling() -> None:
    graph = _labelled_as(graph_of(np.array([[1, 0], [2, 1], [0, 3]]), 4, symmetric=False), train=[0])
    assert khop_blocks(graph.csr, labelled(graph), 1).tolist() == [0, 0, -1, -1]
    assert khop_blocks(graph.csr, labelled(graph), 2).tolist() == [0, 0, 0, -1]
    assert khop_blocks(graph.csr, labelled(graph), 50).tolist() == [0, 0, 0, -1]


@settings(max_examples=50, deadline=None)
@given(graphs(), st.integers(0, 99), st.integers(1, 3))
def test_samples_contain_vertices_of_blocks_alone_and_all_of_them(graph: Graph, seed: int, hops: int) -> None:
    graph = with_labels(graph, seed, 0.2)
    seeds = np.flatnonzero(labelled(graph))
    if not len(seeds):
        return
    sampled = Sampler(graph.csr, [-1] * hops).sample(seeds, 0).vertices
    assert sorted(sampled.tolist()) == np.flatnonzero(khop_blocks(graph.csr, labelled(graph), hops) >= 0).tolist()


@pytest.mark.parametrize("share", [1.0, 0.1, 0.02])
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_labels_are_within_the_slack_and_no_block_is_forced(share: float, ranks: int) -> None:
    graph = random_graph(1500, 6000, seed=5)
    graph = with_fewer_labels(graph, share * _labelled_share(graph), 1)
    for order in ("shuffle", "size", "id"):
        found = partitioned(KhopBlocks(hops=2, order=order), graph, ONE_HOST_OF[ranks], 3)
        assert (counts(graph, found) <= largest_allowed(graph, ranks)).all()
        assert found.counted["forced_blocks"] == 0
        assert found.notes == ()
        assert found.rows().sum() == graph.vertices
        assert ranks > 1 or not found.owner.any()


def _labelled_share(graph: Graph) -> float:
    return float(labelled(graph).mean())


def test_a_vertex_slack_forces_blocks_and_says_so() -> None:
    star = np.stack((np.arange(1, 31), np.zeros(30, np.int64)), axis=1)
    graph = _labelled_as(graph_of(star, 40), train=[0], test=[31, 32])
    found = partitioned(KhopBlocks(hops=1, vertex_slack=0.1), graph, ONE_HOST_OF[2], 0)
    assert found.counted["forced_blocks"] == 1, "a block of 31 of 33 vertices fits into no half"
    assert "1 of 3 blocks were forced" in found.notes[0]
    assert partitioned(KhopBlocks(hops=1), graph, ONE_HOST_OF[2], 0).notes == ()


def test_fewer_blocks_than_parts_leave_empty_parts_and_say_so() -> None:
    ring = graph_of(np.stack((np.arange(6), (np.arange(6) + 1) % 6), axis=1), 6)
    found = partitioned(KhopBlocks(hops=3), _labelled_as(ring, train=[0]), ONE_HOST_OF[3], 0)
    assert found.rows().tolist() == [6, 0, 0]
    assert "2 of 3 parts have no vertices" in found.notes[0]


def test_weights_are_relative_and_only_of_kinds_that_there_are() -> None:
    graph = with_labels(random_graph(400, 1600), 3, 0.3)
    no_test = replace(graph, test_mask=None)
    for one, other, of in (
        ((1, 1, 1), (5.0, 5.0, 5.0), graph),
        ((1, 1, 7), (1, 1, 0), no_test),
        ((1, 1, 7), (3, 3, 3), no_test),
    ):
        parts = [partitioned(KhopBlocks(hops=2, weights=w), of, ONE_HOST_OF[4], 0).owner for w in (one, other)]
        assert np.array_equal(*parts)
    by_number = tuple(int(getattr(graph, f"{name}_mask").sum()) for name in MASKS)
    parts = [
        partitioned(KhopBlocks(hops=2, weights=w), graph, ONE_HOST_OF[4], 0).owner for w in ("proportional", by_number)
    ]
    assert np.array_equal(*parts)


def test_hosts_share_blocks_before_their_ranks_do() -> None:
    graph = with_labels(random_graph(1000, 4000), 4, 0.2)
    hosts = np.array([0, 0, 1, 1])
    policy = KhopBlocks(hops=2, order="id")
    nested = partitioned(policy, graph, hosts, 7)
    by_host = partitioned(policy, graph, np.array([0, 1]), 7).owner
    assert np.array_equal(hosts[nested.owner], by_host), "hosts get what they would get with a rank each"
    block = khop_blocks(graph.csr, labelled(graph), 2)
    for host in (0, 1):
        mine = by_host == host
        of_host = replace(graph, **{f"{name}_mask": getattr(graph, f"{name}_mask") & mine for name in MASKS})
        assert (counts(of_host, nested)[2 * host : 2 * host + 2] <= largest_allowed(of_host, 2)).all()
        # the host's blocks among its ranks, by the edges between them alone
        inside = np.flatnonzero(mine).tolist()
        order = np.flatnonzero(labelled(of_host)).tolist()
        part, forced = literal_parts(graph, block, order, 2, (1, 1, 1), Fraction(1, 20), None, inside)
        assert [int(nested.owner[v]) - 2 * host for v in inside] == [part[v] for v in inside]
        assert not forced
    flat = partitioned(KhopBlocks(hops=2, order="id", across="ranks"), graph, hosts, 7)
    assert np.array_equal(flat.owner, partitioned(policy, graph, np.arange(4), 7).owner)


def test_pieces_and_files_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = with_labels(random_graph(500, 3000), 2, 0.1)
    hosts = np.array([0, 0, 1, 1, 2, 2])
    whole = partitioned(KhopBlocks(hops=3), graph, hosts, 1)
    save_graph(graph, tmp_path / "kept")
    spill = tmp_path / "spill"
    spill.mkdir()
    for chunk in (1, 7, 1000):
        monkeypatch.setattr(algorithm, "CHUNK_EDGES", chunk)
        assert partitioned(KhopBlocks(hops=3), graph, hosts, 1).digest == whole.digest
        mapped = partitioned(KhopBlocks(hops=3), open_graph(tmp_path / "kept"), hosts, 1, spill)
        assert mapped.digest == whole.digest
    assert list(spill.iterdir()) == []


def test_the_seed_decides_the_order_alone() -> None:
    graph = with_labels(random_graph(400, 1600), 3, 0.3)
    digests = [partitioned(KhopBlocks(hops=2), graph, ONE_HOST_OF[4], seed).digest for seed in (0, 0, 1)]
    assert digests[0] == digests[1] != digests[2]
    by_id = [partitioned(KhopBlocks(hops=2, order="id"), graph, ONE_HOST_OF[4], seed).digest for seed in (0, 1)]
    assert by_id[0] == by_id[1]


def test_other_hops_and_masks_are_other_keys_of_the_cache(tmp_path: Path) -> None:
    graph = with_labels(random_graph(300, 900), 3, 0.3)
    hosts = np.arange(2)
    first = partition_artifact(graph, KhopBlocks(hops=2), hosts, 0, tmp_path)
    again = partition_artifact(graph, KhopBlocks(hops=2), hosts, 0, tmp_path)
    assert (first.made, again.made) == (True, False)
    assert again.counted == first.counted
    assert again.counted["blocks"] == int(labelled(graph).sum())
    for other in (
        partition_artifact(graph, KhopBlocks(hops=1), hosts, 0, tmp_path),
        partition_artifact(with_labels(graph, 4, 0.3), KhopBlocks(hops=2), hosts, 0, tmp_path),
    ):
        assert other.made
        assert other.path != first.path


def test_hops_are_the_layers_of_the_model() -> None:
    graph = random_graph(100, 300)
    experiment = load_experiment("vanilla", {"partition.kind": "khop-blocks", "model.layers": 3})
    assert with_weights(experiment, graph.facts(), lambda _: None).partition == KhopBlocks(hops=3)
    assert KhopBlocks(hops=5).for_layers(3).hops == 5
    for system, layers in (("vanilla", 2), ("distdgl", 3)):
        with pytest.raises(
            ConfigError, match=rf"partition\.hops: got 1 with model\.layers = {layers}.*would be sampled"
        ):
            load_experiment(system, {"partition.kind": "khop-blocks", "partition.hops": 1})


def test_graphs_without_labels_are_refused() -> None:
    bare = replace(random_graph(30, 60), train_mask=None, validation_mask=None, test_mask=None)
    with pytest.raises(ConfigError, match=r"partition\.kind: got 'khop-blocks'.*no labelled vertices"):
        partitioned(KhopBlocks(hops=2), bare, ONE_HOST_OF[2], 0)
    only_test = _labelled_as(random_graph(30, 60), test=[1, 2])
    with pytest.raises(ConfigError, match=r"partition\.weights: got \[1.0, 1.0, 0.0\].*2 test vertices"):
        partitioned(KhopBlocks(hops=2, weights=(1, 1, 0)), only_test, ONE_HOST_OF[2], 0)
    with pytest.raises(ConfigError, match=r"partition\.hops: got 'auto'"):
        partitioned(KhopBlocks(), random_graph(30, 60), ONE_HOST_OF[2], 0)


@pytest.mark.parametrize(
    "options",
    [
        {"weights": (1, -1, 1)},
        {"weights": (0, 0, 0)},
        {"weights": (1, 1)},
        {"weights": (1, 1, float("inf"))},
        {"weights": (True, 1, 1)},
        {"weights": "equal"},
        {"hops": 0},
        {"hops": 1.5},
        {"hops": True},
        {"label_slack": -0.1},
        {"vertex_slack": float("nan")},
        {"order": "random"},
    ],
    ids=str,
)
def test_options_that_mean_nothing_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(options))):
        KhopBlocks(**options)


def test_what_a_policy_counts_must_be_whole_numbers_and_its_notes_texts() -> None:
    graph = random_graph(20, 40)
    for told, key in (({"counted": {"half": 0.5}}, "counted"), ({"notes": "one text"}, "notes")):
        with pytest.raises(ConfigError, match=rf"Counting\.divide returned {key}: got"):
            partitioned(Counting(told=told), graph, ONE_HOST_OF[2], 0)
    kept = partitioned(Counting(told={"counted": {"rows": np.int64(3)}, "notes": ["a note"]}), graph, ONE_HOST_OF[2], 0)
    assert (kept.counted, kept.notes) == ({"rows": 3}, ("a note",))
    assert type(kept.counted["rows"]) is int


class Counting(Partitioner):
    """Gives all vertices to rank 0 and returns ``told`` beside them."""

    told: dict[str, Any]

    def divide(self, graph: Graph, hosts: Any, seed: int, spill: Path | None) -> Assignment:
        return Assignment(np.zeros(graph.vertices, np.int32), **self.told)
