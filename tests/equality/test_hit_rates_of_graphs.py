"""Hit rates of caches of halo rows on real and generated graphs: no other rows are hit more often than the most shared
ones, and runs read as many rows from caches as were predicted.

The grid prints a line for each graph, partition and number of ranks (pytest -s): docs/systems/capgnn.md has a part."""

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest

from executor.state.plan import RunPlan
from simgnn.analysis.hit_rates import SHARES, HitRates, capacities, evicting_hits, hit_rates
from simgnn.emit.halo_cache.cached_rows import HALO_VERTICES
from simgnn.emit.halo_cache.membership import HaloRows
from simgnn.experiment.load import load_experiment
from simgnn.graph.graph import Graph
from simgnn.graph.load import load_graph
from simgnn.partition.store import partition_artifact
from simgnn.planner.prepare import full_graph_stats
from simgnn.policies.freshness.refresh_interval import RefreshInterval
from simgnn.program.sizes import IntArray
from simgnn.record.summary import halo_rows
from tests.cached_reference import Caching
from tests.equality.halo_runs import KIND, settings_of, train_counting
from tests.executor.harness import run_ranks
from tests.executor.runs import prepared_run, small_graph

LAYERS, ITEM = 2, 4
REAL, RMAT = ("ogbn_arxiv", "amazon_computers"), {"vertices": 2**16, "edges": 2**20, "feature_width": 2}
GRID = [
    pytest.param(*case, id="-".join(map(str, case)), marks=[pytest.mark.slow, pytest.mark.realdata])
    for case in product((*REAL, "rmat"), ("metis", "random"), (2, 3, 4, 8))
]
CUTS = {"metis": ("partition.kind=metis", "partition.balance=['vertices']"), "random": ("partition.kind=random",)}
SMALL = pytest.param("small", "random", 3, id="small")


@dataclass
class Graphs:
    """Graphs by name, narrow ones, since what is cached does not depend on features; their partitions; and runs."""

    root: Path
    data: Path | None = None

    def __post_init__(self) -> None:
        self.of = lru_cache(maxsize=1)(self._load)

    def _load(self, name: str) -> Graph:
        if name == "small":
            return small_graph(300, width=2)
        if name == "rmat":
            return load_graph("synthetic:rmat", options=RMAT, seed=1)
        assert self.data is not None
        graph = load_graph(str(self.data / f"{name}.npz"))
        draw = np.random.default_rng(0)
        return replace(graph, features=draw.standard_normal((graph.vertices, 2)).astype(np.float32))

    def halo(self, name: str, cut: str, ranks: int) -> HaloRows:
        """The halo rows of all ranks, on one host."""
        experiment = load_experiment("vanilla", [KIND, *CUTS[cut]]).with_cluster(1, ranks)
        hosts = np.zeros(ranks, np.int64)
        artifact = partition_artifact(self.of(name), experiment.partition, hosts, experiment.seed, self.root / "cache")
        stats = full_graph_stats(experiment, artifact)
        return HaloRows.of(stats.halo, np.asarray(stats.tables[HALO_VERTICES]), stats.hosts)


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> Graphs:
    return Graphs(tmp_path_factory.mktemp("hits"))


def hits(policy: RefreshInterval, halo: HaloRows, devices: IntArray, memories: IntArray) -> int:
    cached, shared = policy.chosen(halo, devices, memories)
    return int((cached | shared).sum())


@pytest.mark.parametrize(("name", "cut", "ranks"), GRID)
def test_no_choice_of_rows_is_hit_more_often_than_the_most_shared(
    graphs: Graphs, data_dir: Path, name: str, cut: str, ranks: int
) -> None:
    graphs.data = data_dir
    halo = graphs.halo(name, cut, ranks)
    high, low = RefreshInterval(), RefreshInterval(order="low")
    rows, most, better = len(halo.vertex), 0.0, []
    for of_device, of_host in ((1, 1), (1, 0), (0, 1)):
        found = []
        for share in SHARES:
            devices, memories = (
                each * used for each, used in zip(capacities(halo, share), (of_device, of_host), strict=True)
            )
            ours, lowest = (hits(policy, halo, devices, memories) for policy in (high, low))
            evicting = [evicting_hits(halo, devices, memories, LAYERS, kind) * rows for kind in ("fifo", "lru")]
            assert ours >= max(lowest, *evicting) - 1e-6 * rows, (of_device, of_host, share)
            most = max(most, (ours - lowest) / rows)
            found.append(ours)
        assert all(one <= other for one, other in pairwise(found)), "more room, no fewer hits"
        assert found[-1] == rows, "room for all: nothing is missed"
        better.append(found)
    assert all(both >= max(one, other) for both, one, other in zip(*better, strict=True))
    assert (most > 0) is (ranks > 2), "of two ranks each vertex has one reader, so that all rows are alike"
    for one, other in zip(hit_rates(high, halo, LAYERS), hit_rates(low, halo, LAYERS), strict=True):
        assert round((one.device + one.host) * rows) == better[0][SHARES.index(one.share)]
        print(
            f"{name} {cut} {ranks} ranks {one.share:4.0%}: high {one.device + one.host:.4f} ({one.device:.4f} on "
            f"devices), low {other.device + other.host:.4f}, fifo {one.fifo:.4f}, lru {one.lru:.4f}"
        )


@pytest.mark.parametrize(("name", "cut", "ranks"), [SMALL, *GRID])
def test_runs_read_as_many_rows_from_caches_as_predicted(
    graphs: Graphs, tmp_path: Path, request: pytest.FixtureRequest, name: str, cut: str, ranks: int
) -> None:
    if name != "small":
        graphs.data = request.getfixturevalue("data_dir")
    shares = (0.2, 0.5) if name == "small" else SHARES
    common = (
        *CUTS[cut], f"model.layers={LAYERS}", "model.hidden=2", "communication.rows=transformed",
        "train.epochs=2", "train.eval_every=0", "train.dtype=float32", "hardware.threads_per_rank=1",
    )  # fmt: skip
    folders = [
        prepared_run(
            graphs.of(name), tmp_path / f"{share}", ranks, *settings_of(Caching(2, share, host_rows=share)), *common
        )
        for share in shares
    ]
    halo = graphs.halo(name, cut, ranks)
    expected: list[HitRates] = hit_rates(RefreshInterval(), halo, LAYERS, shares)
    executed = run_ranks(ranks, train_counting, tmp_path / "ranks", [str(folder) for folder in folders], joined=False)
    for place, (folder, rates) in enumerate(zip(folders, expected, strict=True)):
        plan = RunPlan.open(folder)
        widths = {layer.index: layer.prepared_width * ITEM for layer in plan.layers}
        read = {(layer, way): 0 for layer in widths for way in ("device", "load")}
        for rank in executed:
            for epoch, layer, phase, way, nbytes in rank[place]["moved"]:
                if (epoch, phase) == (1, "forward") and (layer, way) in read:
                    read[layer, way] += nbytes
        rows, planned = len(halo.vertex), halo_rows(plan.program)
        assert planned is not None
        for layer, row_bytes in widths.items():
            assert read[layer, "device"] == planned.device * row_bytes
            assert read[layer, "load"] == planned.host * row_bytes
        assert planned.device == round(rates.device * rows)
        assert planned.host == round(rates.host * rows)
        assert planned.device + planned.host + planned.sent == rows
