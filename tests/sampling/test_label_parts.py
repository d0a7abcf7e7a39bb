"""Rows of other hosts that samples from labelled vertices need, against batches counted one by one."""

import numpy as np
import pytest

from simgnn.graph.generators.generate import generate
from simgnn.graph.generators.recipes import Communities
from simgnn.graph.graph import MASKS
from simgnn.sampling.batches.plan import SamplingPlan
from simgnn.sampling.draw.sampler import Sampler
from simgnn.sampling.fetches.label_parts import Draws, label_parts

GRAPH = generate(Communities(vertices=600, edges=3000, classes=4, feature_width=0))
HOSTS = np.array([0, 0, 1])
OWNER = np.random.default_rng(0).integers(0, 3, 600).astype(np.int32)


def test_rows_are_those_of_all_batches_of_a_pass() -> None:
    draws = Draws((3, 2), 20, 7, most_batches=1000)
    found = label_parts("mine", GRAPH, OWNER, HOSTS, draws)
    assert found.exact
    assert found.vertices == tuple(np.bincount(OWNER).tolist())
    sampler = Sampler(GRAPH.csr, (3, 2))
    for name in MASKS:
        mask = getattr(GRAPH, f"{name}_mask")
        assert getattr(found, name) == tuple(np.bincount(OWNER[mask], minlength=3).tolist())
        workers = tuple(np.flatnonzero(mask & (rank == OWNER)) for rank in range(3))
        plan = SamplingPlan(GRAPH.csr, OWNER, workers, (3, 2), 20, 7)
        rows = 0
        for rank in range(3):
            epoch = plan.epoch(rank, 0)
            for batch in range(len(epoch)):
                rows += sum(HOSTS[OWNER[vertex]] != HOSTS[rank] for vertex in epoch.sample(batch, sampler).vertices)
        assert found.rows_from[name] == rows > 0


def test_some_batches_estimate_all() -> None:
    exact = label_parts("mine", GRAPH, OWNER, HOSTS, Draws((3, 2), 4, 7, most_batches=1000))
    some = label_parts("mine", GRAPH, OWNER, HOSTS, Draws((3, 2), 4, 7, most_batches=6))
    assert not some.exact
    for name in MASKS:
        assert some.rows_from[name] == pytest.approx(exact.rows_from[name], rel=0.15)


def test_one_host_needs_no_rows_and_without_draws_there_are_none() -> None:
    assert set(label_parts("mine", GRAPH, OWNER, np.zeros(3, np.int64), Draws((3, 2), 20, 7)).rows_from.values()) == {0}
    assert label_parts("mine", GRAPH, OWNER, HOSTS, None).rows_from == {}
