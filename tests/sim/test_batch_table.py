"""What is told of each mini-batch, from a simulated trace: sizes of the program, waits of the trace."""

import numpy as np
import pyarrow as pa
import pytest

from sim.mini_batches import made_sizes, planned
from sim.test_prefetch import EPOCHS, STEPS, Durations, apart
from sim.worlds import run
from simgnn.record.batches import BATCHES_SCHEMA, batch_table, draws_batches


@pytest.mark.parametrize("hot_rows", [0, 60])
@pytest.mark.parametrize("window", [1, 3])
def test_a_row_tells_what_a_batch_held_and_how_long_training_waited(window: int, hot_rows: int) -> None:
    hosts = [0, 1, 2]
    sizes = made_sizes(hosts, EPOCHS, STEPS, hot_rows=hot_rows, seed=window)
    simulation = run(planned("rapidgnn", hosts, sizes, f"schedule.window={window}").program, apart(hosts), EPOCHS)
    assert draws_batches(simulation.program)
    table = batch_table(simulation.program, simulation.trace)
    assert table.schema == BATCHES_SCHEMA
    found = {name: table[name].to_numpy().reshape(3, EPOCHS, STEPS) for name in table.column_names}
    assert np.array_equal(found["rank"][:, 0, 0], range(3))
    assert np.array_equal(found["step"][1, 1], range(STEPS))
    for name, expected in (("seeds", sizes.rows[0]), ("rows", sizes.rows[-1]), ("edges", sizes.edges.sum(axis=0))):
        assert np.array_equal(found[name], expected), name
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
        assert cut[name].to_numpy()[:4].tolist() == whole[name].to_numpy()[:4].tolist(), name
