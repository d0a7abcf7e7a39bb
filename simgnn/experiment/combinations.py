"""Combinations that have no meaning, refused when an experiment is loaded, each with its reason."""

from collections.abc import Mapping
from typing import Any

from simgnn.experiment.batch_combinations import (
    Faults,
    embedding_faults,
    fanout_faults,
    slot_faults,
    training_faults,
)
from simgnn.experiment.model_combinations import following_faults
from simgnn.experiment.problems import Origin, line
from simgnn.experiment.slots import kinds
from simgnn.model.spec import BUILT_IN_LAYERS
from simgnn.partition.kinds import PARTITION_KINDS
from simgnn.policies.communication.base import Communication
from simgnn.policies.freshness.adaptive_vertex import AdaptiveVertex
from simgnn.policies.freshness.skip_broadcast import SkipBroadcast
from simgnn.policy import chosen

WHY_NOT: Mapping[str, str] = {
    "edge-cut": "divides vertices (edge-cut): a vertex-cut has no single rank that holds all in-edges of a vertex",
    "vertex-cut": "divides edges (vertex-cut): an edge-cut has no masters and mirrors that share the in-edges",
}
"""Cut -> what a communication that needs it expects, and why the other one will not do."""


def combination_problems(values: Mapping[str, Any], origin: Origin, trains: bool = True) -> list[str]:
    """Faults between fields. ``values``: section or slot -> checked value, None where it has faults of its own.

    ``trains``: whether the partition is to be trained on, so that it must suit the communication.
    """
    checks = (
        _metis_constraints, _hidden, _gin, _gat, _exchanged_rows, _resent_inputs, _replicas, _attention_codes,
        _momentum, _clipping, _statistics, _caches, _skipped_inputs, following_faults, fanout_faults, slot_faults,
        embedding_faults, *((_cut, _moved, training_faults) if trains else ()),
    )  # fmt: skip
    return [line(path, message, origin) for check in checks for path, message in check(values)]


def _cut(values: Mapping[str, Any]) -> Faults:
    partition, communication = values["partition"], values["communication"]
    if partition is None or communication is None:
        return
    if partition.cut != communication.cut:
        yield (
            ("partition", "kind"),
            f"got '{partition.kind}' with communication.kind = '{communication.kind}', {expected_cut(communication)}",
        )


def expected_cut(communication: Communication) -> str:
    """What partition a communication expects, why, and which kinds are of that cut."""
    fitting = ", ".join(kind for kind, policy in PARTITION_KINDS.items() if policy.cut == communication.cut)
    return f"expected a partition that {WHY_NOT[communication.cut]}; use {fitting}"


def _moved(values: Mapping[str, Any]) -> Faults:
    communication = values["communication"]
    for slot in ("freshness", "codec"):
        policy = values[slot]
        if communication is None or policy is None or communication.moves in policy.serves:
            continue
        what = "whole blocks of rows" if communication.moves == "blocks" else "listed rows"
        fitting = [kind for kind, other in kinds(slot).items() if communication.moves in getattr(other, "serves", ())]
        yield (
            (slot, "kind"),
            f"got '{policy.kind}' with communication.kind = '{communication.kind}', which moves {what}, expected one "
            f"of {', '.join(fitting)}: the other says nothing of those",
        )


def _clipping(values: Mapping[str, Any]) -> Faults:
    train, model, communication = values["train"], values["model"], values["communication"]
    if train is None or model is None:
        return
    if not train.clip_norm:
        if chosen(train, ["clip_scale"]):
            yield (
                ("train", "clip_scale"),
                f"got '{train.clip_scale}' with train.clip_norm = 0, expected none: nothing is clipped; remove it, or "
                "give train.clip_norm",
            )
        return
    if communication is not None and communication.cut == "vertex-cut":
        yield (
            ("train", "clip_norm"),
            f"got {train.clip_norm} with communication.kind = '{communication.kind}', expected 0: a rank holds parts "
            "of gradient rows, whose norm says nothing of the whole",
        )
    if model.kind not in BUILT_IN_LAYERS:
        yield (
            ("train", "clip_norm"),
            f"got {train.clip_norm} with model.kind = '{model.kind}', expected 0: gradients are clipped inside "
            f"{', '.join(BUILT_IN_LAYERS)}; in a layer of your own, clip there",
        )


def _metis_constraints(values: Mapping[str, Any]) -> Faults:
    partition = values["partition"]
    if partition is None or partition.kind != "metis":
        return
    if len(partition.balance) > 1 and "imbalance" in partition.model_fields_set:
        yield (
            ("partition", "imbalance"),
            f"got {partition.imbalance} with {len(partition.balance)} quantities in partition.balance, expected it "
            "only with one: DGL's METIS fixes its own; leave it out or balance one quantity",
        )


def _hidden(values: Mapping[str, Any]) -> Faults:
    model = values["model"]
    if model is not None and isinstance(model.hidden, tuple) and len(model.hidden) != model.layers - 1:
        yield (
            ("model", "hidden"),
            f"got {len(model.hidden)} widths, expected {model.layers - 1}: one for each layer but the last "
            f"(model.layers = {model.layers}); give one number for equal widths",
        )


def _gin(values: Mapping[str, Any]) -> Faults:
    model = values["model"]
    if model is not None and model.kind == "gin" and model.order == "transform-first":
        yield (
            ("model", "order"),
            "got 'transform-first' with model.kind = 'gin', expected 'auto' or 'aggregate-first': its perceptron is "
            "not linear, so it cannot be moved before the sum",
        )


def _gat(values: Mapping[str, Any]) -> Faults:
    model = values["model"]
    if model is None:
        return
    if model.kind != "gat":
        # an experiment that is read back states every field, so a default is not taken for a choice
        if model.heads != type(model).model_fields["heads"].default:
            yield (
                ("model", "heads"),
                f"got {model.heads} with model.kind = '{model.kind}', expected none: only gat has attention heads",
            )
        return
    if model.order == "aggregate-first":
        yield (
            ("model", "order"),
            "got 'aggregate-first' with model.kind = 'gat', expected 'auto' or 'transform-first': attention compares "
            "transformed rows",
        )
    uneven = [width for width in dict.fromkeys(model.hidden_widths()) if width % model.heads]
    if uneven and (isinstance(model.hidden, int) or len(model.hidden) == model.layers - 1):
        yield (
            ("model", "hidden"),
            f"got {', '.join(map(str, uneven))} with model.heads = {model.heads}, expected multiples of it: heads "
            "share a layer's width evenly",
        )


def _exchanged_rows(values: Mapping[str, Any]) -> Faults:
    model, communication = values["model"], values["communication"]
    if communication is None or communication.kind != "halo" or communication.rows != "transformed":
        return
    if communication.resend_inputs:
        yield (
            ("communication", "resend_inputs"),
            "got true with communication.rows = 'transformed', expected false: no input rows are sent at all",
        )
    if model is not None and (model.order == "aggregate-first" or model.kind == "gin"):
        why = "model.kind = 'gin'" if model.kind == "gin" else "model.order = 'aggregate-first'"
        yield (
            ("communication", "rows"),
            f"got 'transformed' with {why}, expected 'auto' or 'input': rows are aggregated before "
            "they are transformed",
        )


def _resent_inputs(values: Mapping[str, Any]) -> Faults:
    communication, freshness, codec = values["communication"], values["freshness"], values["codec"]
    if communication is None or freshness is None or codec is None or not communication.resends_inputs():
        return
    if communication.moves != "rows":
        return  # whole blocks of inputs are sent, or skipped, like any other
    if freshness.kind != "always" or codec.encodes:
        what = f"codec.kind = '{codec.kind}'" if freshness.kind == "always" else f"freshness.kind = '{freshness.kind}'"
        yield (
            ("communication", "resend_inputs"),
            f"got true with {what}, expected false: input rows never change, so they are sent once, exactly; leave it "
            "out, or send all rows as they are (freshness.kind = 'always', codec.kind = 'none')",
        )


def _skipped_inputs(values: Mapping[str, Any]) -> Faults:
    model, communication, freshness = values["model"], values["communication"], values["freshness"]
    if model is None or communication is None or not isinstance(freshness, SkipBroadcast):
        return
    if communication.moves != "blocks" or not chosen(freshness, ["inputs"]):
        return
    if freshness.skip == "gradients":
        why = "freshness.skip = 'gradients', which sends all rows forward"
    elif model.kind == "gat" or model.order == "transform-first":
        what = "model.kind = 'gat'" if model.kind == "gat" else "model.order = 'transform-first'"
        why = f"{what}, which sends transformed rows in place of input features"
    elif not communication.resends_inputs():
        why = "communication.resend_inputs = false, which sends input features once"
    else:
        return
    yield ("freshness", "inputs"), f"got '{freshness.inputs}' with {why}, expected none: it decides nothing; remove it"


def _replicas(values: Mapping[str, Any]) -> Faults:
    communication, freshness, codec = values["communication"], values["freshness"], values["codec"]
    if communication is None or freshness is None or codec is None:
        return
    if communication.cut != "vertex-cut":
        return
    forwards = isinstance(freshness, AdaptiveVertex)  # what was encoded once is handed on as it is
    if communication.exchange != "direct" and not codec.repeatable and not forwards:
        fitting = ", ".join(kind for kind, other in kinds("codec").items() if getattr(other, "repeatable", False))
        yield (
            ("communication", "exchange"),
            f"got '{communication.exchange}' with codec.kind = '{codec.kind}', expected 'direct' or one of {fitting}: "
            "rows that pass through another rank are encoded twice, and copies of a vertex would differ; or send "
            "differences (freshness.kind = 'adaptive-vertex'), which are handed on as they are",
        )


def _attention_codes(values: Mapping[str, Any]) -> Faults:
    model, communication, codec = values["model"], values["communication"], values["codec"]
    if model is None or communication is None or codec is None or model.kind != "gat" or codec.relative:
        return
    if communication.cut == "edge-cut" and communication.moves == "rows":
        return
    fitting = ", ".join(kind for kind, other in kinds("codec").items() if getattr(other, "relative", False))
    why = (
        "sums of attention share a row with the sums of weights that divide them, and one range for both rounds a "
        "small sum of weights to nothing"
        if communication.cut == "vertex-cut"
        else "gradients share a row with the scores that they belong to, and one range for both rounds small gradients "
        "to nothing"
    )
    yield (
        ("codec", "kind"),
        f"got '{codec.kind}' with model.kind = 'gat' and communication.kind = '{communication.kind}', expected one of "
        f"{fitting}: {why}; or use communication.kind = 'halo' on an edge-cut",
    )


def _caches(values: Mapping[str, Any]) -> Faults:
    communication, freshness, codec = values["communication"], values["freshness"], values["codec"]
    cached = isinstance(freshness, AdaptiveVertex)
    if codec is not None and freshness is not None and codec.keeps_exact_rows and not cached:
        yield (
            ("codec", "feedback"),
            f"got false with freshness.kind = '{freshness.kind}', expected true: only caches of rows (freshness.kind = "
            "'adaptive-vertex') send differences, whose errors can be fed back",
        )
    if cached and communication is not None and freshness.fold_on_active and communication.cut != "vertex-cut":
        yield (
            ("freshness", "fold_on_active"),
            f"got true with communication.kind = '{communication.kind}', expected false: only masters that add up "
            "parts (communication.kind = 'master-mirror') have one of their own to add",
        )


def _momentum(values: Mapping[str, Any]) -> Faults:
    train = values["train"]
    if train is not None and train.momentum and train.optimizer != "sgd":
        yield (
            ("train", "momentum"),
            f"got {train.momentum} with train.optimizer = '{train.optimizer}', expected 0: only sgd has momentum",
        )


def _statistics(values: Mapping[str, Any]) -> Faults:
    graph = values["graph"]
    if graph is None or not graph.source.startswith("stats:"):
        return
    for key in graph.options():
        yield (
            ("graph", key),
            f"got a value with graph.source = '{graph.source}', expected none: a statistics file says it "
            "all; remove it",
        )
