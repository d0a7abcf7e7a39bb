"""Which slots make evaluations read other rows than training, so that results say what one costs."""

import pytest

from simgnn.experiment.load import load_experiment
from simgnn.experiment.slots import SLOTS


@pytest.mark.parametrize(
    ("system", "settings", "apart"),
    [
        ("vanilla", [], set()),
        ("cagnet", [], set()),
        ("distdgl", [], set()),
        ("vanilla", ["codec.kind=bfloat16"], {"codec"}),
        ("adaqp", [], {"codec"}),
        ("pipegcn", [], {"freshness"}),
        ("sancus", [], {"freshness"}),
        ("bnsgcn", ["codec.kind=linear"], {"freshness", "codec"}),
    ],
)
def test_the_slots_are_known(system: str, settings: list[str], apart: set[str]) -> None:
    experiment = load_experiment(system, settings)
    found = {slot for slot in SLOTS if getattr(experiment, slot).evaluates_apart}
    assert found == apart
    assert all(getattr(experiment, slot).acts for slot in apart), "a run knows them by its plan"
