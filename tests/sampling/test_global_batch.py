"""A batch of all ranks together: divided by P, the rest to the first ranks (docs/systems/distdgl.md)."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from sampling_graphs import hubs, owners

from simgnn.errors import ConfigError
from simgnn.partition.partition import Partition
from simgnn.policies.batching.sampled import Sampled
from simgnn.sampling.batches.plan import PLAN, SamplingPlan, open_plan, save_plan
from simgnn.sampling.batches.presample import open_part, presample, settings_of

HOSTS = np.arange(3)
TRAIN = np.sort(np.random.default_rng(3).permutation(300)[:110])


def planned(**options: object) -> SamplingPlan:
    """Three ranks of 37, 37 and 36 training vertices."""
    partition = Partition("edge-cut", 3, owners(300, 3))
    return Sampled(fanouts=(5, 3), **options).plan(hubs(), TRAIN, partition, HOSTS, 11)


@given(st.integers(1, 5000), st.integers(1, 64))
def test_sizes_add_up_and_the_first_ranks_have_one_more(whole: int, ranks: int) -> None:
    batching = Sampled(global_batch=whole)
    if whole < ranks:
        with pytest.raises(ConfigError, match=rf"batching\.global_batch: got {whole} with {ranks} ranks, expected at"):
            batching.sizes_of(ranks)
        return
    found = batching.sizes_of(ranks)
    sizes = [found] * ranks if isinstance(found, int) else list(found)
    assert sum(sizes) == whole
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] == (whole % ranks > 0) == (not isinstance(found, int))


def test_either_size_is_told() -> None:
    with pytest.raises(ValidationError, match=r"global_batch: got 30 with batching\.batch_size = 7, expected only one"):
        Sampled(global_batch=30, batch_size=7)
    assert Sampled(global_batch=30, batch_size=1000).sizes_of(4) == (8, 8, 7, 7)  # a default is no choice
    assert Sampled(batch_size=7).sizes_of(4) == 7


def test_every_training_vertex_is_a_seed_once_and_steps_cover_all() -> None:
    plan = planned(global_batch=26)
    assert plan.batch_size == (9, 9, 8)
    wanted = [-(-len(mine) // size) for mine, size in zip(plan.workers, (9, 9, 8), strict=True)]
    assert [plan.batches(worker) for worker in range(3)] == wanted
    assert (plan.steps, plan.trained) == (max(wanted), 110)
    for epoch in range(2):
        seeds = [v for w in range(3) for i in range(plan.batches(w)) for v in plan.epoch(w, epoch).seeds(i).tolist()]
        assert sorted(seeds) == TRAIN.tolist()
    for step in range(4):  # all are full
        assert sum(len(plan.epoch(worker, 0).seeds(step)) for worker in range(3)) == 26
    drop = planned(global_batch=26, last="drop")
    assert ([drop.batches(worker) for worker in range(3)], drop.trained) == ([4, 4, 4], 4 * 26)
    assert planned(global_batch=108, last="drop").steps == 1
    with pytest.raises(ConfigError, match=r"'drop' with batching\.global_batch = 112, .* a rank has 3[67] vertices"):
        planned(global_batch=112, last="drop")  # rank 0 would need 38


def test_batches_of_equal_sizes_are_those_of_that_batch_size() -> None:
    """Kept batches serve both; those of other sizes are others."""
    assert settings_of(planned(global_batch=27), "s") == settings_of(planned(batch_size=9), "s")
    told = settings_of(planned(global_batch=26), "s")
    assert told["batch_size"] == [9, 9, 8]
    assert {key for key in told if told[key] != settings_of(planned(batch_size=9), "s")[key]} == {"batch_size"}


def test_kept_batches_are_never_those_of_another_size(tmp_path: Path) -> None:
    plan, folder = planned(global_batch=26), tmp_path / "batches"
    made = presample(plan, "s", folder, 1)
    for worker, mine in enumerate(plan.workers):
        sizes = open_part(folder, 0, worker).rows[:, 0].tolist()
        assert sum(sizes) == len(mine)
        assert set(sizes[:-1]) == {plan.size_of(worker)}
    assert presample(plan, "s", folder, 1).digest == made.digest
    back = open_plan(save_plan(plan, "s", folder / PLAN))
    assert back.batch_size == plan.batch_size
    for other in (replace(plan, batch_size=9), replace(plan, batch_size=(9, 8, 9))):
        with pytest.raises(ConfigError, match=r"batch_size: there \[9, 9, 8\], here"):
            presample(other, "s", folder, 1)
        with pytest.raises(ConfigError, match=r"batch_size: there \[9, 9, 8\], here"):
            save_plan(other, "s", folder / PLAN)
