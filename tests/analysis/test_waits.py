"""For whom ranks wait, on hand-written traces."""

import numpy as np
import pytest
from programs.notation import op, program
from sim.worlds import machine, run, seconds_of_work

from simgnn.analysis.waits import waits_between
from simgnn.program.calendar import Calendar
from simgnn.program.ops import Stream, Transfer, Work
from simgnn.program.sizes import Column
from simgnn.sim.limited_by.even_work import even_shares, with_even_work


def test_the_last_to_arrive_is_who_others_wait_for() -> None:
    ops = [
        op("own", "aggregate", "compute", work=seconds_of_work(1.0)),
        op("more", "transform", "compute", after="own", ranks="second", work=seconds_of_work(2.0)),
        op("sum", "allreduce", "comm", after="own more", transfer=Transfer(8)),
    ]
    streams = [Stream("compute"), Stream("comm", group="all")]
    columns = {"second": [0, 1, 0]}
    made = program("p", {"epoch": ops}, Calendar("epoch"), [], streams, (0, 0, 1), columns=columns)
    found = run(made, machine((0, 0, 1)), epochs=3)
    waits = waits_between(made, found.columns, 1)
    assert waits[0] == pytest.approx([0.0, 2.0, 0.0])
    assert waits[1] == pytest.approx([0.0, 0.0, 0.0])
    assert waits[2] == pytest.approx([0.0, 2.0, 0.0])
    assert waits.sum(axis=1) == pytest.approx(found.wait_s[1])


def test_even_work_keeps_all_work_and_all_messages() -> None:
    sizes = {"rows": Column("rows"), "width": 4, "passes": 1, "item_bytes": 4}
    ops = [
        op("own", "elementwise", "compute", work=(Work("elementwise", sizes),)),
        op("sum", "allreduce", "comm", after="own", transfer=Transfer(8, Column("rows"))),
    ]
    streams = [Stream("compute"), Stream("comm", group="all")]
    columns = {"rows": [100, 300]}
    made = program("p", {"epoch": ops}, Calendar("epoch"), [], streams, (0, 1), columns=columns)
    even = with_even_work(made, np.array([0.25, 0.75]))
    assert even.sizes.columns["even/rows"].tolist() == [100, 300]
    assert with_even_work(made, np.array([0.5, 0.5])).sizes.columns["even/rows"].tolist() == [200, 200]
    assert even.sizes.columns["rows"].tolist() == [100, 300]
    assert even.templates["epoch"].ops[1].transfer == ops[1].transfer
    assert even_shares(np.array([1.0, 3.0])).tolist() == [0.75, 0.25]
    assert even_shares(np.array([0.0, 0.0])).tolist() == [0.5, 0.5]
