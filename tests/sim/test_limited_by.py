"""What limits a prediction: the critical path in closed form, and named numbers against simulations of each number."""

from collections.abc import Sequence

import pytest
from programs.notation import op, program

from sim.planned import shipped, spread, statistics, vanilla
from sim.worlds import machine, run, seconds_of_work
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.profile.numbers import profile_numbers
from simgnn.hardware.profile.profile import load_profile
from simgnn.partition.statistics.partition_stats import PartitionStats
from simgnn.program.calendar import Calendar
from simgnn.program.ops import Stream, Transfer, Work
from simgnn.program.program import Program
from simgnn.record.limited_by import LimitedBy
from simgnn.sim.engine.turn_sizes import Sizes
from simgnn.sim.limited_by.critical_path import critical_path
from simgnn.sim.limited_by.find import EVENTS, NO_EFFECT, Resimulation, find_limits
from simgnn.sim.simulate import Simulation, simulate

TIE = 0.002
"""Numbers whose effects differ by less than this share of the epoch may come in any order."""
GB = 10**9


def limits(
    found: Simulation, on: Machine, stats: PartitionStats | None = None, events: float = EVENTS
) -> tuple[LimitedBy, Resimulation]:
    again = Resimulation(
        lambda profile: Machine.place(profile, found.program.hosts),
        lambda other, epochs: simulate(found.program, other, stats=stats, epochs=epochs),
    )
    return find_limits(found, on, again, stats=stats, events=events), again


def one_after_the_other() -> Program:
    """Rank 1 computes 3 s, rank 0 one; then 2 GB from rank to rank over ethernet, and 1 s on both."""
    ops = [
        op("own", "aggregate", "compute", work=seconds_of_work(1.0)),
        op("more", "transform", "compute", after="own", ranks="second", work=seconds_of_work(2.0)),
        op("sum", "allreduce", "comm", after="own more", transfer=Transfer(2 * GB)),
        op("last", "loss", "compute", after="sum", work=seconds_of_work(1.0)),
    ]
    streams = [Stream("compute"), Stream("comm", group="all")]
    return program("p", {"epoch": ops}, Calendar("epoch"), [], streams, (0, 1), columns={"second": [0, 1]})


def test_the_path_runs_through_the_rank_that_others_wait_for() -> None:
    on = machine((0, 1))
    found = run(one_after_the_other(), on, epochs=3)
    assert found.epoch_s == pytest.approx([6.0, 6.0, 6.0])
    path = critical_path(found.compiled, found.columns, Sizes(found.program), 1)
    assert sum(piece.seconds for piece in path) == pytest.approx(6.0)
    told = [(piece.compiled.op.name, piece.rank, round(piece.seconds, 6)) for piece in path if piece.compiled]
    assert told[1:] == [("sum", told[0][1], 2.0), ("more", 1, 2.0), ("own", 1, 1.0)]
    by, _ = limits(found, on)
    most = [(part.activity, part.what, part.link, round(6 * part.share, 5)) for part in by.time[:2]]
    assert most == [("compute", "transform", None, 2.0), ("transfer", "allreduce", "ethernet", 2.0)]
    assert by.ranks[0].rank == 1
    assert by.ranks[0].share >= 0.5
    # 2 s over ethernet take one; 4 s of work, all of it priced by one curve, take two
    most = [(number.key, round(6 * number.shorter, 5)) for number in by.numbers[:2]]
    assert most == [("devices.dev.curves.elementwise.bytes", 2.0), ("links.ethernet.bandwidth", 1.0)]
    assert {number.key for number in by.without_effect} >= {"links.pcie.bandwidth", "links.wide.bandwidth"}
    lines = by.lines()
    assert lines["time"].startswith("33 % transform, 33 % allreduce over links.ethernet")
    assert "links.ethernet.bandwidth = 8 Gbit/s (assumed; twice as good: 17 % shorter)" in lines["capped by"]


def truth(found: Simulation, on: Machine, again: Resimulation) -> dict[str, float]:
    """How much shorter the median epoch is with each number of the profile twice as good."""
    changed = {}
    for number in profile_numbers(on.profile):
        other = again.simulate(again.place(number.doubled(on.profile)), len(found.epoch_s))
        changed[number.key] = 1.0 - other.epoch_s_median / found.epoch_s_median
    return changed


def check(by: LimitedBy, changed: dict[str, float]) -> None:
    left = dict(changed)
    assert by.numbers
    for number in by.numbers:
        assert left[number.key] >= max(map(abs, left.values())) - TIE, f"{number.key} is not the next: {left}"
        assert number.shorter == pytest.approx(left.pop(number.key), abs=TIE)
    for number in by.without_effect:
        assert abs(changed[number.key]) < NO_EFFECT, number.key


SLOW = pytest.mark.slow
CASES = [
    ("cpu-25gbe-4", 4, 4, ()),
    pytest.param("cpu-100gbe-8", 8, 8, (), marks=SLOW),
    pytest.param("cpu-25gbe-4", 8, 4, (), marks=SLOW),
    pytest.param("a800-pcie-ib-2x8", 16, 2, (), marks=SLOW),
    pytest.param("p100-10gbe-4x2", 8, 4, (), marks=SLOW),
    pytest.param("dgx-a100-2", 16, 2, (), marks=SLOW),
    pytest.param("dgx-h100", 8, 1, (), marks=SLOW),
    pytest.param("mixed-pcie3-8", 8, 1, (), marks=SLOW),
    pytest.param("a100-nvlink-4", 4, 1, ("model.kind=gat",), marks=SLOW),
    pytest.param("vm-epyc-2", 2, 1, (), marks=SLOW),
]


@pytest.mark.parametrize(("profile", "ranks", "hosts", "settings"), CASES)
def test_named_numbers_change_the_epoch_most_and_others_do_not(
    profile: str, ranks: int, hosts: int, settings: Sequence[str]
) -> None:
    placed = spread(ranks, hosts)
    stats, on = statistics(placed), shipped(profile, placed)
    found = simulate(vanilla(stats, *settings), on, stats=stats, epochs=5)
    by, again = limits(found, on, stats, events=1e9)
    assert by.simulations > 0
    check(by, truth(found, on, again))


@pytest.mark.parametrize(("profile", "hosts"), [("cpu-25gbe-4", 4), ("cpu-100gbe-8", 8)])
def test_an_assumed_port_that_hides_the_network_is_named(profile: str, hosts: int) -> None:
    placed = spread(hosts, hosts)
    stats, on = statistics(placed), shipped(profile, placed)
    found = simulate(vanilla(stats), on, stats=stats, epochs=5)
    by, _ = limits(found, on, stats)
    first = by.numbers[0]
    assert (first.key, first.value, first.source) == ("backends.gloo.ports (send and receive)", "2 GB/s", "assumed")
    assert "links.ethernet.bandwidth" in [number.key for number in by.without_effect]
    assert by.time[0].link == "ethernet"


def test_estimates_are_reported_where_simulations_are_too_long() -> None:
    placed = spread(4, 4)
    stats, on = statistics(placed), shipped("cpu-25gbe-4", placed)
    found = simulate(vanilla(stats), on, stats=stats, epochs=5)
    by, _ = limits(found, on, stats, events=0)
    checked, _ = limits(found, on, stats)
    assert by.simulations == 0
    assert not by.without_effect, "nothing proves it"
    assert [number.key for number in by.numbers] == [number.key for number in checked.numbers]
    for estimate, simulated in zip(by.numbers, checked.numbers, strict=True):
        assert not estimate.checked
        assert estimate.shorter >= simulated.shorter - TIE, "another path may be longer then, never a shorter one"
    assert "about" in by.lines()["capped by"]
    assert "--verbose" in by.lines()["no effect"]


def test_cpus_that_sample_for_gpus_are_named() -> None:
    drawn = (Work("sample", {"vertices": 100_000, "edges": 1_000_000}),)
    ops = [
        op("draw", "sample", "compute", work=drawn),
        op("pass", "aggregate", "compute", after="draw", work=seconds_of_work(0.01)),
    ]
    two = program("p", {"epoch": ops}, Calendar("epoch"), [], [Stream("compute")], (0, 0), columns={})
    by, _ = limits(run(two, on := shipped("dgx-a100-2", [0, 0]), epochs=3), on)
    assert by.numbers[0].key == "devices.cpu.clock"


def test_loads_of_links_are_checked_by_simulation() -> None:
    load = {"source": "measured", "queues": [{"messages": 1, "size": "50 MB"}, {"messages": 4, "size": "200 MB"}],
            "processor": "200 ps"}  # fmt: skip
    on = machine((0, 0, 1, 1), kind="cpu", cores=4, load=load)
    stats = statistics([0, 0, 1, 1])
    found = simulate(vanilla(stats), on, stats=stats, epochs=4)
    by, again = limits(found, on, stats, events=1e9)
    check(by, truth(found, on, again))


def test_shipped_profiles_have_numbers_with_keys_of_their_own() -> None:
    keys = [number.key for number in profile_numbers(load_profile("dgx-a100-2"))]
    assert len(keys) == len(set(keys))
