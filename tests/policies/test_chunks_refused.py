"""Combinations with training chunk by chunk that mean nothing, or are not built, are refused with their key."""

import pytest

from simgnn.errors import ConfigError
from simgnn.experiment.load import load_experiment

REFUSED = {
    "partition.kind": ["partition.kind=metis"],
    "partition.include_self": ["partition.include_self=false"],
    "communication.kind": ["placement.kind=host-offload", "communication.kind=halo"],
    "placement.kind": ["placement.kind=device"],
    "placement.intermediates": ["model.kind=gat", "placement.intermediates=hybrid"],
    "placement.topology": ["placement.topology=streamed"],
    "communication.dedup": ["communication.dedup=none"],
    "model.order": ["model.order=transform-first"],
    "freshness.kind": ["freshness.kind=one-epoch-stale"],
    "codec.kind": ["codec.kind=linear"],
    "schedule.kind": ["schedule.kind=pipelined"],
}


@pytest.mark.parametrize(("key", "settings"), REFUSED.items())
def test_refused_with_the_key(key: str, settings: list[str]) -> None:
    with pytest.raises(ConfigError) as raised:
        load_experiment("hongtu", settings, ranks=2)
    wanted = "placement.kind" if key == "communication.kind" else key
    assert any(wanted in problem for problem in raised.value.problems), raised.value.problems


def test_the_system_as_shipped_is_accepted() -> None:
    experiment = load_experiment("hongtu", ranks=2)
    assert experiment.communication.moves == "chunks"
    assert not experiment.schedule.sums_own_first


@pytest.mark.parametrize("dedup", ["none", "reuse", "auto"])
def test_modes_that_are_not_built_are_refused(dedup: str) -> None:
    with pytest.raises(ConfigError, match=r"communication\.dedup"):
        load_experiment("hongtu", [f"communication.dedup={dedup}"], ranks=2)
