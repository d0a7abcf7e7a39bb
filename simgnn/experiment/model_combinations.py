"""Faults between the fields of ``[model]`` that say what follows its layers."""

from collections.abc import Mapping
from typing import Any

from simgnn.experiment.batch_combinations import Faults
from simgnn.experiment.problems import shown
from simgnn.model.spec import BUILT_IN_LAYERS
from simgnn.policy import chosen


def following_faults(values: Mapping[str, Any]) -> Faults:
    """Activation and dropout are of built-in layers."""
    model = values["model"]
    if model is None or model.kind in BUILT_IN_LAYERS:
        return
    for name, default in (("activation", "'auto'"), ("dropout", "0")):
        if chosen(model, [name]):
            yield (
                ("model", name),
                f"got {shown(getattr(model, name))} with model.kind = '{model.kind}', expected {default}: what follows "
                f"{', '.join(BUILT_IN_LAYERS)}; a layer of your own does that in its update",
            )
