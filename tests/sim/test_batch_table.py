"""What is told of each mini-batch, from a simulated trace: sizes of the program, waits of the trace."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from sim.mini_batches import made_sizes, parted_sizes, planned, statistics
from sim.test_prefetch import EPOCHS, STEPS, Durations, apart
from sim.worlds import run
from simgnn.program.drain_points import Stops
from simgnn.record.batches import BATCHES_SCHEMA, LOSSES_SCHEMA, batch_table, batches_that_differ, draws_batches


@pytest.mark.parametrize("hot_rows", [0, 60])
@pytest.mark.parametrize("window", [1, 3])
def test_a_row_tells_what_a_batch_held_and_how_long_training_waited(window: int, hot_rows: int) -> None:
    hosts = [0, 1, 2]
    sizes = made_sizes(hosts, EPOCHS, STEPS, hot_rows=hot_rows, seed=window)
    simulation = run(planned("rapidgnn", hosts, sizes, f"schedule.window={window}").program, apart(hosts), EPOCHS)
    assert draws_batches(simulation.program)
    table = batch_table(simulation.program, simulation.trace)
    assert table.schema == BATCHES_SCHEMA
    flat = [field.name for field in BATCHES_SCHEMA if not pa.types.is_list(field.type)]
    found = {name: table[name].to_numpy().reshape(3, EPOCHS, STEPS) for name in flat}
    assert np.array_equal(found["rank"][:, 0, 0], range(3))
    assert np.array_equal(found["step"][1, 1], range(STEPS))
    for name, expected in (("seeds", sizes.rows[0]), ("rows", sizes.rows[-1]), ("edges", sizes.edges.sum(axis=0))):
        assert np.array_equal(found[name], expected), name
    listed = {name: np.array(table[name].to_pylist()) for name in ("rows_by_hop", "edges_by_hop", "pulled_from")}
    for name, counts in (("rows_by_hop", sizes.rows), ("edges_by_hop", sizes.edges)):
        assert np.array_equal(listed[name], np.moveaxis(counts, 0, -1).reshape(3 * EPOCHS * STEPS, -1)), name
    assert np.array_equal(listed["pulled_from"].sum(axis=1), found["rows_pulled"].reshape(-1))
    for epoch, step in ((0, 3), (1, 5)):
        row = listed["pulled_from"].reshape(3, EPOCHS, STEPS, 3)[:, epoch, step]
        assert np.array_equal(row, sizes.pulled.matrix(3, epoch, step).T)
    assert table["asked"].to_pylist() == [[]] * (3 * EPOCHS * STEPS)
    assert table["loss_sum"].null_count == table.num_rows, "a prediction knows no loss"
    assert np.array_equal(found["rows_local"], sizes.local)
    assert np.array_equal(found["rows_hit"], sizes.hits)
    assert np.array_equal(found["rows_local"] + found["rows_hit"] + found["rows_pulled"], sizes.rows[-1])
    told, ready = Durations(simulation), "hot/take" if hot_rows else "rows/stage"
    for count in range(EPOCHS * STEPS):
        before = told.ends[count - 1, "update/optimize"] if count else np.zeros(3)
        waited = found["wait_s"].reshape(3, -1)[:, count]
        np.testing.assert_allclose(waited, np.maximum(told.ends[count, ready] - before, 0), rtol=1e-9, atol=1e-15)
    assert found["staged"].min() >= 1
    assert found["staged"].max() <= window
    assert (found["staged"] > 1).any() == (window > 1)


def test_what_lies_between_epochs_is_not_waited_for() -> None:
    hosts, pause_s = [0, 1, 2], 5.0
    program = planned("rapidgnn", hosts, made_sizes(hosts, EPOCHS, STEPS), "schedule.across_epochs=true").program
    stopped = run(program, apart(hosts), EPOCHS, stops=Stops(EPOCHS, checkpoint_every=1)).trace
    later = stopped
    for name in ("issued_s", "started_s", "ended_s"):  # each checkpoint takes that long
        moved = pa.array(stopped[name].to_numpy() + pause_s * stopped["epoch"].to_numpy())
        later = later.set_column(later.schema.get_field_index(name), name, moved)
    waits = [batch_table(program, trace)["wait_s"].to_numpy() for trace in (stopped, later)]
    np.testing.assert_allclose(waits[1], waits[0], rtol=1e-9, atol=1e-12)
    assert (waits[0].reshape(3, EPOCHS, STEPS)[:, :, 0] > 0).all(), "nothing is staged over a checkpoint"


def test_a_batch_that_one_table_lacks_differs() -> None:
    hosts = [0, 1]
    simulation = run(planned("rapidgnn", hosts, made_sizes(hosts, EPOCHS, STEPS)).program, apart(hosts), EPOCHS)
    table = batch_table(simulation.program, simulation.trace)
    assert batches_that_differ(table, table) == 0
    assert batches_that_differ(table, table.slice(3)) == batches_that_differ(table.slice(3), table) == 3
    assert batches_that_differ(table, table.slice(0, 0)) == table.num_rows


def test_batches_that_did_not_end_are_left_out() -> None:
    hosts = [0, 1]
    simulation = run(planned("rapidgnn", hosts, made_sizes(hosts, EPOCHS, STEPS)).program, apart(hosts), EPOCHS)
    trace = simulation.trace
    steps = trace["epoch"].to_numpy() * STEPS + trace["step"].to_numpy()
    ops = [op.name for _, op in simulation.program.ops]
    begins = ("forward", "backward", "update")
    training = np.array([ops[op_id].startswith(begins) for op_id in trace["op_id"].to_numpy()])
    # a run that broke off in step 4, when later batches were staged already
    cut = batch_table(simulation.program, trace.filter(pa.array((steps < 4) | ((steps < 6) & ~training))))
    whole = batch_table(simulation.program, trace)
    assert cut["step"].to_pylist() == [0, 1, 2, 3] * 2
    for name in set(cut.column_names) - {"staged"}:
        assert cut[name].to_pylist()[:4] == whole[name].to_pylist()[:4], name


def test_requests_are_told_by_hop_and_rank() -> None:
    hosts = [0, 0, 1, 1]
    sizes = made_sizes(hosts, EPOCHS, STEPS)
    parted = parted_sizes(hosts, sizes)
    program = planned("distdgl", hosts, replace(sizes, parted=parted)).program
    asked = batch_table(program, run(program, apart(hosts), EPOCHS).trace)["asked"].to_pylist()
    found = np.array(asked).reshape(4, EPOCHS, STEPS, 2, 4)
    expected = np.moveaxis(parted.requests.asked, (0, 2), (-2, -1)).copy()
    expected[range(4), ..., range(4)] = 0  # what a rank draws for itself is no request
    assert np.array_equal(found, expected)


def test_losses_are_told_where_a_run_wrote_them_down() -> None:
    hosts = [0, 1]
    simulation = run(planned("rapidgnn", hosts, made_sizes(hosts, EPOCHS, STEPS)).program, apart(hosts), EPOCHS)
    rows = [
        {"rank": 1, "epoch": 1, "step": 2, "loss_sum": 7.5},
        {"rank": 0, "epoch": 0, "step": 3, "loss_sum": 0.25},
    ]
    table = batch_table(simulation.program, simulation.trace, pa.Table.from_pylist(rows, schema=LOSSES_SCHEMA))
    told = [{name: row[name] for name in LOSSES_SCHEMA.names} for row in table.to_pylist()]
    assert [row for row in told if row["loss_sum"] is not None] == rows[::-1]


@pytest.mark.parametrize("every", [1, EPOCHS])
def test_an_evaluation_is_no_batch_and_no_part_of_an_epoch(every: int) -> None:
    hosts = [0, 0, 1]
    sizes = made_sizes(hosts, EPOCHS, STEPS, hot_rows=60)
    program, stats = planned("rapidgnn", hosts, sizes).program, statistics(hosts)
    plain, evaluated = (run(program, apart(hosts), EPOCHS, evaluate_every=each) for each in (0, every))
    assert evaluated.epoch_s[0] == plain.epoch_s[0]
    assert evaluated.epoch_s == plain.epoch_s or every == 1  # nothing is drawn ahead of an epoch
    tables = [batch_table(program, simulation.trace) for simulation in (plain, evaluated)]
    for name in ("rows_by_hop", "pulled_from"):
        assert tables[0][name].equals(tables[1][name])
    trace = evaluated.columns
    rows = trace["step"] < 0
    assert set(trace["epoch"][rows]) == set(range(every - 1, EPOCHS, every))
    sent = np.bincount(trace["rank"][rows], trace["bytes_sent"][rows], minlength=3)
    widths = [op.transfer.row_bytes for op in program.templates["evaluate"].ops if op.route and op.transfer]
    assert widths == [4 * 20, 4 * 8]
    leaving = stats.halo.matrix(3).sum(axis=1)
    assert sent.tolist() == (leaving * sum(widths) * len(set(trace["epoch"][rows]))).tolist()
    assert np.array_equal(evaluated.bytes_sent(), plain.bytes_sent())
