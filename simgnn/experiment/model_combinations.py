"""Faults between the fields of ``[model]`` that say what follows its layers."""

from collections.abc import Mapping
from typing import Any

from simgnn.experiment.batch_combinations import Faults
from simgnn.model.spec import BUILT_IN_LAYERS
from simgnn.policies.base import chosen


def following_faults(values: Mapping[str, Any]) -> Faults:
    """Activation and dropout are of built-in layers."""
    model = values["model"]
    if model is None:
        return
    for name in chosen(model, ["activation", "dropout"]):
        value = getattr(model, name)
        got = f"'{value}'" if isinstance(value, str) else value
        default = "'auto'" if name == "activation" else 0
        if model.kind not in BUILT_IN_LAYERS:
            yield (
                ("model", name),
                f"got {got} with model.kind = '{model.kind}', expected {default}: what follows "
                f"{', '.join(BUILT_IN_LAYERS)}; a layer of your own does that in its update",
            )
