"""Simulating one epoch, in process and warm: `pytest -n 0 tests/benchmarks --benchmark-only`."""

import pytest

from simgnn.sim.simulate import simulate
from tests.sim.planned import shipped, spread, statistics, vanilla


@pytest.mark.parametrize(
    ("ranks", "hosts", "name"), [(16, 2, "a800-pcie-ib-2x8"), (16, 2, "cpu-100gbe-8"), (64, 8, "cpu-100gbe-8")]
)
def test_one_epoch_of_a_three_layer_gcn(benchmark, ranks: int, hosts: int, name: str) -> None:
    placed = spread(ranks, hosts)
    stats = statistics(placed)
    program, on = vanilla(stats), shipped(name, placed)
    found = benchmark.pedantic(
        simulate, args=(program, on), kwargs={"stats": stats, "epochs": 1}, warmup_rounds=1, rounds=3
    )
    assert found.status == "ok"
