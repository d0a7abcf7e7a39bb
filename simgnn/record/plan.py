"""``plan/plan.json``: what was planned, as :mod:`simgnn.experiment.directory` writes it."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from simgnn.errors import ConfigError
from simgnn.experiment.directory import PLAN_FORMAT
from simgnn.experiment.sections import MAX_RANKS, TrainSection
from simgnn.experiment.slots import SLOTS, kinds
from simgnn.graph.graph import GraphFacts
from simgnn.hardware.problems import sentences
from simgnn.model.spec import LayerSpec

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""SHA-256 in hexadecimal."""
Text = Annotated[str, Field(min_length=1)]
MOST_TOLD = 3
"""Faults of a file that are told: one that is damaged may have as many as keys."""


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class BatchesTable(_Table):
    """Where a mini-batch run finds its sampling plan, its presampled batches, and the plan of its fetches (None: ranks
    ask one another); ``source``: digest of what they were drawn from."""

    plan: Text
    folder: Text
    fetches: Text | None
    source: Text


class PlanFile(_Table):
    """The whole file.

    ``partition``, ``shards``: paths of artefacts, None in the plan of a simulation. ``cut_digest``, ``graph_digest``:
    None where nobody said what a statistics file was counted from, and in runs of earlier versions, which lack them.
    ``policies``: slot -> the policy that acts while training. ``batches``: None where no batches are trained on.
    """

    format: Literal[1]
    name: Text
    partition: Text | None
    partition_digest: Digest
    cut_digest: Digest | None = None
    graph_digest: Digest | None = None
    shards: Text | None
    ranks: Annotated[int, Field(ge=1, le=MAX_RANKS)]
    hosts: tuple[Annotated[int, Field(ge=0, lt=MAX_RANKS)], ...]
    layers: Annotated[tuple[LayerSpec, ...], Field(min_length=1)]
    classes: Annotated[int, Field(ge=1)]
    multilabel: bool
    graph: GraphFacts
    train: TrainSection
    policies: dict[str, Any]
    batches: BatchesTable | None = None
    threads_per_rank: Annotated[int, Field(ge=1)] | None
    seed: Annotated[int, Field(ge=0, lt=2**63)]
    program_digest: Digest

    @field_validator("policies")
    @classmethod
    def _policies(cls, value: dict[str, Any]) -> dict[str, Any]:
        found = {}
        for slot, table in value.items():
            kind = table.get("kind") if isinstance(table, dict) else None
            if slot not in SLOTS or not isinstance(kind, str) or kind not in kinds(slot):
                raise ValueError(f"{slot}: expected a policy of one of the slots {', '.join(SLOTS)}, with its kind")
            policy = kinds(slot)[kind]
            try:
                found[slot] = policy.model_validate_json(json.dumps(table), strict=True)
            except ValidationError as error:
                raise ValueError("\n".join(f"{slot}.{fault}" for fault in sentences(policy, error))) from error
        return found

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if len(self.hosts) != self.ranks:
            raise ValueError(f"hosts: got {len(self.hosts)} numbers, expected {self.ranks}, one a rank")
        if [layer.index for layer in self.layers] != list(range(1, len(self.layers) + 1)):
            raise ValueError("layers: expected them numbered 1, 2, ...")
        missing = [slot for slot in ("freshness", "codec") if slot not in self.policies]
        if missing:
            raise ValueError(f"policies: {' and '.join(missing)} missing")
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
        faults = sentences(PlanFile, error)
        more = f"; and {len(faults) - MOST_TOLD} more" if len(faults) > MOST_TOLD else ""
        raise ConfigError(f"{path} cannot be read ({'; '.join(faults[:MOST_TOLD])}{more})") from error
    parts: list[tuple[str, Any, Any]] = [("graph", table["graph"], GraphFacts)]
    for key, part, kind in [*parts, *(("layers", one, LayerSpec) for one in table["layers"])]:
        known = {field.name for field in fields(kind)}
        if part.keys() != known:  # what has a default would be taken for it
            different = ", ".join(sorted(part.keys() ^ known))
            raise ConfigError(f"{path} cannot be read ({key}: {different}: missing, or unknown)")
    return found
