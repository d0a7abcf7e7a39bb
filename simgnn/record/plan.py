"""``plan/plan.json``: facts of a plan, as :mod:`simgnn.planner.directory` writes them."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from simgnn.errors import ConfigError
from simgnn.experiment.sections import TrainSection
from simgnn.experiment.slots import SLOTS
from simgnn.graph.graph import GraphFacts
from simgnn.limits import MAX_RANKS
from simgnn.model.spec import LayerSpec
from simgnn.outside import read_text
from simgnn.policy import Policy
from simgnn.record.result import DroppedEdges
from simgnn.registry import add_to_path, is_kind, policy_class, shipped
from simgnn.schema_faults import sentences

Text = Annotated[str, Field(min_length=1)]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class BatchesTable(_Table):
    """Paths of the sampling plan, the batches and the plan of fetches (None: ranks request rows from one another);
    ``source``: digest of the data that the batches were drawn from."""

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
    """The content of ``plan.json``.

    ``partition``, ``shards``: paths of artefacts, None in the plan of a simulation; ``chunks``: likewise, of chunks
    (None: nothing is trained chunk by chunk). ``cut_digest``, ``graph_digest``:
    None in a plan from a statistics file that does not record its source. ``policies``: slot -> kind and options of the
    policy that is used in training. ``code``: folders with the code of users' policies. ``batches``: of mini-batches.
    ``class_names``: names of the classes, if labels were text. ``device_bytes``: the budget of each
    rank's device (0: none). ``dropped_edges``: those that no rank holds; ``notes``:
    what results must say of the partition. ``continues``: digests of earlier programs of the run, of fewer epochs,
    whose checkpoints this one can load.
    """

    format: Literal[1]
    name: Text
    partition: Text | None
    partition_digest: Text
    cut_digest: Text | None
    graph_digest: Text | None
    shards: Text | None
    chunks: Text | None = None
    ranks: Annotated[int, Field(ge=1, le=MAX_RANKS)]
    hosts: tuple[Annotated[int, Field(ge=0, lt=MAX_RANKS)], ...]
    layers: Annotated[tuple[LayerSpec, ...], Field(min_length=1)]
    classes: Annotated[int, Field(ge=1)]
    multilabel: bool
    class_names: tuple[str, ...] = ()
    graph: GraphFacts
    device_bytes: Annotated[int, Field(ge=0, le=2**62)] = 0
    dropped_edges: DroppedEdges | None = None
    notes: tuple[str, ...] = ()
    train: TrainSection
    policies: dict[str, dict[str, Any]]
    code: tuple[Text, ...] = ()
    batches: BatchesTable | None
    continues: tuple[Text, ...] = ()
    threads_per_rank: Annotated[int, Field(ge=1)] | None
    seed: Annotated[int, Field(ge=0, lt=2**63)]
    program_digest: Text

    @field_validator("policies")
    @classmethod
    def _policies(cls, value: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """Check the options of shipped policies; user-defined ones stay unchecked, since reading imports no code."""
        found = {}
        for slot, table in value.items():
            kind = table.get("kind")
            if slot not in SLOTS or not is_kind(slot, kind):
                raise ValueError(
                    f"{slot}: got kind {kind!r}, expected a slot of {', '.join(SLOTS)} and the kind of a policy"
                )
            policy = shipped(slot).get(str(kind))
            found[slot] = table if policy is None else _read(slot, policy, table).model_dump(mode="json")
        return found

    def acting(self) -> dict[str, Policy]:
        """Map each slot to the policy that is used in training. Imports the code of user-defined policies."""
        for folder in self.code:
            add_to_path(folder)
        found = {}
        for slot, table in self.policies.items():
            try:
                found[slot] = _read(slot, policy_class(slot, table["kind"]), table)
            except (ValueError, ConfigError) as error:
                raise ConfigError(f"policies.{slot}: {error}") from error
        return found


def read_plan(path: Path) -> PlanFile:
    """Read ``plan.json``. Raises :class:`ConfigError` that names the first faulty keys."""
    try:
        text = read_text(path, ConfigError, "write the run directory again")
        return PlanFile.model_validate_json(text, strict=True)
    except ValidationError as error:
        raise ConfigError(f"{path} cannot be read ({'; '.join(sentences(PlanFile, error)[:3])})") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read ({error})") from error
