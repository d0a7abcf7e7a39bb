"""Combinations without meaning are refused, whoever wrote the policies."""

from pathlib import Path

import pytest

from simgnn.errors import ConfigError
from simgnn.experiment.load import load_experiment
from tests.extension.worlds import outside

KEPT, CODEC = "freshness.kind=my_policies.every_kth:EveryKth", "codec.kind=my_policies.top_k:TopK"
OWN = "schedule.kind=my_policies.own_first:OwnFirst"
ROUNDS = "communication.kind=my_policies.two_rounds:TwoRounds"
CASES = {
    "rows where blocks move": (
        "freshness.kind", KEPT, "partition.kind=block-row", "communication.kind=block-broadcast"
    ),
    "rows where batches move": (
        "codec.kind", CODEC, "batching.kind=sampled", "communication.kind=store", "placement.kind=store"
    ),
    "an edge-cut where sums are completed": (
        "partition.kind", "partition.kind=my_policies.stripes:Stripes", "communication.kind=master-mirror"
    ),
    "a vertex-cut where halos move": ("partition.kind", "partition.kind=ebv", ROUNDS),
    "own rows first where sums move": ("schedule.kind", OWN, "partition.kind=ebv", "communication.kind=master-mirror"),
    "own rows first where blocks move": (
        "schedule.kind", OWN, "partition.kind=block-row", "communication.kind=block-broadcast"
    ),
    "halo rows beside sums, of a vertex-cut": (
        "schedule.kind", "schedule.kind=pipelined", "partition.kind=ebv", "communication.kind=master-mirror"
    ),
    "a model that aggregates first": ("model.kind", "model.kind=gin", ROUNDS),
    "a store of batches on the full graph": ("placement.kind", "placement.kind=my_policies.bounded_store:BoundedStore"),
    "an option out of bounds": ("codec.keep", CODEC, "codec.keep=0"),
    "an option that there is not": ("freshness.shares", KEPT, "freshness.shares=1"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_key_is_named(case: str, tmp_path: Path) -> None:
    outside(tmp_path)
    key, *settings = CASES[case]
    with pytest.raises(ConfigError) as caught:
        load_experiment("vanilla", settings)
    assert caught.value.exit_status == 2
    assert any(f"{key}: " in problem for problem in caught.value.problems)
