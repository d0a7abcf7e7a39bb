"""Hosts that exchange gradients alone: training is that of one process on the graph without the edges between hosts,
and no row crosses; and with halo rows between hosts nothing changes."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from executor.state.plan import RunPlan
from simgnn.graph.csr import CSR
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.profile.profile import load_profile
from simgnn.partition.statistics.partition_stats import DROPPED_BETWEEN, DROPPED_EDGES
from simgnn.program.calendar import EVALUATE
from simgnn.program.kinds import COLLECTIVE_KINDS
from simgnn.program.storage import program_digest
from simgnn.record.result import read_result
from simgnn.record.rundir import RunDirectory, read_table
from simgnn.sim.simulate import simulate
from tests.equality.conftest import Bench
from tests.equality.counting import counted_pairs, differences, planned_pairs, turns_of
from tests.equality.test_dropped_halo import MODELS, agrees, rapa
from tests.executor.runs import prepared_run, small_graph
from tests.weighted import weighted_graph

APART = ("partition.inter_machine=gradients",)
HOSTS, RANKS, EPOCHS = 2, 4, 5
ON = np.repeat(np.arange(HOSTS), RANKS // HOSTS)
PARTITIONS = {
    "random": ["partition.kind=random", *APART],
    "metis": ["partition.kind=metis", *APART],
    "rapa": [*rapa(1.0, 6.0, 1.0, 1.0), *APART],
}
SLOWER = [
    pytest.param(partition, model, marks=pytest.mark.slow)
    for partition, model in [*(("metis", model) for model in MODELS), ("random", "gat"), ("rapa", "gcn")]
]


def edges_between(csr: CSR, owner: NDArray[np.int32]) -> NDArray[np.int64]:
    """Count the in-edges of each rank from other hosts, edge by edge, int64 [P]."""
    targets = np.repeat(np.arange(csr.rows), csr.degrees())
    far = ON[owner[csr.indices]] != ON[owner[targets]]
    return np.bincount(owner[targets[far]], minlength=RANKS)


@pytest.mark.parametrize(
    ("partition", "model"),
    [("rapa", "sage"), *SLOWER],
)  # fmt: skip
def test_one_process_without_the_edges_between_hosts_learns_the_same(
    partition: str, model: str, bench: Bench, tmp_path: Path
) -> None:
    agrees(bench, small_graph(), tmp_path / "run", RANKS, [f"model.kind={model}", *PARTITIONS[partition]], hosts=HOSTS)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["gcn", "sage"])
def test_weighted_edges_between_hosts_are_dropped_with_their_weights(model: str, bench: Bench, tmp_path: Path) -> None:
    settings = [f"model.kind={model}", *PARTITIONS["metis"]]
    agrees(bench, weighted_graph(tmp_path), tmp_path / "run", RANKS, settings, hosts=HOSTS)


CACHED = (
    "freshness.kind=refresh-interval",
    "freshness.refresh_interval=2",
    "placement.device_rows=0.3",
    "placement.host_rows=0.5",
)


@pytest.mark.parametrize(
    ("partition", "more"),
    [
        ("rapa", CACHED),
        *(pytest.param("metis", more, marks=pytest.mark.slow) for more in ((), CACHED)),
        pytest.param("random", CACHED, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_no_row_crosses_between_hosts(partition: str, more: Sequence[str], bench: Bench, tmp_path: Path) -> None:
    settings = ["model.kind=gcn", f"train.epochs={EPOCHS}", f"train.eval_every={EPOCHS}", *PARTITIONS[partition], *more]
    plan = RunPlan.open(prepared_run(small_graph(), tmp_path / "run", RANKS, *settings, hosts=HOSTS))
    program, artifact = plan.program, plan.artifact
    turns = turns_of(program, EPOCHS, (EPOCHS - 1,))
    planned = planned_pairs(program, turns)
    assert planned, "rows travel inside hosts"
    assert all(ON[source] == ON[target] for _, source, target in planned)
    assert any(op.kind in COLLECTIVE_KINDS for _, op in program.ops), "gradients of weights are summed over all ranks"
    machine = Machine.place(load_profile("cpu-100gbe-8"), program.hosts)
    simulated = simulate(program, machine, epochs=EPOCHS, evaluate_every=EPOCHS)
    training = planned_pairs(program, [turn for turn in turns if turn.template != EVALUATE])
    assert not differences(training, counted_pairs(simulated.traffic_table))
    bench.pool.run(tmp_path / "run", RANKS)
    executed = RunDirectory(tmp_path / "run")
    assert not differences(planned, counted_pairs(read_table(executed.traffic)))
    result = read_result(executed.result)
    nbytes = np.asarray(result.bytes_sent)
    assert nbytes[ON[:, None] == ON].sum() > 0
    assert nbytes[ON[:, None] != ON].sum() == 0
    # told rank by rank, and what accuracies are of
    dropped = result.dropped_edges
    assert dropped is not None
    assert dropped.between_hosts == tuple(edges_between(small_graph().csr, artifact.partition.owner).tolist())
    assert dropped.by_rank == tuple(artifact.stats.tables[DROPPED_EDGES].tolist())
    if partition != "rapa":
        assert dropped.by_rank == dropped.between_hosts
    assert artifact.stats.tables[DROPPED_BETWEEN].tolist() == list(dropped.between_hosts)
    (line,) = [text for text in result.qualifications() if text.startswith("dropped edges: ")]
    assert f"{sum(dropped.between_hosts):,} of them between hosts" in line
    assert "accuracies are those of this smaller graph" in line


@pytest.mark.parametrize("hosts", [1, 2])
def test_halo_rows_between_hosts_are_as_without_the_option(hosts: int, tmp_path: Path) -> None:
    found = []
    for place, more in enumerate(((), ("partition.inter_machine=halo",))):
        folder = prepared_run(small_graph(), tmp_path / str(place), RANKS, "partition.kind=metis", *more, hosts=hosts)
        plan = RunPlan.open(folder)
        found.append((plan.artifact.digest, program_digest(plan.program)))
        assert plan.artifact.partition.dropped is None
    assert found[0] == found[1]
