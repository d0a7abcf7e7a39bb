"""The schema of ``stats:`` files, and checks of their arrays: lengths, ranges and totals, each with its key.

The checks find mistakes in files written by hand; a file that was counted from a graph also has a digest.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from simgnn.errors import ConfigError
from simgnn.graph.graph import MASKS, GraphFacts
from simgnn.partition.chunks import tables as chunk_tables
from simgnn.partition.chunks.spread import ChunkTotals
from simgnn.partition.local.vertex_cut import BY_HOSTS, BY_REPLICAS, LEVELS, SHARED
from simgnn.partition.statistics.halo_rows import HALO_VERTICES, ROW_EDGES, ROW_NONZEROS, ROW_ORDER, ends_of_rows
from simgnn.partition.statistics.partition_stats import (
    BASE,
    DEGREES,
    DROPPED_BETWEEN,
    DROPPED_EDGES,
    DROPPED_ROWS,
    PartitionStats,
    dropped_edges,
)
from simgnn.policy import Partitioner
from simgnn.program.sizes import IntArray
from simgnn.registry import available, is_kind, shipped
from simgnn.schema_faults import sentences
from simgnn.spelling import nearest

LARGEST_RANKS = 2**14
"""Largest number of ranks, so that tables of pairs of ranks fit into memory."""
Count = Annotated[int, Field(ge=0, le=2**46, strict=True)]
"""A count, bounded so that sums over ranks fit into 64 bits."""
Ranks = Annotated[int, Field(ge=1, le=LARGEST_RANKS, strict=True)]
Imbalance = Annotated[float, Field(ge=1.0)]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class GraphSection(_Table):
    """Table ``[graph]``: the fields of :class:`GraphFacts`."""

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
    weighted: bool = False

    @model_validator(mode="after")
    def _masks_fit(self) -> "GraphSection":
        masked = self.train_vertices + self.validation_vertices + self.test_vertices
        if masked > self.vertices:
            raise ValueError(f"train, validation and test vertices: got {masked}, expected at most {self.vertices}")
        return self

    def facts(self) -> GraphFacts:
        return GraphFacts(**self.model_dump())


class CountedFrom(_Table):
    """Table ``[partition.counted_from]``: digests of an :class:`Origin`; ``numbers``: digest of the counts; ``labels``:
    digest of the notes and ``made_by`` (files of earlier versions have none)."""

    graph: str
    cut: str
    partition: str | None = None
    numbers: str
    labels: str | None = None


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
    chunks: ChunkTotals | None = None
    tables: dict[str, list[Any]] = Field(default_factory=dict)
    notes: tuple[str, ...] = ()
    made_by: dict[str, Any] | None = None
    counted_from: CountedFrom | None = None

    @field_validator("made_by", mode="before")
    @classmethod
    def _policy(cls, table: Any) -> dict[str, Any]:
        """Check ``made_by`` if it names a shipped partitioner. The table of another partitioner is not checked, since
        reading statistics must not import code."""
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
            raise ValueError(f"mixes two forms: {' and '.join(', '.join(form) for form in forms)}; keep one of them")
        if explicit and len(explicit) < 3:
            raise ValueError(f"got only {', '.join(explicit)}; rows, edges and halo are needed together")
        maker = shipped("partition").get(str((self.made_by or {}).get("kind")))
        if maker is not None and cast(type[Partitioner], maker).cut != self.kind:
            raise ValueError(f"kind: got '{self.kind}', but the partitioner in made_by makes the other kind of cut")
        if self.chunks is not None and self.kind != "edge-cut":
            raise ValueError("chunks: got totals of chunks with kind = 'vertex-cut', expected 'edge-cut'")
        if not explicit and not self.arrays:
            if self.ranks is None:
                raise ValueError("expected ranks and replication_factor or halo_rows, or rows, edges, halo, or arrays")
            if self.ranks > 1 and (self.replication_factor is None) == (self.halo_rows is None):
                raise ValueError("expected exactly one of replication_factor and halo_rows")
        return self


class StatsFile(_Table):
    """A ``stats:`` file with one partition, the table ``[partition]``."""

    format: Literal[1] = 1
    graph: GraphSection
    partition: PartitionSection


class StatsFileOfSeveral(_Table):
    """A ``stats:`` file with several partitions of one graph, each a table ``[[partition]]``."""

    format: Literal[1] = 1
    graph: GraphSection
    partition: Annotated[tuple[PartitionSection, ...], Field(min_length=1)]


def read_schema(path: Path, table: Mapping[str, Any]) -> tuple[GraphSection, tuple[PartitionSection, ...]]:
    """Check the content of a ``stats:`` file. Raises :class:`ConfigError` with a line for each fault."""
    several = isinstance(table.get("partition"), list)
    schema = StatsFileOfSeveral if several else StatsFile
    try:
        found = schema.model_validate(table)
    except ValidationError as error:
        raise ConfigError([f"{path}: {fault}" for fault in sentences(schema, error)]) from error
    return found.graph, found.partition if isinstance(found, StatsFileOfSeveral) else (found.partition,)


Fault = tuple[str, str]
"""A key in ``[partition]`` and the problem with it."""
LOCALITY = ("locality/forward", "locality/backward", "locality/features/forward", "locality/features/backward")
SPARSE = ("feature_nonzeros", "neighbor_feature_nonzeros", "aggregated_feature_nonzeros", "halo_feature_nonzeros")
LARGEST = 2**46
"""Upper bound of the numbers in a table, so that sums over ranks fit into 64 bits."""


@dataclass(frozen=True)
class TableForm:
    """Expected form of a named table. ``shape``: None is any length. ``shares``: values are shares in 0..1, not whole
    numbers. ``below``: exclusive upper bounds of the first columns, which are indices. ``total``: the key of a total in
    the file and its value, to which the table adds up."""

    shape: tuple[int | None, ...]
    shares: bool = False
    below: tuple[int, ...] = ()
    total: tuple[str, int | None] | None = None


def table_forms(stats: PartitionStats) -> dict[str, TableForm]:
    """Return the expected form of every table that a partition of this size may have, by name."""
    P, facts = stats.ranks, stats.facts
    dropped = (DROPPED_EDGES, DROPPED_ROWS, DROPPED_BETWEEN)
    one_a_rank = dict.fromkeys((*SPARSE[1:3], "cut_edges", SHARED, *dropped), TableForm((P,)))
    gone = dropped_edges(stats.tables)
    less = " less dropped edges" if gone else ""
    batches = chunk_tables.batches_in(stats.tables) or 0
    totals = {f"{name}_rows": f"{name}_vertices" for name in MASKS} | {SPARSE[0]: "feature_nonzeros"}
    return {
        **{name: TableForm((P,), total=(f"graph.{key}", getattr(facts, key))) for name, key in totals.items()},
        **one_a_rank,
        SPARSE[3]: TableForm((P, P)),
        "block_edges": TableForm((P, P), total=(f"graph.edges{less}", facts.edges - gone)),
        **dict.fromkeys(LOCALITY, TableForm((P, None), shares=True)),
        DEGREES: TableForm((None, 2)),
        **dict.fromkeys((HALO_VERTICES, ROW_EDGES, ROW_NONZEROS, ROW_ORDER), TableForm((int(stats.halo.rows.sum()),))),
        BY_REPLICAS: TableForm((None, 3), below=(len(stats.halo.rows), P + 1)),
        **dict.fromkeys(LEVELS, TableForm((None, 3), below=(P, P))),
        BY_HOSTS: TableForm((None, 4), below=(P, P, P + 1)),
        **dict.fromkeys(chunk_tables.BY_BATCH, TableForm((P, batches))),
        **dict.fromkeys(chunk_tables.BY_PAIR, TableForm((None, 4), below=(P, batches, P))),
    }


def check_base(arrays: Mapping[str, IntArray], facts: GraphFacts, path: str, dropped: int = 0) -> None:
    """Check lengths, ranges and totals of ``BASE`` arrays (int64) against ``facts``; raises :class:`ConfigError`.
    ``dropped``: edges of the graph that no rank holds."""
    for faults in (_lengths(arrays), _ranges(arrays, facts), _sums(arrays, facts, dropped)):
        raise_faults(path, faults)


def check_tables(stats: PartitionStats, path: str) -> PartitionStats:
    """Return ``stats`` with tables as int64, shares as float64. Raises :class:`ConfigError` with all faults."""
    forms = table_forms(stats)
    raise_faults(path, (fault for name in stats.tables for fault in _form_fault(name, stats.tables[name], forms)))
    tables: dict[str, Any] = {
        name: table.astype(np.float64 if forms[name].shares else np.int64) for name, table in stats.tables.items()
    }
    raise_faults(path, (fault for name in tables for fault in _number_faults(name, tables[name], forms[name], stats)))
    contradictions = chunk_tables.table_faults(tables, stats.rows, stats.edges)
    raise_faults(path, ((f"tables.{name}", problem) for name, problem in contradictions))
    return replace(stats, tables=tables)


def raise_faults(path: str, faults: Iterable[Fault]) -> None:
    """Raise :class:`ConfigError` with a line for each fault, if there is any."""
    problems = [
        f"{path}: partition.{key}: {message}; correct it, or make the file anew with simgnn partition --stats"
        for key, message in faults
    ]
    if problems:
        raise ConfigError(problems)


def _lengths(arrays: Mapping[str, IntArray]) -> Iterator[Fault]:
    ranks = len(arrays["rows"])
    if not 1 <= ranks <= LARGEST_RANKS:
        yield "rows", f"got {ranks} numbers, expected one for each of 1..{LARGEST_RANKS} ranks"
    for key in ("edges", "hosts"):
        if len(arrays[key]) != ranks:
            yield key, f"got {len(arrays[key])} numbers, expected {ranks}, the length of rows"
    if len({len(arrays[key]) for key in BASE[3:]}) > 1:
        yield "halo", "the lists of owners, ranks and rows differ in length"


def _ranges(arrays: Mapping[str, IntArray], facts: GraphFacts) -> Iterator[Fault]:
    most = {"rows": facts.vertices, "edges": facts.edges, "halo/rows": facts.vertices}
    most |= dict.fromkeys(("hosts", "halo/source", "halo/target"), len(arrays["rows"]) - 1)
    for key, largest in most.items():
        if np.any((arrays[key] < 0) | (arrays[key] > largest)):
            found = f"{int(arrays[key].min())}..{int(arrays[key].max())}"
            yield key.partition("/")[0], f"got {found} in {key}, expected numbers in 0..{largest}"


def _sums(arrays: Mapping[str, IntArray], facts: GraphFacts, dropped: int) -> Iterator[Fault]:
    less = f", less {dropped} dropped edges" if dropped else ""
    for key, total, name in (("rows", facts.vertices, "vertices"), ("edges", facts.edges - dropped, f"edges{less}")):
        if int(arrays[key].sum()) != total:
            yield key, f"add up to {int(arrays[key].sum())}, but graph.{name} = {total}"
    source, target, rows = (arrays[key] for key in BASE[3:])
    if np.any(source == target):
        yield "halo", "got a pair of a rank with itself: a rank has no halo rows from itself"
    if np.any(np.diff(source * len(arrays["rows"]) + target) <= 0):
        yield "halo", "a pair (owner, rank) occurs twice, or pairs are not in ascending order"
    if np.any(rows > arrays["rows"][source]):
        yield "halo", "a rank receives more rows from an owner than the owner has"


def _form_fault(name: str, table: NDArray[Any], forms: Mapping[str, TableForm]) -> Iterator[Fault]:
    form, key = forms.get(name), f"tables.{name}"
    if form is None:
        yield key, f"unknown table{nearest(name, tuple(forms))}; known tables: {', '.join(forms)}"
    elif table.ndim != len(form.shape) or any(
        want not in (None, got) for want, got in zip(form.shape, table.shape, strict=True)
    ):
        wanted = ", ".join("any" if length is None else str(length) for length in form.shape)
        yield key, f"got numbers of shape {list(table.shape)}, expected [{wanted}]"
    elif table.dtype.kind not in ("fiu" if form.shares else "iu"):
        yield key, f"got {table.dtype} numbers, expected {'shares' if form.shares else 'whole numbers'}"


def _number_faults(name: str, table: NDArray[Any], form: TableForm, stats: PartitionStats) -> Iterator[Fault]:
    key, facts = f"tables.{name}", stats.facts
    # sums of rows fit into 64 bits; the sum over all pairs of ranks may not
    total = 0 if form.total is None else sum(table.reshape(len(table), -1).sum(axis=1).tolist())
    if form.shares:
        # written so that NaN fails, too
        if not (table.size and np.all((table >= 0) & (table <= 1)) and np.all(np.diff(table, axis=1) >= 0)):
            yield key, "expected shares in 0..1 for each rank that do not decrease"
    elif np.any((table < 0) | (table > LARGEST)):
        yield key, f"got {table.min()}..{table.max()}, expected numbers in 0..{LARGEST}"
    elif form.below and np.any(table[:, : len(form.below)] >= form.below):
        yield key, f"expected numbers below {', '.join(map(str, form.below))} in the first columns"
    elif name in (*SPARSE, ROW_NONZEROS) and facts.feature_nonzeros is None:
        yield key, "this table is for sparse features, but graph.feature_nonzeros is missing"
    elif form.total is not None and total != form.total[1]:
        yield key, f"add up to {total}, expected {form.total[0]} = {form.total[1]}"
    elif name == HALO_VERTICES:
        yield from _vertex_faults(key, table, stats)
    elif name in (ROW_EDGES, ROW_NONZEROS):
        yield from _row_faults(name, table, stats)
    elif name == ROW_ORDER:
        holder = ends_of_rows(stats.halo)[1]
        place = np.arange(len(table)) - np.searchsorted(holder, holder)
        if not np.array_equal(table[np.lexsort((table, holder))], place):
            yield key, "expected for each rank its halo rows' places 0, 1, 2, .., each once"
    elif name == DEGREES:
        found = int(table[:, 1].sum()), sum((table[:, 0].astype(object) * table[:, 1]).tolist())
        if found != (facts.vertices, facts.edges) or np.any(np.diff(table[:, 0]) <= 0):
            yield (
                key,
                f"add up to {found[0]} vertices and {found[1]} edges, expected {facts.vertices} and {facts.edges}, "
                "each degree once and in ascending order",
            )


def _vertex_faults(key: str, table: NDArray[Any], stats: PartitionStats) -> Iterator[Fault]:
    """Yield what no halo has, of the vertices of halo rows that are listed by holder, and for each by owner."""
    owner, holder = ends_of_rows(stats.halo)
    if np.any(table >= stats.facts.vertices):
        yield key, f"got {table.max()}, expected numbers below graph.vertices = {stats.facts.vertices}"
        return
    by_vertex = np.lexsort((holder, table))
    same = np.diff(table[by_vertex]) == 0
    if np.any(same & (np.diff(holder[by_vertex]) == 0)):
        yield key, "a rank has a vertex twice in its halo"
    if np.any(same & (np.diff(owner[by_vertex]) != 0)):
        yield key, "halo rows of one vertex have different owners"


def _row_faults(name: str, table: NDArray[Any], stats: PartitionStats) -> Iterator[Fault]:
    """Yield a contradiction between a table of halo rows and that of pairs of ranks which counts the same."""
    owner, holder = ends_of_rows(stats.halo)
    found = np.bincount(owner * stats.ranks + holder, table, stats.ranks**2).reshape(stats.ranks, stats.ranks)
    whole = "block_edges" if name == ROW_EDGES else SPARSE[3]
    pairs = stats.tables.get(whole)
    if pairs is None:
        yield f"tables.{name}", f"got no table {whole} beside it, which counts the same by pair of ranks"
        return
    counted = np.asarray(pairs).T if name == ROW_EDGES else np.asarray(pairs)
    if not np.array_equal(found, np.where(np.eye(stats.ranks, dtype=np.bool_), 0, counted)):
        yield f"tables.{name}", f"expected numbers that add up to those of {whole}"
