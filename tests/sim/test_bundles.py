"""Bundles of messages: what they keep, and how far they lie from messages that flow one by one."""

import numpy as np
import pytest

from sim.planned import shipped, spread, statistics, vanilla
from simgnn.record.rundir import TRACE_SCHEMA
from simgnn.sim.network.message_bundles import bundle_paths, even_out
from simgnn.sim.simulate import Simulation, simulate
from tests.benchmarks.bench_simulate import planned

NEVER = 10**9


def all_pairs_of(ranks: int) -> tuple[np.ndarray, np.ndarray]:
    source, target = np.nonzero(~np.eye(ranks, dtype=np.bool_))
    return source, target


@pytest.mark.parametrize("name", ["a800-pcie-ib-2x8", "cpu-100gbe-8", "mixed-pcie3-8"])
def test_bundles_load_every_link_as_their_messages_do(name: str) -> None:
    ranks = 8
    machine = shipped(name, spread(ranks, 1 if name == "mixed-pcie3-8" else 2))
    source, target = all_pairs_of(ranks)
    found = bundle_paths(machine, source, target, "default")
    expected = np.zeros(len(machine.links) + 1)
    for i, j in zip(source.tolist(), target.tolist(), strict=True):
        np.add.at(expected, list(machine.path(i, j).links), 1.0)
    for bundle in (found.sent, found.received):
        loaded = np.zeros(len(expected))
        for number in bundle.tolist():
            part = slice(*found.paths.pointer[number : number + 2])
            loaded[found.paths.link[part]] += found.paths.share[part]
        assert loaded == pytest.approx(expected)


def test_a_bundle_is_one_rank_and_one_host() -> None:
    machine = shipped("cpu-100gbe-8", hosts := spread(8, 4))
    source, target = all_pairs_of(8)
    found = bundle_paths(machine, source, target, "default")
    alike = {number: set() for number in (*found.sent.tolist(), *found.received.tolist())}
    for number, i, j in zip(found.sent.tolist(), source.tolist(), target.tolist(), strict=True):
        alike[number].add(("sent", i, hosts[j]))
    for number, i, j in zip(found.received.tolist(), source.tolist(), target.tolist(), strict=True):
        alike[number].add(("received", hosts[i], j))
    assert {len(same) for same in alike.values()} == {1}
    assert len(alike) == len(found.paths.pointer) - 1 == 2 * 8 * 4


def test_means_are_those_of_what_starts_together_in_a_bundle() -> None:
    starts, bundles = np.array([5, 5, 7, 5, 7]), np.array([1, 2, 1, 1, 1])
    assert even_out(starts, bundles, np.array([1.0, 9.0, 4.0, 3.0, 8.0])).tolist() == [2.0, 9.0, 6.0, 2.0, 6.0]


def test_with_one_rank_a_host_a_bundle_is_a_message() -> None:
    hosts = spread(8, 8)
    stats = statistics(hosts)
    prog, on = vanilla(stats), shipped("cpu-100gbe-8", hosts)
    one, other = (simulate(prog, on, stats=stats, epochs=2, bundle_above=above) for above in (0, NEVER))
    assert one.bundled
    assert not other.bundled
    for field in TRACE_SCHEMA:
        assert one.columns[field.name] == pytest.approx(other.columns[field.name], rel=1e-9, abs=2e-12), field.name


def near(found: Simulation, expected: Simulation) -> None:
    """Bytes are the same, the epoch within a percent; of each op the last end within 2 %, on average within 5 %."""
    for name in ("rank", "op_id", "bytes_sent", "messages"):
        assert np.array_equal(found.columns[name], expected.columns[name])
    assert found.epoch_s == pytest.approx(expected.epoch_s, rel=0.01)
    for op_id in np.unique(expected.columns["op_id"]):
        here = expected.columns["op_id"] == op_id
        ends = found.columns["ended_s"][here], expected.columns["ended_s"][here]
        assert ends[0].max() == pytest.approx(ends[1].max(), rel=0.02)
        assert ends[0].mean() == pytest.approx(ends[1].mean(), rel=0.05)
        assert ends[0] == pytest.approx(ends[1], rel=0.25), "a rank's own end, which bundles do not keep well"


@pytest.mark.parametrize("seed", range(2))
def test_a_dense_epoch_of_bundles_is_near_one_of_exact_messages(seed: int) -> None:
    program, machine, stats = planned(32, 4, None, seed, layers=2)
    bundled = simulate(program, machine, stats=stats, epochs=1, bundle_above=0)
    near(bundled, simulate(program, machine, stats=stats, epochs=1, window=0.0))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_320_ranks_that_all_talk_to_one_another(seed: int) -> None:
    program, machine, stats = planned(320, 40, None, seed, layers=1)
    bundled = simulate(program, machine, stats=stats, epochs=1)
    assert bundled.bundled, "102,080 messages a round"
    near(bundled, simulate(program, machine, stats=stats, epochs=1, bundle_above=NEVER))
