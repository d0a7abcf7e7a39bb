"""Mini-batch training on ranks is what one process does on the union of the same batches: all layers, and edges, which
are hosts that serve only, hosts that share nothing, one host, seeds without neighbours, fewer training vertices
than ranks (docs/systems/mini-batches.md)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from executor.state.plan import RunPlan
from simgnn.graph.csr import CSR
from simgnn.graph.graph import Graph
from simgnn.program.calendar import EVALUATE
from simgnn.program.kinds import OpKind
from simgnn.record.result import read_result
from simgnn.record.rundir import RunDirectory
from simgnn.sampling.batches.plan import SamplingPlan
from simgnn.sampling.draw.sampler import Sampler
from tests.executor.harness import run_ranks
from tests.executor.minibatch.batch_checks import assert_simulated_alike, assert_trained_as_one_process
from tests.executor.minibatch.batch_runs import EPOCHS, prepared_batches, sampling_of
from tests.executor.runs import small_graph, train_in_process

pytest.importorskip("dgl", reason="the reference is made of DGL's layers (Python below 3.12)")

RANKS = 4
ALONE = ["schedule.lanes=2", "batching.structure=replicated"]
TOGETHER = ["batching.batch_size=1000", "batching.global_batch=18"]
"""Not divisible by four ranks: the first two have five seeds, the others four."""
LAYERS: dict[str, tuple[str, list[str]]] = {
    "sage": ("rapidgnn", ["placement.hot_rows=7", "train.eval_every=2", *TOGETHER]),
    "gcn": ("distdgl", ["model.kind=gcn", "batching.split=local", "train.gradient_mean=ranks"]),
    "sage-full-batches": ("rapidgnn", ["batching.last=drop", "placement.hot_rows=3"]),
    "gcn-transform-first": ("rapidgnn", ["model.kind=gcn", "model.order=transform-first", "placement.pull=delta"]),
    "sage-aggregate-first": ("distdgl", ["model.order=aggregate-first", *ALONE, "batching.split=local"]),
    "gat": ("rapidgnn", ["model.kind=gat", "model.heads=2", "batching.split=local", "placement.hot_rows=4"]),
    "gin": (
        "distdgl",
        ["model.kind=gin", "model.layers=3", "batching.fanouts=[3,-1,2]", "train.optimizer=sgd", *TOGETHER],
    ),
    "multilabel": ("rapidgnn", ["model.kind=gcn", "train.eval_every=1"]),
}
"""Name -> system and what is set on top. ``local`` splits give ranks unequal numbers of batches."""
CLUSTERS = {1: (1, 1), 2: (2, 1), RANKS: (2, 2)}
"""Ranks -> hosts, ranks of each."""

VERTICES = 80
HALF = VERTICES // 2
"""Blocks of rows: ranks 0 and 1 own the first half."""
LONELY = (0, 1, HALF + 1)
"""Vertices without neighbours that are trained on."""
FIRST_HALF, FEW = tuple(range(HALF)), (0, 10, HALF + 1)
BLOCKS = "partition.kind=block-row"
OWN = (BLOCKS, "batching.split=local")
HOT = ("placement.hot_rows=5", "placement.pull=delta", "schedule.window=3")


@dataclass(frozen=True)
class Edge:
    """A run of four ranks on ``hosts``. ``apart``: the halves share no edge. ``trained``: the training vertices that
    there may be, of a third of all, ``LONELY`` and ``FEW`` (None: all of these)."""

    system: str
    settings: tuple[str, ...]
    hosts: int = 2
    apart: bool = False
    trained: tuple[int, ...] | None = None


EDGES = {
    "served only, planned": Edge("rapidgnn", (*OWN, *HOT), trained=FIRST_HALF),
    "served only, asked": Edge("distdgl", (*OWN, "schedule.window=3", "model.kind=gcn"), trained=FIRST_HALF),
    "nothing shared, planned": Edge("rapidgnn", (*OWN, *HOT), apart=True),
    "nothing shared, asked": Edge("distdgl", OWN, apart=True),
    "one host": Edge("rapidgnn", (*HOT, "model.kind=gat", "model.heads=2"), hosts=1),
    "few": Edge("rapidgnn", (BLOCKS, *HOT, "model.kind=gin"), trained=FEW),
}


def _graph(edge: Edge) -> Graph:
    graph, place = small_graph(VERTICES, seed=4), np.arange(VERTICES)
    targets, sources = np.repeat(place, graph.csr.degrees()), np.asarray(graph.csr.indices)
    kept = ~(np.isin(targets, LONELY) | np.isin(sources, LONELY))
    if edge.apart:
        kept &= (targets < HALF) == (sources < HALF)
    indptr = np.concatenate(([0], np.cumsum(np.bincount(targets[kept], minlength=VERTICES)))).astype(np.int64)
    assert graph.train_mask is not None
    train = graph.train_mask | np.isin(place, LONELY + FEW)
    if edge.trained is not None:
        train &= np.isin(place, edge.trained)
    assert graph.validation_mask is not None
    assert graph.test_mask is not None
    others = {"validation_mask": graph.validation_mask & ~train, "test_mask": graph.test_mask & ~train}
    return replace(graph, csr=CSR(indptr, sources[kept], VERTICES).check(), train_mask=train, **others)


@dataclass(frozen=True)
class Found:
    """A run that ranks have carried out. ``ranks``: what each got."""

    graph: Graph
    folder: Path
    ranks: list[Mapping[str, Any]]

    @property
    def sampling(self) -> SamplingPlan:
        """Who drew what."""
        return sampling_of(self.folder)

    @property
    def sent(self) -> np.ndarray:
        """Bytes by sender and receiver in all steps of the run, evaluations left out."""
        total, ops = np.zeros((RANKS, RANKS), np.int64), RunPlan.open(self.folder).program.ops
        for row in pq.read_table(RunDirectory(self.folder).traffic).to_pylist():
            total[row["source"], row["target"]] += row["bytes"] * (ops[row["op_id"]][0] != EVALUATE)
        return total

    @property
    def batches(self) -> list[dict[str, int]]:
        """A row a rank, epoch and step."""
        return pq.read_table(RunDirectory(self.folder).batches).to_pylist()

    def kinds(self) -> set[OpKind]:
        """Kinds of the ops that were planned for training."""
        return {op.kind for template, op in RunPlan.open(self.folder).program.ops if template != EVALUATE}


def _layer_graphs() -> dict[str, Graph]:
    return {name: small_graph(multilabel=name == "multilabel") for name in LAYERS}


def _prepared_layers(graphs: Mapping[str, Graph], folder: Path, ranks: int) -> dict[str, Path]:
    return {
        name: prepared_batches(graphs[name], folder / name, *CLUSTERS[ranks], system, *settings)
        for name, (system, settings) in LAYERS.items()
    }


def _carried_out(graphs: Mapping[str, Graph], folders: Mapping[str, Path], place: Path, ranks: int) -> dict[str, Found]:
    paths = [str(folder) for folder in folders.values()]
    results = run_ranks(ranks, train_in_process, place, paths, joined=False)
    return {name: Found(graphs[name], folders[name], [one[at] for one in results]) for at, name in enumerate(folders)}


@pytest.fixture(scope="module")
def edges(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Found]:
    """All edges, carried out by the same four processes one after the other."""
    place, folders = tmp_path_factory.mktemp("edges"), {}
    graphs = {name: _graph(edge) for name, edge in EDGES.items()}
    for name, edge in EDGES.items():
        folder, each = place / name.replace(" ", "-"), RANKS // edge.hosts
        folders[name] = prepared_batches(graphs[name], folder, edge.hosts, each, edge.system, *edge.settings)
    return _carried_out(graphs, folders, place / "ranks", RANKS)


def _check_layers(found: Mapping[str, Found], ranks: int) -> None:
    """Losses of three epochs and the parameters after them, with DGL's layers. Some last batches are short, and some
    ranks have none."""
    uneven = 0
    for name in LAYERS:
        sampling = assert_trained_as_one_process(found[name].graph, found[name].folder, found[name].ranks)
        uneven += len({sampling.batches(worker) for worker in range(ranks)}) > 1
        short = [len(mine) % sampling.size_of(rank) for rank, mine in enumerate(sampling.workers)]
        assert any(short), f"{name}: no batch is short"
    assert ranks == 1 or uneven, "no rank is without a batch that others have"


@pytest.mark.parametrize("ranks", [*(pytest.param(few, marks=pytest.mark.slow) for few in (1, 2)), RANKS])
def test_ranks_train_as_one_process_does(ranks: int, tmp_path: Path) -> None:
    graphs = _layer_graphs()
    folders = _prepared_layers(graphs, tmp_path, ranks)
    _check_layers(_carried_out(graphs, folders, tmp_path / "ranks", ranks), ranks)


@pytest.mark.slow
@pytest.mark.parametrize("name", EDGES)
def test_edges_train_as_one_process_does(edges: dict[str, Found], name: str) -> None:
    """And a simulation sends what the ranks sent, which may be nothing."""
    one = edges[name]
    sampling = assert_trained_as_one_process(one.graph, one.folder, one.ranks)
    assert_simulated_alike(one.folder)
    assert len(one.batches) == RANKS * EPOCHS * sampling.steps


@pytest.mark.slow
@pytest.mark.parametrize("name", EDGES)
def test_seeds_without_neighbours_stay_in_their_batches(edges: dict[str, Found], name: str) -> None:
    """They have a row of no sources at every hop; a batch of nothing else has no edge, and is trained."""
    sampling, batches, trained = edges[name].sampling, edges[name].batches, EDGES[name].trained
    sampler, seen, alone = Sampler(sampling.csr, sampling.fanouts), 0, 0
    for rank in range(RANKS):
        turn = sampling.epoch(rank, 0)
        for number in range(len(turn)):
            batch = turn.sample(number, sampler)
            (places,) = np.nonzero(np.isin(batch.seeds, LONELY))
            assert not any(np.diff(block.indptr)[places].any() for block in batch.blocks)
            seen += len(places)
            if len(places) == len(batch.seeds):
                alone += 1
                told = [row for row in batches if (row["rank"], row["epoch"], row["step"]) == (rank, 0, number)]
                assert [(row["rows"], row["edges"]) for row in told] == [(len(places), 0)]
    assert seen == len(LONELY if trained is None else set(LONELY) & set(trained))
    assert alone or trained is not FEW


@pytest.mark.slow
@pytest.mark.parametrize("name", ["served only, planned", "served only, asked"])
def test_a_host_without_training_vertices_serves(edges: dict[str, Found], name: str) -> None:
    one = edges[name]
    assert [len(mine) > 0 for mine in one.sampling.workers] == [True, True, False, False]
    assert one.sampling.steps > 1
    assert all(row["rows"] == row["seeds"] == row["edges"] == 0 for row in one.batches if row["rank"] >= 2)
    assert sum(row["rows_pulled"] for row in one.batches if row["rank"] < 2) > 0
    sent = one.sent
    assert sent[[2, 3], [0, 1]].all(), "each serves its peer"
    assert sent[:2, 2:].any() == (name == "served only, asked"), "only who asks sends ids"
    assert not sent[:2, :2].any()
    assert not sent[2:, 2:].any()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nothing shared, planned", "nothing shared, asked"])
def test_hosts_that_share_no_edge_send_nothing(edges: dict[str, Found], name: str) -> None:
    """Caches are empty, and exchanges that are known ahead are skipped by all; who asks tells that it wants nothing."""
    one = edges[name]
    kind = OpKind.EXCHANGE if name.endswith("planned") else OpKind.FETCH
    assert kind in one.kinds()
    assert not one.sent.any()
    assert all(row["rows_local"] == row["rows"] for row in one.batches)
    assert any(row["rows"] > row["seeds"] for row in one.batches if row["rank"] >= 2)
    control = np.array(read_result(RunDirectory(one.folder).result).control_bytes)
    metrics = 4 * 8 * one.sampling.steps
    assert ((control > metrics) if kind is OpKind.FETCH else (control == metrics)).all()


@pytest.mark.slow
def test_one_host_plans_no_call_for_rows(edges: dict[str, Found]) -> None:
    one = edges["one host"]
    assert not one.kinds() & {OpKind.EXCHANGE, OpKind.FETCH, OpKind.PEER_READ}
    assert all(row["rows_local"] == row["rows"] for row in one.batches)
    assert not one.sent.any()


@pytest.mark.slow
def test_fewer_training_vertices_than_ranks_leave_some_without(edges: dict[str, Found]) -> None:
    one = edges["few"]
    assert sorted(map(len, one.sampling.workers)) == [0, 1, 1, 1]
    assert one.sampling.steps == 1
    idle = next(rank for rank, mine in enumerate(one.sampling.workers) if not len(mine))
    assert not any(row["rows"] for row in one.batches if row["rank"] == idle)
