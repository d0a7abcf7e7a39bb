"""What one process, and a simulation, say of a mini-batch run that ranks have carried out."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from executor.layers import build_layers
from executor.minibatch.embeddings import initial_embeddings
from executor.state.plan import RunPlan
from simgnn.emit.batches.names import HOT, INPUTS
from simgnn.graph.graph import Graph
from simgnn.policies.placement.store import Store
from simgnn.program.calendar import EVALUATE
from simgnn.program.program import Program
from simgnn.record.batches import batch_table, batches_that_differ
from simgnn.record.result import read_result
from simgnn.record.rundir import RunDirectory
from simgnn.sampling.batches.plan import SamplingPlan
from tests.equality.counting import counted_rows, differences
from tests.executor.evaluation_checks import assert_evaluated
from tests.executor.minibatch.batch_runs import EPOCHS, sampling_of
from tests.reference import LearnedRows, train_batch_reference
from tests.sim.worlds import machine
from tests.sim.worlds import run as simulate_exactly


def assert_trained_as_one_process(graph: Graph, folder: Path, ranks: Sequence[Mapping[str, Any]]) -> SamplingPlan:
    """What each rank got of a float64 run is what one process gets with DGL's layers on the union of the same batches;
    returns who drew what."""
    run, sampling = RunPlan.open(folder), sampling_of(folder)
    layers = build_layers(run.layers, run.seed, torch.float64)
    names = [[name for name, _ in layer.named_parameters()] for layer in layers]
    initial = [{name: value.detach() for name, value in layer.named_parameters()} for layer in layers]
    learned = _learned_rows(graph, run)
    expected = train_batch_reference(graph, run.layers, initial, sampling, EPOCHS, run.train, learned=learned)
    if expected.embeddings is not None:
        _assert_embeddings(run, sampling, ranks, expected.embeddings)
    wanted = torch.cat(
        [found[name].reshape(-1) for found, kept in zip(expected.parameters, names, strict=True) for name in kept]
    )
    for got in ranks:
        assert np.allclose(got["losses"], expected.losses, rtol=1e-9), (folder, got["losses"], expected.losses)
        difference = float((got["parameters"] - wanted).abs().max() / wanted.abs().max())
        assert difference <= 1e-9, f"{folder}: parameters differ by {difference:.2e}"
        assert got["parameters"].equal(ranks[0]["parameters"]), f"{folder}: ranks differ"
        assert len(got["gradients"]) == EPOCHS * sampling.steps, "every rank takes part in every step"
        every = _evaluated_every(run)
        assert set(got["evaluations"]) == {*range(every - 1, EPOCHS, every), EPOCHS - 1}
        assert_evaluated(graph, expected.scores, got["evaluations"])
    return sampling


def _learned_rows(graph: Graph, run: RunPlan) -> LearnedRows | None:
    """The vectors that a run begins with, of all vertices."""
    placement = run.policies["placement"]
    assert isinstance(placement, Store)
    if not placement.sparse_embedding:
        return None
    vectors = initial_embeddings(run.seed, np.arange(graph.csr.rows), placement.sparse_embedding)
    return LearnedRows(torch.from_numpy(vectors), placement.sparse_delay, float(run.train["learning_rate"]))


def _assert_embeddings(
    run: RunPlan, sampling: SamplingPlan, ranks: Sequence[Mapping[str, Any]], expected: torch.Tensor
) -> None:
    """The first rank of each host has its vertices' vectors, in their order; the others have none to write."""
    hosts = np.array(run.program.hosts)
    for rank, got in enumerate(ranks):
        if run.program.hosts.index(hosts[rank]) != rank:
            assert not got["written"]
            continue
        mine = np.flatnonzero(hosts[np.asarray(sampling.owner)] == hosts[rank])
        difference = float((got["written"]["embeddings"] - expected[mine]).abs().max())
        assert difference <= 1e-9, f"{run.root}: embeddings of host {hosts[rank]} differ by {difference:.2e}"


def assert_simulated_alike(folder: Path) -> None:
    """A simulation of the run's program sends what its ranks sent: op by op, step by step, and by rank pair. And ranks
    took the rows of every batch whence it says."""
    plan, run = RunPlan.open(folder), RunDirectory(folder)
    on = machine(list(plan.program.hosts), kind="cpu", cores=64, threads=1)
    simulation = simulate_exactly(plan.program, on, EPOCHS, evaluate_every=_evaluated_every(plan))
    assert not differences(counted_rows(simulation.trace), counted_rows(pq.read_table(run.trace)))
    told = pq.read_table(run.traffic)  # of evaluations too, which a simulation tells in its trace alone
    training = [plan.program.ops[op_id][0] != EVALUATE for op_id in told["op_id"].to_pylist()]
    assert simulation.traffic_table.equals(told.filter(pa.array(training, pa.bool_())))
    predicted, counted = batch_table(plan.program, simulation.trace), pq.read_table(run.batches)
    assert predicted.num_rows == counted.num_rows
    assert batches_that_differ(predicted, counted) == 0
    assert not elsewhere_notes(folder)


def elsewhere_notes(folder: Path) -> list[str]:
    """What a run says of batches whose rows came from elsewhere than planned."""
    notes = read_result(RunDirectory(folder).result).notes
    return [note for note in notes if "did not take their rows from where the program says" in note]


def staging_bytes(program: Program, rank: int) -> int:
    """Two caches (one, of a whole run) and a window of the largest batch: RapidGNN's bound
    (docs/systems/rapidgnn.md)."""
    inputs, hot = program.buffers[INPUTS], program.buffers.get(HOT)
    rows = inputs.depth * int(program.sizes.per_rank(inputs.rows, 0, 0)[rank])
    if hot is not None:
        rows += hot.depth * int(program.sizes.per_rank(hot.rows, 0, 0)[rank])
    return rows * inputs.row_bytes


def _evaluated_every(plan: RunPlan) -> int:
    """Epochs between evaluations; one at the end in any case."""
    return int(plan.train["eval_every"]) or EPOCHS
