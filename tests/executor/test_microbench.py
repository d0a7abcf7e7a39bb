"""Micro-benchmarks: index streams have the locality that they claim, ranks time the same probes together."""

import json
import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from executor.microbench.facts import read_caches
from executor.microbench.sample import Sample, write_samples
from executor.microbench.streams import StreamSpec, make_stream
from executor.microbench.timing import Probe, expected, sample_of
from executor.microbench.world import World
from simgnn.analysis.fit_samples import read_samples
from simgnn.errors import HardwareError
from simgnn.graph.locality import reuse_profile


def test_local_streams_reuse_rows_sooner_than_random_ones() -> None:
    local = reuse_profile(make_stream(StreamSpec(4000, 4000, 10, local=0.95, band=50), 0).check())
    anywhere = reuse_profile(make_stream(StreamSpec(4000, 4000, 10), 0).check())
    assert local[8] > 0.8
    assert anywhere[8] < 0.2


def test_skewed_streams_have_hubs_and_uneven_degrees() -> None:
    even = make_stream(StreamSpec(2000, 2000, 20), 0)
    skewed = make_stream(StreamSpec(2000, 2000, 20, skew=0.9, degree_skew=1.0), 0).check()
    assert even.degrees().max() == 20
    assert skewed.degrees().max() > 60
    assert np.bincount(skewed.indices).max() > 4 * np.bincount(even.indices).max()


def test_the_same_seed_makes_the_same_stream() -> None:
    spec = StreamSpec(300, 500, 7, local=0.5, skew=0.5)
    assert np.array_equal(make_stream(spec, 3).indices, make_stream(spec, 3).indices)


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


def _rank(rank: int, port: int, out: str) -> None:
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    from executor.microbench.dense import matmul_probes
    from executor.microbench.facts import read_facts
    from executor.microbench.network import network_probes
    from executor.microbench.pool import Pool
    from executor.microbench.timing import Plan, measure
    from executor.microbench.world import join

    world = join("gloo")
    probes = [
        *matmul_probes(Pool(1 << 16, world.device), [(50, 20, 10)]),
        *matmul_probes(Pool(1 << 16, world.device), [(50, 20, 10)], who="alone"),
        *network_probes(2, [1024, 65536], [32], seed=0),
    ]
    samples = measure(probes, world, Plan(budget_s=1.0, least=2, most=2))
    header = {
        "started": "2026-01-01T00:00:00+00:00",
        "facts": read_facts(world.device),
        "backend": world.backend,
        "ranks": world.ranks,
        "threads": world.threads,
        "quick": True,
    }
    if rank == 0:
        write_samples(Path(out), header, samples)
    world.barrier()


def test_two_ranks_measure_together(tmp_path: Path) -> None:
    from executor.microbench.world import free_port

    out = tmp_path / "samples.json"
    context = multiprocessing.get_context("spawn")
    port = free_port()
    ranks = [context.Process(target=_rank, args=(rank, port, str(out))) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(timeout=90)
        assert process.exitcode == 0
    found = read_samples(out)
    assert found.ranks == 2
    primitives = {sample.primitive for sample in found.samples}
    assert {"matmul", "send", "exchange", "allreduce", "broadcast", "allgather", "barrier"} <= primitives
    assert {sample.active for sample in found.samples if sample.primitive == "matmul"} == {1, 2}
    assert all(sample.repeats >= 2 and sample.seconds > 0 for sample in found.samples)
    assert not list(tmp_path.glob(".samples*")), "temporary files stay behind"


def test_a_foreign_file_is_refused_with_the_field(tmp_path: Path) -> None:
    path = tmp_path / "samples.json"
    sample = Sample("matmul", "forward", {"rows": 1}, 2, 2, 1, -1.0, 1.0, 0.0, 3)
    write_samples(path, {"facts": {}}, [sample])
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
    world = World(0, 2, torch.device("cpu"), "gloo", 1, same_host=True)
    sample = sample_of(probe, [([0.0], [0.001]), ([5.0], [5.002])], world)
    assert sample.seconds == pytest.approx(0.001)
    assert sample.last_s == pytest.approx(0.002)
