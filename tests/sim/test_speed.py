"""How long a simulation takes, in process and warm (pytest --benchmark-only tests/sim)."""

import pytest

from sim.planned import shipped, spread, statistics, vanilla
from simgnn.sim.simulate import simulate


@pytest.mark.parametrize(
    ("ranks", "hosts", "name", "limit_s"),
    [(16, 2, "a800-pcie-ib-2x8", 0.2), (16, 2, "cpu-100gbe-8", 0.2), (64, 8, "cpu-100gbe-8", 2.0)],
)
def test_one_epoch_of_a_three_layer_gcn(benchmark, ranks: int, hosts: int, name: str, limit_s: float) -> None:
    placed = spread(ranks, hosts)
    stats = statistics(placed)
    program, on = vanilla(stats), shipped(name, placed)
    found = benchmark.pedantic(
        simulate, args=(program, on), kwargs={"stats": stats, "epochs": 1}, warmup_rounds=1, rounds=3
    )
    assert found.status == "ok"
    assert benchmark.stats["min"] <= limit_s
