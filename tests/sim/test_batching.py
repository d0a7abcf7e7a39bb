"""Batches of beginnings and ends of messages against exact events, on whole planned epochs."""

import numpy as np
import pytest

from simgnn.sim.simulate import simulate
from tests.benchmarks.bench_simulate import HOSTS, planned

FEW = 32
"""Peers of a rank."""


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("ranks", [8, 64])
def test_a_batched_epoch_is_within_a_percent_of_exact_events(ranks: int, seed: int) -> None:
    program, machine, stats = planned(ranks, HOSTS[ranks], FEW, seed)
    batched, exact = (simulate(program, machine, stats=stats, epochs=1, **options) for options in ({}, {"window": 0.0}))
    for name in ("rank", "op_id", "bytes_sent", "messages"):
        assert np.array_equal(batched.columns[name], exact.columns[name])
    assert batched.epoch_s == pytest.approx(exact.epoch_s, rel=1e-4)
    found, expected = (
        {name: simulation.columns[f"{name}_s"] for name in ("issued", "ended")} for simulation in (batched, exact)
    )
    assert found["ended"] == pytest.approx(expected["ended"], rel=0.01), "when each op ends"
    took = {False: found["ended"] - found["issued"], True: expected["ended"] - expected["issued"]}
    assert took[False] == pytest.approx(took[True], rel=0.01), "how long each op takes"
