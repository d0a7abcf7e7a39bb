"""Options that another choice leaves without effect.

Whoever wrote one is told; where a shipped system did, and the user changed what it needs, it goes back to its default.
What only the graph decides (which side of a layer is narrower, sparse features) is not known here.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from simgnn.experiment.problems import Origin, line, shown
from simgnn.model.spec import BUILT_IN_LAYERS
from simgnn.policies.batching.neighbours import NeighbourSampling
from simgnn.policies.communication.block_broadcast import BlockBroadcast
from simgnn.policies.communication.master_mirror import ONE_HOST, MasterMirror
from simgnn.policy import chosen

Stated = Callable[[tuple[str, ...]], bool]
"""Whether a key path was written by a user: in a file that is not a shipped system, or on the command line."""
Idle = Iterator[tuple[tuple[str, str], str, str]]
"""Key path, the choice that leaves it without effect, why."""


def settled(values: Mapping[str, Any], origin: Origin, stated: Stated) -> tuple[dict[str, Any], list[str]]:
    """``values`` (section or slot -> checked value) less the idle options of shipped systems, and the faults of
    those that a user has set to something else than their default."""
    problems: list[str] = []
    kept = dict(values)
    for check in (_resent_inputs, _weight_gradient, _hoist, _exchange, _between_layers):
        for path, choice, why in check(kept):
            section, key = path
            options = kept[section]
            default = type(options).model_fields[key].default
            if stated(path):
                got = shown(getattr(options, key))
                told = f"got {got} with {choice}, expected {shown(default)}, the default: {why}"
                problems.append(line(path, told, origin))
            else:
                kept[section] = options.model_copy(update={key: default})
    return kept, problems


def _resent_inputs(values: Mapping[str, Any]) -> Idle:
    model, communication = values["model"], values["communication"]
    if model is None or not isinstance(communication, BlockBroadcast) or not communication.resend_inputs:
        return
    choice = _transforms_first(model)
    if choice:
        why = "layer 1 broadcasts transformed rows in place of input features; remove it"
        yield ("communication", "resend_inputs"), choice, why


def _weight_gradient(values: Mapping[str, Any]) -> Idle:
    model, communication = values["model"], values["communication"]
    if model is None or not isinstance(communication, BlockBroadcast) or not chosen(communication, ["weight_gradient"]):
        return
    choice = "model.kind = 'gin'" if model.kind == "gin" else _transforms_first(model)
    if choice:
        why = "weights learn from kept sums in any case" if model.kind == "gin" else "no sum of input rows is made"
        yield ("communication", "weight_gradient"), choice, f"{why}; remove it"


def _hoist(values: Mapping[str, Any]) -> Idle:
    model, communication, batching = values["model"], values["communication"], values["batching"]
    if model is None or not chosen(model, ["hoist"]):
        return
    choice = _transforms_first(model)
    if isinstance(batching, NeighbourSampling):
        choice = f"batching.kind = '{batching.label}'"
    elif not choice and model.kind not in BUILT_IN_LAYERS and model.order != "aggregate-first":
        choice = f"model.kind = '{model.kind}' and model.order = '{model.order}'"
    elif not choice and communication is not None and communication.resends_inputs():
        choice = "communication.resend_inputs = true"
    elif not choice and communication is not None and communication.input_rows() == "transformed":
        choice = "communication.rows = 'transformed'"
    if choice:
        yield ("model", "hoist"), choice, "layer 1 has no sum that stays the same over epochs; remove it"


def _exchange(values: Mapping[str, Any]) -> Idle:
    communication, cluster = values["communication"], values["cluster"]
    if cluster is None or cluster.hosts != 1 or not isinstance(communication, MasterMirror):
        return
    if chosen(communication, ["exchange"]):
        yield ("communication", "exchange"), "cluster.hosts = 1", ONE_HOST


def _between_layers(values: Mapping[str, Any]) -> Idle:
    model = values["model"]
    if model is not None and model.layers == 1:
        for name in chosen(model, ["activation", "dropout"]):
            yield ("model", name), "model.layers = 1", "it follows every layer but the last, so none; remove it"


def _transforms_first(model: Any) -> str:
    """The choice by which every layer transforms its rows before it sums them; "" where there is none."""
    if model.kind == "gat":
        return "model.kind = 'gat'"
    return "model.order = 'transform-first'" if model.order == "transform-first" else ""
