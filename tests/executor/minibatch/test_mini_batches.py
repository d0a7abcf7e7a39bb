"""Mini-batch training on ranks: the same bits whatever is staged or cached, with exactly the rows on the wire that the
program and its simulation tell. What one process says of it: test_mini_batch_oracle."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from executor.state.plan import RunPlan
from simgnn.analysis.compare import compare_runs
from simgnn.emit.batches.names import HOT
from simgnn.policies.placement.store import CACHE_ROUTE, FIRST_ROUTE, Store
from simgnn.program.calendar import EVALUATE
from simgnn.program.kinds import OpKind
from simgnn.program.ops import Op
from simgnn.program.program import Program
from simgnn.program.storage import program_digest
from simgnn.record.batches import batch_table, batches_that_differ, input_rows
from simgnn.record.result import Result, read_result, write_result
from simgnn.record.rundir import RunDirectory, ops_table, write_table
from simgnn.sampling.draw.sampler import Sampler
from simgnn.sampling.fetches.measured_sizes import forecast
from simgnn.sim.simulate import simulate
from tests.equality.counting import counted_rows, differences, planned_pairs, turns_of
from tests.executor.minibatch.batch_checks import assert_simulated_alike, elsewhere_notes, staging_bytes
from tests.executor.minibatch.batch_runs import EPOCHS, sampling_of
from tests.executor.minibatch.batch_variants import VARIANTS, Trained, trained_variants
from tests.sim.worlds import machine


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return trained_variants(tmp_path_factory.mktemp("variants"))


def test_caches_windows_and_requests_change_no_bit(trained: Trained) -> None:
    for rank in range(4):
        first = trained.results[0][0]
        for name, got in zip(VARIANTS, trained.results[rank], strict=True):
            assert got["losses"] == first["losses"], name
            assert got["parameters"].equal(first["parameters"]), name
    assert len(set(first["losses"])) == EPOCHS, "nothing was learned"


def _transfers(program: Program) -> dict[int, Op]:
    pulling = (OpKind.EXCHANGE, OpKind.FETCH)
    return {i: op for i, (name, op) in enumerate(program.ops) if op.kind in pulling and name != EVALUATE}


@pytest.mark.parametrize("name", VARIANTS)
def test_rows_of_each_pair_and_step_are_those_of_the_program(trained: Trained, name: str) -> None:
    """Counted from the tensors handed over; with two hosts of two ranks a rank pulls from one other alone, so that its
    bytes of a step are those of one pair."""
    program = trained.program(name)
    transfers, seen, rows_moved = _transfers(program), 0, 0
    for row in trained.trace(name):
        op = transfers.get(row["op_id"])
        if op is None:
            continue
        seen += 1
        assert op.route is not None
        matrix = program.sizes.routes[op.route].matrix(4, row["epoch"], row["step"])
        rank, row_bytes = row["rank"], op.transfer.row_bytes
        assert (matrix[rank] > 0).sum() <= 1
        sent, wanted = int(matrix[rank].sum()), int(matrix[:, rank].sum())
        rows_moved += sent
        ids = 8 * wanted if op.kind is OpKind.FETCH else 0
        assert row["bytes_sent"] == sent * row_bytes + ids, (op.name, row)
        assert row["control_bytes"] == (8 * 3 if op.kind is OpKind.FETCH else 0)
    assert seen >= 4 * EPOCHS * program.calendar.steps
    assert rows_moved, "no row of another host was needed"


@pytest.mark.parametrize("name", [name for name, (system, _) in VARIANTS.items() if system == "rapidgnn"])
def test_traffic_by_pair_is_that_of_the_program(trained: Trained, name: str) -> None:
    program, run = trained.program(name), RunDirectory(trained.folders[name])
    counted = {
        (row["op_id"], row["source"], row["target"]): (row["messages"], row["bytes"])
        for row in pq.read_table(run.traffic).to_pylist()
    }
    evaluated = [EPOCHS - 1] if EVALUATE in program.templates else []
    assert counted == planned_pairs(program, turns_of(program, EPOCHS, evaluated))
    sent = [
        sum(
            program.sizes.routes[op.route].matrix(4, epoch, step) * op.transfer.row_bytes
            for op in program.templates["step"].ops
            if op.kind is OpKind.EXCHANGE
            for step in range(program.calendar.steps)
        )
        for epoch in range(EPOCHS)
    ]
    result = read_result(run.result)
    assert result.payload_epochs == (1, 1), "the first and the last of three epochs are left out"
    assert result.bytes_sent == sent[1].tolist()
    if name == "all hot":
        assert sent[1].sum() > sent[2].sum() == 0, "batches pull nothing, and the last epoch fills no further cache"


@pytest.mark.parametrize("name", ["no cache", "hot", "delta", "all hot", "whole run"])
def test_a_forecast_is_what_ranks_sent(trained: Trained, name: str) -> None:
    """What ``simgnn sample`` tells of caches, pulled whole or by what they lack, by rank pair (rapidgnn.md 8)."""
    program, run = trained.program(name), RunDirectory(trained.folders[name])
    batches = json.loads((run.root / "plan" / "plan.json").read_text())["batches"]
    placement = RunPlan.open(run.root).policies["placement"]
    assert isinstance(placement, Store)
    told = forecast(
        sampling_of(run.root), Path(batches["folder"]), np.array(program.hosts), EPOCHS, [placement.cached_rows],
        placement.pulls_new_rows, not placement.refills,
    )  # fmt: skip
    sent, width = np.zeros((4, 4), np.int64), program.buffers["inputs"].row_bytes
    for row in pq.read_table(run.traffic).to_pylist():
        if program.ops[row["op_id"]][0] != EVALUATE:
            sent[row["target"], row["source"]] += row["bytes"]
    assert (width * (told.pulled + told.cached)[0]).tolist() == sent.tolist()
    assert told.cached.any() == (name != "no cache")
    if name == "whole run":
        first = program.sizes.routes[FIRST_ROUTE]
        assert told.cached[0].sum() == first.rows.sum(), "filled once, before the first epoch"
        assert CACHE_ROUTE not in program.sizes.routes


def test_hot_rows_save_what_was_planned(trained: Trained) -> None:
    """Hits and pulled rows add up to what a run without a cache pulls; with all rows hot none is pulled."""

    def pulled(name: str) -> int:
        return int(trained.program(name).sizes.routes["rows"].rows.sum())

    every = pulled("no cache")
    for name in ("hot", "delta", "all hot", "whole run"):
        hits = int(trained.program(name).sizes.columns["rows/hits"].sum())
        assert pulled(name) + hits == every
    assert pulled("all hot") == 0
    assert 0 < pulled("hot") < every


@pytest.mark.parametrize("name", VARIANTS)
def test_no_buffer_is_filled_before_its_batch_is_trained(trained: Trained, name: str) -> None:
    """Of Q staged batches one is in training: rows of batch i come into a buffer that batch i - Q has left."""
    program = trained.program(name)
    window = program.buffers["inputs"].depth
    names = dict(enumerate(op for _, op in program.ops))
    released = next(op.name for op in reversed(program.templates["step"].ops) if op.phase == "backward")
    ends, starts = {}, {}
    for row in trained.trace(name):
        op, turn = names[row["op_id"]], (row["rank"], row["epoch"] * program.calendar.steps + row["step"])
        if op.name == released:
            ends[turn] = row["ended_s"]
        if op.name == "rows/stage":
            starts[turn] = row["started_s"]
    assert len(starts) == len(ends) == 4 * EPOCHS * program.calendar.steps
    for (rank, count), start in starts.items():
        assert count < window or ends[rank, count - window] <= start, (rank, count)


def test_streams_have_threads_where_rows_are_staged_ahead(trained: Trained) -> None:
    serial = {name: got["serial"] for name, got in zip(VARIANTS, trained.results[0], strict=True)}
    assert not serial["hot"]
    assert not serial["online, ahead"]


def test_a_run_tells_what_a_full_graph_run_tells(trained: Trained) -> None:
    result = read_result(RunDirectory(trained.folders["hot"]).result)
    assert result.status == "ok"
    assert result.loss == trained.results[0][list(VARIANTS).index("hot")]["losses"]
    assert len(result.epoch_s) == EPOCHS
    plan = json.loads((trained.folders["hot"] / "plan" / "plan.json").read_text())
    assert result.program_digest == plan["program_digest"]


@pytest.mark.parametrize("name", VARIANTS)
def test_every_batch_is_told_of(trained: Trained, name: str) -> None:
    """A row a rank, epoch and step: what the batch held adds up, and no more batches are staged than there are buffers
    (docs/systems/mini-batches.md)."""
    program, sampling = trained.program(name), sampling_of(trained.folders[name])
    table = pq.read_table(RunDirectory(trained.folders[name]).batches).to_pylist()
    assert len(table) == 4 * EPOCHS * program.calendar.steps
    for row in table:
        assert row["rows_local"] + row["rows_hit"] + row["rows_pulled"] == row["rows"]
        assert 1 <= row["staged"] <= program.buffers["inputs"].depth
        assert row["wait_s"] >= 0
    for rank in range(4):
        seeds = sum(row["seeds"] for row in table if row["rank"] == rank and row["epoch"] == 1)
        assert seeds == len(sampling.workers[rank])
    drawn = next(row for row in table if row["seeds"])
    batch = sampling.epoch(drawn["rank"], drawn["epoch"]).sample(drawn["step"], Sampler(sampling.csr, sampling.fanouts))
    assert drawn["rows"] == len(batch.vertices)
    assert drawn["edges"] == sum(len(block.sources) for block in batch.blocks)


@pytest.mark.parametrize("name", VARIANTS)
def test_rows_come_from_where_the_program_says(trained: Trained, name: str) -> None:
    """From the memory of the host, the cache, other hosts, and into the cache: counted by the ranks as they move rows
    (docs/systems/rapidgnn.md)."""
    program, run = trained.program(name), RunDirectory(trained.folders[name])
    counted, planned = pq.read_table(run.batches), batch_table(program, pq.read_table(run.trace))
    assert batches_that_differ(counted, planned) == 0
    told = read_result(run.result)
    assert told.input_rows == input_rows(planned)
    assert told.input_rows is not None
    assert not elsewhere_notes(trained.folders[name])
    assert (told.input_rows.hit > 0) == (HOT in program.buffers)
    assert (told.input_rows.pulled > 0) == (name != "all hot")


@pytest.mark.parametrize("name", VARIANTS)
def test_counters_of_a_batch_add_up(trained: Trained, name: str) -> None:
    """Rows of the host, of the cache and of each other rank are the input rows; losses of batches, those of epochs
    (docs/systems/mini-batches.md)."""
    sampling, run = sampling_of(trained.folders[name]), RunDirectory(trained.folders[name])
    losses = [0.0] * EPOCHS
    for row in pq.read_table(run.batches).to_pylist():
        assert row["rows_local"] + row["rows_hit"] + sum(row["pulled_from"]) == row["rows_by_hop"][-1]
        assert (row["rows_by_hop"][0], row["rows_by_hop"][-1]) == (row["seeds"], row["rows"])
        assert sum(row["edges_by_hop"]) == row["edges"]
        host = row["rank"] // 2
        assert not any(row["pulled_from"][2 * host : 2 * host + 2]), "rows of the own host are not pulled"
        parted = name in ("online", "online, parted, ahead", "online, rows ahead")
        assert len(row["asked"]) == (2 if parted else 0)
        for hop, wanted in enumerate(row["asked"]):
            assert sum(wanted) <= row["rows_by_hop"][hop]
            assert not any(wanted[2 * host : 2 * host + 2])
        assert (row["loss_sum"] > 0) == (row["seeds"] > 0)
        losses[row["epoch"]] += row["loss_sum"]
    assert np.allclose(losses, np.array(read_result(run.result).loss) * sampling.trained, rtol=1e-12)


@pytest.mark.parametrize("name", ["delta", "online, parted, ahead"])
def test_a_prediction_lines_up_with_its_run(trained: Trained, name: str, tmp_path: Path) -> None:
    """``simgnn compare``: the same ops of the same steps and evaluations, with the same bytes."""
    program, measured = trained.program(name), RunDirectory(trained.folders[name])
    on = machine(list(program.hosts), kind="cpu", cores=64, threads=1)
    simulation = simulate(program, on, epochs=EPOCHS, evaluate_every=EPOCHS)
    assert not differences(counted_rows(simulation.trace), counted_rows(pq.read_table(measured.trace)))
    predicted = RunDirectory(tmp_path)
    write_table(ops_table(program), predicted.ops)
    write_table(simulation.trace, predicted.trace)
    write_table(simulation.traffic_table, predicted.traffic)
    write_table(batch_table(program, simulation.trace), predicted.batches)
    told = Result(backend="sim", status="ok", name="predicted", digest=None, program_digest=program_digest(program),
                  seed=0, ranks=4, hosts=2, epochs=EPOCHS, epoch_s=simulation.epoch_s,
                  epoch_s_median=simulation.epoch_s_median)  # fmt: skip
    write_result(told, predicted.result)
    found = compare_runs(predicted.root, measured.root)
    assert found.epochs == EPOCHS - 1
    assert (found.bytes_differ, found.messages_differ, found.ops_unmatched, found.batches_differ) == (0, 0, 0, 0)
    kinds = {kind.kind: kind for kind in found.kinds}
    trained_ops = {op.kind.value for name, op in program.ops if name != EVALUATE}
    assert set(kinds) == trained_ops
    # rows are picked by ranks alone, whichever stream does it
    assert kinds["copy"].compute.measured_s > 0
    assert kinds["copy"].transfer.measured_s == kinds["copy"].wait.measured_s == 0
    assert sum(part.measured_s for part in found.parts) > 0


@pytest.mark.parametrize("name", ["online, ahead", "all hot"])
def test_a_simulation_sends_what_the_ranks_sent(trained: Trained, name: str) -> None:
    """No difference in bytes, control bytes and messages of any op, rank and step."""
    assert_simulated_alike(trained.folders[name])


@pytest.mark.parametrize("name", VARIANTS)
def test_input_rows_have_the_memory_of_the_bound_and_no_more(trained: Trained, name: str) -> None:
    """Measured from the memory that the tensors lie in."""
    for rank in range(4):
        found = trained.results[rank][list(VARIANTS).index(name)]["staging_bytes"]
        assert found == staging_bytes(trained.program(name), rank) > 0
