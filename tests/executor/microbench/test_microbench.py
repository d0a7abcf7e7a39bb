"""Micro-benchmarks: index streams have the locality that they claim, ranks time the same probes together."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from executor.microbench.facts import count_sockets, read_caches
from executor.microbench.probes.aggregation import FULL_GRAPHS
from executor.microbench.probes.bench import MEASURES, Bench
from executor.microbench.probes.inputs import GraphSpec, StreamSpec
from executor.microbench.probes.sampling import sampling_probes
from executor.microbench.samples import Sample, write_samples
from executor.microbench.timing import Probe, expected, samples_of
from executor.microbench.world import World
from executor.world.machines import host_numbers
from simgnn.analysis.fit.samples import read_samples
from simgnn.errors import HardwareError
from simgnn.graph.locality import reuse_profile
from simgnn.hardware.price.work import features
from simgnn.hardware.primitives import PRIMITIVES
from tests.executor.harness import quiet_port, run_ranks


def test_local_streams_reuse_rows_sooner_than_random_ones() -> None:
    local = reuse_profile(StreamSpec(4000, 4000, 10, local=0.95, band=50).csr(0).check())
    anywhere = reuse_profile(StreamSpec(4000, 4000, 10).csr(0).check())
    assert local[8] > 0.8
    assert anywhere[8] < 0.2


def test_skewed_streams_have_hubs_and_uneven_degrees() -> None:
    even = StreamSpec(2000, 2000, 20).csr(0)
    skewed = StreamSpec(2000, 2000, 20, skew=0.9, degree_skew=1.0).csr(0).check()
    assert even.degrees().max() == 20
    assert skewed.degrees().max() > 60
    assert np.bincount(skewed.indices).max() > 4 * np.bincount(even.indices).max()


def test_the_same_seed_makes_the_same_stream() -> None:
    spec = StreamSpec(300, 500, 7, local=0.5, skew=0.5)
    assert np.array_equal(spec.csr(3).indices, spec.csr(3).indices)


def test_caches_are_read_as_the_kernel_shows_them(tmp_path: Path) -> None:
    for index, (level, kind, size, shared) in enumerate(
        [("1", "Data", "32K", "0"), ("1", "Instruction", "32K", "0"), ("3", "Unified", "35M", "0-3,8")]
    ):
        folder = tmp_path / f"index{index}"
        folder.mkdir()
        for name, text in (("level", level), ("type", kind), ("size", size), ("shared_cpu_list", shared)):
            (folder / name).write_text(text + "\n")
    caches = read_caches(tmp_path)
    assert [(cache["level"], cache["size_bytes"], cache["sharers"]) for cache in caches] == [
        (1, 32 << 10, 1),
        (3, 35 << 20, 5),
    ]


def test_sockets_of_the_usable_cores_are_counted(tmp_path: Path) -> None:
    for core, package in enumerate("0011"):
        folder = tmp_path / f"cpu{core}" / "topology"
        folder.mkdir(parents=True)
        (folder / "physical_package_id").write_text(f"{package}\n")
    assert count_sockets([0, 1, 2, 3], tmp_path) == 2
    assert count_sockets([2, 3], tmp_path) == 1
    assert count_sockets([4], tmp_path) is None


def _rank(rank: int, ranks: int, port: int, out: str) -> None:
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    from executor.microbench.facts import read_facts
    from executor.microbench.probes.bench import Bench
    from executor.microbench.probes.dense import matmul_probes
    from executor.microbench.probes.network import Circle
    from executor.microbench.timing import Plan, measure
    from executor.microbench.world import join

    world = join("gloo")
    # were they of two kernels, their clocks would be asked; here both are one
    assert abs(replace(world, kernels=("one", "other")).clock_ahead_s()) < 1.0
    assert world.clock_ahead_s() == 0.0
    circle = Circle(2, world.group((0, 1)), "host")
    products = list(matmul_probes(Bench(world, 1 << 16, quick=True), 50, 20, 10))
    probes = [
        *products,
        *(replace(probe, who="alone") for probe in products),
        *circle.send_probes([1024, 65536]),
        *circle.exchange_probes([1024, 65536], seed=0),
        *circle.collective_probes([32]),
    ]
    samples = measure(probes, world, Plan(budget_s=30.0, least=2, most=2))
    header = {
        "started": "2026-01-01T00:00:00+00:00",
        "hosts": [{"ranks": [0, 1], "facts": read_facts(world.device)}],
        "backend": world.backend,
        "ranks": world.ranks,
        "threads": world.threads,
        "quick": True,
    }
    if rank == 0:
        write_samples(Path(out), header, samples)
    world.barrier()


def test_two_ranks_measure_together(tmp_path: Path) -> None:
    out = tmp_path / "samples.json"
    run_ranks(2, _rank, tmp_path / "ranks", quiet_port(), str(out), joined=False)
    found = read_samples(out)
    assert found.ranks == 2
    primitives = {sample.primitive for sample in found.samples}
    assert {"matmul", "send", "exchange", "allreduce", "broadcast", "allgather", "barrier"} <= primitives
    assert {sample.active for sample in found.samples if sample.primitive == "matmul"} == {1, 2}
    assert all(sample.repeats >= 2 and sample.seconds > 0 for sample in found.samples)
    assert not list(tmp_path.glob(".samples*")), "temporary files stay behind"


def test_a_foreign_file_is_refused_with_the_field(tmp_path: Path) -> None:
    path = tmp_path / "samples.json"
    sample = Sample("matmul", "forward", {"rows": 1}, (0,), 2, 2, 1, -1.0, 1.0, 0.0, 3)
    write_samples(path, {"hosts": []}, [sample])
    with pytest.raises(HardwareError, match="not a samples file"):
        read_samples(path)
    document = json.loads(path.read_text())
    assert document["samples"][0]["sizes"] == {"rows": 1}


def test_a_probe_takes_its_mean_time_and_leaves_out_what_lies_far_above_the_median():
    assert expected([1.0]) == 1.0
    assert expected([1.0, 1.1, 0.9, 1.0, 60.0]) == pytest.approx(1.0)
    assert expected([1.0, 1.2, 0.9, 1.0, 1.4]) == pytest.approx(1.1)
    assert expected([1.0] * 38 + [60.0] * 2) == pytest.approx(1.0)
    # two modes, as of messages that wait for a scheduler's tick: both count, but for one repeat in twenty
    assert expected([0.3, 0.4, 0.5, 4.4, 4.4] * 4) == pytest.approx(2.0, abs=0.15)


def test_a_root_that_is_gone_before_the_last_rank_comes_waits_for_nobody():
    probe = Probe("broadcast", "broadcast", {"bytes": 32}, lambda world: None, group=True)
    (sample,) = samples_of(probe, [([0.0], [0.001]), ([5.0], [5.002])], world_of((0, 0)))
    assert sample.seconds == pytest.approx(0.001)
    assert sample.last_s == pytest.approx(0.002)


def world_of(hosts: tuple[int, ...]) -> World:
    return World(0, len(hosts), torch.device("cpu"), "gloo", (1,) * len(hosts), hosts)


def test_hosts_are_numbered_by_their_first_ranks():
    assert host_numbers(["b", "b", "a", "c", "a"]) == (0, 0, 1, 2, 1)
    world = world_of((0, 0, 1, 1))
    assert world.members == ((0, 1), (2, 3))
    assert world.leads


def test_every_host_measures_its_own_work():
    probe = Probe("matmul", "forward", {"rows": 1}, lambda world: None)
    parts = [([0.0], [1.0]), ([0.0], [1.0]), ([9.0], [12.0]), ([], [])]
    one, other = samples_of(probe, parts, world_of((0, 0, 1, 1)))
    assert (one.hosts, one.seconds, one.active, one.ranks) == ([0], 1.0, 2, 2)
    assert (other.hosts, other.seconds, other.active, other.ranks) == ([1], 3.0, 1, 2)


def test_a_probe_between_two_hosts_is_one_sample_of_both():
    probe = Probe("send", "one-way", {"bytes": 1}, lambda world: None, group=True, scope="all")
    parts = [([0.0], [0.5]), ([], []), ([0.25], [1.0])]
    (sample,) = samples_of(probe, parts, world_of((0, 1, 2)))
    assert (sample.hosts, sample.ranks) == ([0, 2], 2)
    assert sample.last_s == 0.75, "from the later start to the last end"


def test_sizes_that_slow_links_would_take_too_long_for_are_left_out():
    from executor.microbench.suite import FEWEST, FULL

    fast = FULL.affordable(1e-12)
    assert fast == FULL
    most = FULL.affordable(FULL.longest_s / (1 << 20))  # 1 MiB takes as long as is allowed
    assert max(most.messages) == max(most.collectives) == 1 << 20
    assert most.messages == tuple(size for size in FULL.messages if size <= 1 << 20)
    between = FULL.affordable(FULL.longest_s / (3 << 20))
    assert between.messages == (*most.messages, 1 << 21), "the largest power of two that is affordable"
    assert len(FULL.affordable(1.0).messages) == FEWEST


def test_drawing_is_measured_by_what_it_draws() -> None:
    world = world_of((0,))
    bench = Bench(world, 1 << 10, quick=True)
    few, every = (next(sampling_probes(bench, "communities", 400, 2_000, 50, fanout)) for fanout in (3, -1))
    assert (few.primitive, few.sizes["vertices"]) == ("sample", 50)
    assert few.sizes["edges"] <= 3 * 50 < every.sizes["edges"]
    run = few.make(world)
    assert run is not None
    first, second = run(), run()
    assert len(first.blocks[0].sources) == len(second.blocks[0].sources) == few.sizes["edges"]
    assert not np.array_equal(first.vertices, second.vertices)  # another draw each time


SMALL = {
    "spmm": (((0, StreamSpec(100, 120, 4)), 16), ((0, GraphSpec("communities", 300, 900, halo=0.1)), 8)),
    "sparse_matmul": ((60, 40, 5, 8),),
    "matmul": ((20, 10, 5),),
    "gather": ((20, 8, 50),),
    "encode": ((20, 16, 8),),
    "sample": (("communities", 400, 2_000, 50, 3),),
    "optimizer": ((100,),),
    "attention_maximum": (((0, StreamSpec(100, 120, 4)), 16, 1), ((0, StreamSpec(100, 120, 4)), 24, 3)),
    "attention_scores": ((16, 8, 2),),
}
"""Shapes of the first primitive of each measure, where they are not (rows, width)."""


@pytest.mark.slow
def test_a_full_calibration_measures_every_primitive() -> None:
    """Its probes run, and state the sizes that the primitive's features need; a quick one leaves out attention."""
    world = world_of((0,))
    bench = Bench(world, 1 << 20, quick=False)
    seen = set()
    for measure in MEASURES:
        for shape in SMALL.get(measure.primitives[0].name, ((20, 8),)):
            for probe in measure.probes(bench, *shape):
                run = probe.make(world)
                assert run is not None
                run()
                found = features(probe.primitive, probe.sizes, probe.locality)
                assert all((value >= 0).all() for value in found.values())
                assert (probe.locality is None) == (not PRIMITIVES[probe.primitive].per_cache[1:])
                seen.add(probe.primitive)
    assert seen == set(PRIMITIVES)
    assert {row for measure in MEASURES for row in measure.primitives} == set(PRIMITIVES.values())
    assert all(measure.full for measure in MEASURES)
    without = {row for measure in MEASURES if not measure.quick for row in measure.primitives}
    assert without == {row for row in PRIMITIVES.values() if row.stand_in is not None}
    assert all(width % heads == 0 for _, _, shapes in FULL_GRAPHS for width, heads in shapes)
