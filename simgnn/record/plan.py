"""``plan/plan.json``: what was planned, as :mod:`simgnn.experiment.directory` writes it."""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from simgnn.errors import ConfigError
from simgnn.experiment.directory import PLAN_FORMAT
from simgnn.experiment.problems import shown
from simgnn.experiment.sections import BUILT_IN_MODELS, MODEL_CLASS, TrainSection
from simgnn.experiment.slots import SLOTS
from simgnn.graph.graph import GraphFacts
from simgnn.hardware.problems import sentences
from simgnn.limits import MAX_RANKS
from simgnn.model.spec import LayerSpec
from simgnn.policy import Policy
from simgnn.registry import add_to_path, is_kind, policy_class, shipped

MOST_TOLD = 3
"""Faults of a file that are told: one that is damaged may have as many as keys."""
LAYER_NUMBERS = {"width_in": 1, "width_out": 1, "hidden": 0, "prepared_width": 0, "heads": 0, "gradient_limit": 0}
GRAPH_NUMBERS = {
    "vertices": 1, "edges": 0, "feature_width": 0, "feature_nonzeros": 0, "classes": 0, "train_vertices": 0,
    "validation_vertices": 0, "test_vertices": 0,
}  # fmt: skip
"""Field -> the least that it may be: a program could hold what is less, and only fail while it trains."""


def _sha256(text: str) -> str:
    if not re.fullmatch("[0-9a-f]{64}", text):
        raise ValueError(f"got {shown(text)}, expected a SHA-256: 64 digits in hexadecimal")
    return text


def _at_least(least: Mapping[str, int]) -> Callable[[Any], Any]:
    """A check of the numbers of a table; None is one that is not known."""

    def check(table: Any) -> Any:
        told = {name: getattr(table, name) for name in least}
        wrong = [name for name, number in told.items() if number is not None and not least[name] <= number < math.inf]
        if wrong:
            raise ValueError("\n".join(f"{one}: got {told[one]}, expected at least {least[one]}" for one in wrong))
        return table

    return check


def _known_layer(layer: LayerSpec) -> LayerSpec:
    if layer.kind not in BUILT_IN_MODELS and not MODEL_CLASS.fullmatch(layer.kind):
        raise ValueError(f"kind: got {shown(layer.kind)}, expected one of {', '.join(BUILT_IN_MODELS)}, or a class")
    if not 0 <= layer.dropout < 1:
        raise ValueError(f"dropout: got {layer.dropout}, expected 0, or a share below 1")
    return layer


Digest = Annotated[str, AfterValidator(_sha256)]
Text = Annotated[str, Field(min_length=1)]
Layer = Annotated[LayerSpec, AfterValidator(_at_least(LAYER_NUMBERS)), AfterValidator(_known_layer)]
Facts = Annotated[GraphFacts, AfterValidator(_at_least(GRAPH_NUMBERS))]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class BatchesTable(_Table):
    """Where a mini-batch run finds its sampling plan, its presampled batches, and the plan of its fetches (None: ranks
    ask one another); ``source``: digest of what they were drawn from."""

    plan: Text
    folder: Text
    fetches: Text | None
    source: Text


def _read(slot: str, policy: type[Policy], table: dict[str, Any]) -> Policy:
    try:
        return policy.model_validate_json(json.dumps(table), strict=True)
    except ValidationError as error:
        raise ValueError("\n".join(f"{slot}.{fault}" for fault in sentences(policy, error))) from error


class PlanFile(_Table):
    """The whole file.

    ``partition``, ``shards``: paths of artefacts, None in the plan of a simulation. ``cut_digest``, ``graph_digest``:
    None in that of one from a statistics file that does not say what it was counted from. ``policies``: slot -> kind
    and options of the policy that acts while training. ``code``: folders that the user's own among them lie in.
    ``batches``: None where no batches are trained on.
    """

    format: Literal[1]
    name: Text
    partition: Text | None
    partition_digest: Digest
    cut_digest: Digest | None
    graph_digest: Digest | None
    shards: Text | None
    ranks: Annotated[int, Field(ge=1, le=MAX_RANKS)]
    hosts: tuple[Annotated[int, Field(ge=0, lt=MAX_RANKS)], ...]
    layers: Annotated[tuple[Layer, ...], Field(min_length=1)]
    classes: Annotated[int, Field(ge=1)]
    multilabel: bool
    graph: Facts
    train: TrainSection
    policies: dict[str, dict[str, Any]]
    code: tuple[Text, ...] = ()
    batches: BatchesTable | None
    threads_per_rank: Annotated[int, Field(ge=1)] | None
    seed: Annotated[int, Field(ge=0, lt=2**63)]
    program_digest: Digest

    @field_validator("policies")
    @classmethod
    def _policies(cls, value: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """Options of shipped policies, checked; those of others as they are, since reading a plan imports no code."""
        found = {}
        for slot, table in value.items():
            kind = table.get("kind")
            if slot not in SLOTS or not is_kind(slot, kind):
                raise ValueError(f"{slot}: expected a policy of one of the slots {', '.join(SLOTS)}, with its kind")
            policy = shipped(slot).get(str(kind))
            found[slot] = table if policy is None else _read(slot, policy, table).model_dump(mode="json")
        return found

    def acting(self) -> dict[str, Policy]:
        """Slot -> the policy that acts while training. Imports the user's own ones, so it is for those that train."""
        for folder in self.code:
            add_to_path(folder)
        found = {}
        for slot, table in self.policies.items():
            try:
                found[slot] = _read(slot, policy_class(slot, table["kind"]), table)
            except (ValueError, ConfigError) as error:
                raise ConfigError(f"policies.{slot}: {error}") from error
        return found

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if len(self.hosts) != self.ranks:
            raise ValueError(f"hosts: got {len(self.hosts)} numbers, expected {self.ranks}, one a rank")
        if [layer.index for layer in self.layers] != list(range(1, len(self.layers) + 1)):
            raise ValueError("layers: expected them numbered 1, 2, ...")
        took, gave = [layer.width_in for layer in self.layers], [layer.width_out for layer in self.layers]
        if [*took[1:], self.classes] != gave:
            raise ValueError(f"layers: got rows of widths {gave} behind them, expected {[*took[1:], self.classes]}")
        for key in ("classes", "multilabel"):
            here, there = getattr(self, key), getattr(self.graph, key)
            if here != there:
                raise ValueError(f"{key}: got {shown(here)}, expected {shown(there)} as in graph.{key}")
        missing = [slot for slot in ("freshness", "codec") if slot not in self.policies]
        if missing:
            raise ValueError(f"policies: {' and '.join(missing)} missing")
        if self.partition is not None and (self.cut_digest is None or self.graph_digest is None):
            raise ValueError("cut_digest and graph_digest: got none, expected what names the cut and the graph")
        if self.shards is not None and ("batching" in self.policies) != (self.batches is not None):
            raise ValueError("batches: expected a table where policies draw batches, and only there")
        return self


def read_plan(path: Path) -> PlanFile:
    """Read ``plan.json``. Raises :class:`ConfigError`, with the keys of its first faults."""
    try:
        text = path.read_text(encoding="utf-8")
        table = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read ({error})") from error
    if isinstance(table, dict) and table.get("format", PLAN_FORMAT) != PLAN_FORMAT:
        raise ConfigError(f"{path} has format {table['format']!r}, this version reads {PLAN_FORMAT}")
    try:
        found = PlanFile.model_validate_json(text, strict=True)
    except ValidationError as error:
        raise _refusal(path, sentences(PlanFile, error)) from error
    different = list(_otherwise(found.model_dump(mode="json", exclude=None if found.code else {"code"}), table))
    if different:
        raise _refusal(path, different)
    return found


def _refusal(path: Path, faults: Sequence[str]) -> ConfigError:
    more = f"; and {len(faults) - MOST_TOLD} more" if len(faults) > MOST_TOLD else ""
    return ConfigError(f"{path} cannot be read ({'; '.join(faults[:MOST_TOLD])}{more})")


def _otherwise(found: Any, table: Any, key: str = "") -> Iterator[str]:
    """Where what was read is not what stands there: a default in the place of what is missing, ``true`` as a number.
    Keys that nobody reads were refused."""
    if isinstance(found, dict) and isinstance(table, dict):
        for name, value in found.items():
            inner = f"{key}.{name}" if key else name
            if name in table:
                yield from _otherwise(value, table[name], inner)
            else:
                yield f"{inner}: missing"
    elif isinstance(found, list) and isinstance(table, list):
        for place, (one, other) in enumerate(zip(found, table, strict=True)):
            yield from _otherwise(one, other, f"{key}.{place}")
    elif found != table or isinstance(found, bool) != isinstance(table, bool):
        yield f"{key}: got {shown(table)}, expected {shown(found)}"
