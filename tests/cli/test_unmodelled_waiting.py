"""What a profile without loads leaves out of programs whose streams talk between hosts at once."""

import tomllib
from dataclasses import replace
from pathlib import Path

from programs import prefetched_step
from sim.planned import statistics, vanilla

from simgnn.api.predict import unmodelled_waiting
from simgnn.hardware.profile.profile import parse_profile

PROFILE = Path(__file__).resolve().parent.parent / "hardware" / "data" / "invented-8x8.toml"


def test_only_several_streams_between_hosts_over_links_without_a_load_are_told() -> None:
    table = tomllib.loads(PROFILE.read_text())
    profile, program = parse_profile(table), prefetched_step.build(2)
    (sentence,) = unmodelled_waiting(program, profile)
    assert sentence.startswith("streams fetch and grad talk between hosts at once")
    assert "states no load of ethernet" in sentence
    assert unmodelled_waiting(replace(program, hosts=(0, 0)), profile) == []
    assert unmodelled_waiting(vanilla(statistics([0, 1])), profile) == []
    table["links"]["ethernet"]["load"] = {"source": "measured", "queues": [{"messages": 1, "size": "90 kB"}]}
    assert unmodelled_waiting(program, parse_profile(table)) == []
