"""The schema of ``stats:`` files: tables ``[graph]`` and ``[partition]``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from simgnn.errors import ConfigError
from simgnn.graph.graph import GraphFacts
from simgnn.partition.statistics.partition_stats import Origin
from simgnn.policy import Partitioner
from simgnn.registry import available, is_kind, shipped
from simgnn.schema_faults import sentences
from simgnn.spelling import nearest

LARGEST_RANKS = 2**14
"""Tables of pairs of ranks have to fit into memory."""
Count = Annotated[int, Field(ge=0, le=2**46, strict=True)]
"""Small enough that sums over ranks are whole numbers of 64 bits."""
Ranks = Annotated[int, Field(ge=1, le=LARGEST_RANKS, strict=True)]
Imbalance = Annotated[float, Field(ge=1.0)]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class GraphSection(_Table):
    """Table ``[graph]``: the fields of :class:`~simgnn.graph.graph.GraphFacts`."""

    name: str
    vertices: Annotated[int, Field(ge=1, le=2**40, strict=True)]
    edges: Count
    feature_width: Annotated[int, Field(ge=0, le=2**24, strict=True)]
    feature_nonzeros: Count | None = None
    classes: Annotated[int, Field(ge=0, le=2**20, strict=True)]
    multilabel: bool = False
    train_vertices: Count
    validation_vertices: Count = 0
    test_vertices: Count = 0
    synthetic_features: bool = False
    synthetic_labels: bool = False
    centred_features: bool = False

    @model_validator(mode="after")
    def _masks_fit(self) -> "GraphSection":
        masked = self.train_vertices + self.validation_vertices + self.test_vertices
        if masked > self.vertices:
            raise ValueError(f"train, validation and test vertices are {masked}, of {self.vertices} vertices in all")
        return self

    def facts(self) -> GraphFacts:
        """The section as :class:`GraphFacts`."""
        return GraphFacts(**self.model_dump())


class CountedFrom(_Table):
    """Table ``[partition.counted_from]``: the digests of an :class:`Origin`, and the digest of the ``numbers`` of the
    file as they were counted."""

    graph: str
    cut: str
    partition: str | None = None
    numbers: str

    def origin(self) -> Origin:
        """The section as :class:`Origin`."""
        return Origin(self.graph, self.cut, self.partition)


class PartitionSection(_Table):
    """Table ``[partition]``: explicit arrays, a companion file, or summary numbers."""

    kind: Literal["edge-cut", "vertex-cut"] = "edge-cut"
    ranks: Ranks | None = None
    hosts: tuple[Count, ...] | None = None
    rows: Annotated[tuple[Count, ...], Field(max_length=LARGEST_RANKS)] | None = None
    edges: tuple[Count, ...] | None = None
    halo: tuple[tuple[Count, Count, Count], ...] | None = None
    arrays: str | None = None
    replication_factor: Annotated[float, Field(ge=1.0)] | None = None
    halo_rows: Count | tuple[Count, ...] | None = None
    vertex_imbalance: Imbalance = 1.0
    edge_imbalance: Imbalance = 1.0
    tables: dict[str, list[Any]] = Field(default_factory=dict)
    notes: tuple[str, ...] = ()
    made_by: dict[str, Any] | None = None
    counted_from: CountedFrom | None = None

    @field_validator("made_by", mode="before")
    @classmethod
    def _policy(cls, table: Any) -> dict[str, Any]:
        """The table of a shipped partitioner, checked; that of another is kept as it is, since reading a file of
        statistics imports no code."""
        if not isinstance(table, dict):
            raise ValueError("expected a table: kind and options of the policy that made the partition")
        kind = table.get("kind")
        if not is_kind("partition", kind):
            known = available("partition")
            raise ValueError(f"kind: got {kind!r}, expected one of {', '.join(known)}{nearest(str(kind), known)}")
        policy = shipped("partition").get(str(kind))
        if policy is None:
            return table
        try:
            found = policy.model_validate(table)
        except ValidationError as error:
            raise ValueError("\n".join(sentences(policy, error))) from error
        return cast(Partitioner, found).stated()

    @model_validator(mode="after")
    def _one_form(self) -> "PartitionSection":
        explicit = [name for name in ("rows", "edges", "halo") if getattr(self, name) is not None]
        counts = ("replication_factor", "halo_rows", "vertex_imbalance", "edge_imbalance")
        summary = [name for name in counts if name in self.model_fields_set and getattr(self, name) is not None]
        forms = [form for form in (explicit, ["arrays"] if self.arrays else [], summary) if form]
        if len(forms) > 1:
            raise ValueError(f"mixes two forms: {' and '.join(', '.join(form) for form in forms)}; keep one")
        if explicit and len(explicit) < 3:
            raise ValueError(f"got {', '.join(explicit)}; rows, edges and halo are needed together")
        maker = shipped("partition").get(str((self.made_by or {}).get("kind")))
        if maker is not None and cast(type[Partitioner], maker).cut != self.kind:
            raise ValueError(f"kind: got '{self.kind}', but made_by names a partitioner that makes the other cut")
        if not explicit and not self.arrays:
            if self.ranks is None:
                raise ValueError("needs ranks with replication_factor or halo_rows; or rows, edges and halo; or arrays")
            if self.ranks > 1 and (self.replication_factor is None) == (self.halo_rows is None):
                raise ValueError("needs replication_factor or halo_rows, one of the two")
        return self


class StatsFile(_Table):
    """The whole file."""

    format: Literal[1] = 1
    graph: GraphSection
    partition: PartitionSection


def read_schema(path: Path, table: Mapping[str, Any]) -> StatsFile:
    """Check a table against the schema; every fault becomes one line of a :class:`ConfigError`, with its key."""
    try:
        return StatsFile.model_validate(table)
    except ValidationError as error:
        raise ConfigError([f"{path}: {fault}" for fault in sentences(StatsFile, error)]) from error
