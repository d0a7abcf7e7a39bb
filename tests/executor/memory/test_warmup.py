"""Nothing is compiled, or read from Numba's cache, once the idle process has been noted: it would count as memory."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from executor.launch.launcher import environment_of
from executor.world.environment import RENDEZVOUS
from simgnn.api.train import write_run
from simgnn.cli.tables.console import Reporter
from simgnn.experiment.load import load_experiment
from simgnn.experiment.schema import Experiment
from simgnn.planner.prepare import prepare
from tests.benchmarks.bench_memory import any_profile

RANK = """
import gc, sys
from pathlib import Path

from numba.core.dispatcher import Dispatcher

from executor.rank import session


def compiled():
    found = [one for one in gc.get_objects() if issubclass(type(one), Dispatcher)]
    return {(one.py_func.__module__, one.py_func.__name__, str(kind)) for one in found for kind in one.signatures}


class Noted(session.PeakMemory):
    @classmethod
    def begin(cls, *arguments, **options):
        cls.before = compiled()
        return super().begin(*arguments, **options)


session.PeakMemory = Noted
status = session.run_rank(Path(sys.argv[1]), "cpu")
print("late", sorted(compiled() - Noted.before), flush=True)
session.end_process(status)
"""
SMALL = ["graph.source=synthetic:communities", "graph.vertices=800", "graph.edges=4000", "train.epochs=2"]
BATCHES = ["model.layers=2", "batching.fanouts=[3, 3]", "batching.batch_size=20"]


@pytest.mark.parametrize(
    ("system", "ranks", "hosts", "settings"),
    [
        pytest.param("vanilla", 1, 1, ["model.kind=sage"], marks=pytest.mark.slow),
        ("cdfgnn", 2, 1, []),
        pytest.param("distdgl", 2, 2, BATCHES, marks=pytest.mark.slow),
        pytest.param("vanilla", 2, 1, ["model.kind=gat", "codec.kind=stochastic"], marks=pytest.mark.slow),
        pytest.param("cagnet", 2, 1, ["model.kind=gat", "model.order=auto"], marks=pytest.mark.slow),
        pytest.param("sancus", 2, 1, ["codec.kind=bfloat16"], marks=pytest.mark.slow),
        pytest.param("distdgl", 1, 1, BATCHES, marks=pytest.mark.slow),
        pytest.param("distdgl", 2, 2, [*BATCHES, "placement.sparse_embedding=4"], marks=pytest.mark.slow),
        pytest.param("rapidgnn", 2, 2, [*BATCHES, "placement.hot_rows=50"], marks=pytest.mark.slow),
    ],
)
def test_every_kernel_has_run_before_memory_is_measured(
    system: str, ranks: int, hosts: int, settings: list[str], tmp_path: Path
) -> None:
    _runs_all_before(load_experiment(system, [*SMALL, *settings]).with_cluster(hosts, ranks // hosts), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [["model.kind=gcn"], ["model.kind=sage", "schedule.kind=pipelined"]])
@pytest.mark.parametrize(("system", "ranks"), [("vanilla", 1), ("vanilla", 2), ("cdfgnn", 2), ("cagnet", 2)])
def test_weighted_kernels_too(system: str, ranks: int, settings: list[str], tmp_path: Path) -> None:
    if "schedule.kind=pipelined" in settings and system != "vanilla":
        settings = settings[:1]
    draw = np.random.default_rng(0)
    edges = np.column_stack((draw.integers(0, 800, (4000, 2)), draw.exponential(size=4000)))
    np.save(tmp_path / "weighted.npy", edges)
    graph = [f"graph.source={tmp_path}/weighted.npy", "graph.stand_in_features=16", "graph.classes=3", "train.epochs=2"]
    _runs_all_before(load_experiment(system, [*graph, *settings], ranks=ranks), tmp_path)


def _runs_all_before(experiment: Experiment, tmp_path: Path) -> None:
    ranks = experiment.ranks
    prepared = prepare(experiment, need_graph=True, cache=tmp_path / "cache")
    directory = write_run(prepared, any_profile(), tmp_path / "run", Reporter(quiet=True))
    command = [sys.executable, "-c", RANK, str(directory)]
    processes = [
        subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True,
            env={**environment_of(rank, ranks, None), RENDEZVOUS: str(tmp_path / "rendezvous")},
        )
        for rank in range(ranks)
    ]  # fmt: skip
    said = [process.communicate(timeout=240)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * ranks
    assert [text.splitlines()[-1] for text in said] == ["late []"] * ranks
