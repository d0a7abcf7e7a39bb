"""Schema of a ``published`` suite: epoch times and memory results that others printed, and assumptions about them.

Graphs that are not available are given by numbers: vertices, edges and widths as printed, and assumptions, such as the
number of halo rows and how often a row is read again soon. A paper's software is described by assumptions too. Each
assumption has a reason, and all are committed before scoring (:mod:`simgnn.study.published.score`). Tables of a group
that is named in ``apart`` are scored by themselves, by bars of their own.
"""

import os
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StrictFloat, StrictInt, StrictStr, StringConstraints, field_validator, model_validator

from simgnn.errors import ConfigError
from simgnn.experiment.problems import shown
from simgnn.hardware.primitives import PRIMITIVES
from simgnn.hardware.profile.profile import BackendName
from simgnn.hardware.profile.quantities import Strict
from simgnn.hardware.topology.topology import Name
from simgnn.schema_faults import validated
from simgnn.spelling import nearest
from simgnn.study.published.chunks import ChunksLike, Replicated
from simgnn.study.published.halo_rows import HaloLike
from simgnn.tomlfile import Table, leaves, load_toml

Share = Annotated[StrictFloat, Field(ge=0.0, le=1.0)]
Some = Annotated[StrictFloat, Field(ge=0.0)]
Positive = Annotated[StrictFloat, Field(gt=0.0)]
Count = Annotated[StrictInt, Field(ge=1)]
Whole = Annotated[StrictInt, Field(ge=0)]
Reason = Annotated[str, StringConstraints(strict=True, pattern=r"\S")]
"""Why something is assumed; must not be empty."""


class Counted(Strict):
    """Counts of a real partition: rows and in-edges of each rank; halo rows as [owner, rank, rows]."""

    rows: Annotated[tuple[Count, ...], Field(min_length=1)]
    edges: Annotated[tuple[Whole, ...], Field(min_length=1)]
    halo: tuple[tuple[Whole, Whole, Whole], ...]


class Dataset(Strict):
    """A graph described by numbers. ``names``: the names that papers use. ``edges``: aggregated in-edges, both
    directions counted. ``halo``: assumed halo rows of all ranks divided by vertices, by rank count. ``counted``: counts
    of partitions of a graph that is available, which replace ``halo``. ``blocks``: in-edges counted between equal
    blocks of its rows in the order of its file, [rank, owner of the source], by rank count. ``chunks``: of each rank,
    by rank count, for systems that train chunk by chunk; missing: one."""

    names: Annotated[tuple[StrictStr, ...], Field(min_length=1)]
    vertices: Count
    edges: Count
    features: Count
    classes: Count
    train_share: Share
    halo: dict[StrictStr, Some] = Field(default_factory=dict)
    counted: dict[StrictStr, Counted] = Field(default_factory=dict)
    blocks: dict[StrictStr, tuple[tuple[Whole, ...], ...]] = Field(default_factory=dict)
    chunks: dict[StrictStr, Replicated] = Field(default_factory=dict)
    set: dict[StrictStr, Any] = Field(default_factory=dict)
    assumed: Reason

    @model_validator(mode="after")
    def _counts_add_up(self) -> Self:
        for ranks, share in self.halo.items():
            if not ranks.isdecimal() or share > int(ranks) - 1:
                raise ValueError(
                    f"halo.{ranks}: got {share:g}, expected a rank count as the key, and a value of at most that "
                    "count - 1: a vertex can be a halo row on all ranks but its owner"
                )
        for ranks, one in self.counted.items():
            if not ranks == str(len(one.rows)) == str(len(one.edges)):
                raise ValueError(f"counted.{ranks}: expected {ranks} entries in rows and in edges, one for each rank")
            for name, total in (("rows", self.vertices), ("edges", self.edges)):
                if sum(getattr(one, name)) != total:
                    raise ValueError(f"counted.{ranks}.{name}: add up to {sum(getattr(one, name))}, expected {total}")
        for ranks, edges in self.blocks.items():
            if not all(ranks == str(len(each)) for each in (edges, *edges)):
                raise ValueError(f"blocks.{ranks}: expected {ranks} lists of {ranks} numbers, one list for each rank")
            if sum(map(sum, edges)) != self.edges:
                raise ValueError(f"blocks.{ranks}: add up to {sum(map(sum, edges))}, expected {self.edges}")
        return self


class GraphReuse(Strict):
    """Reuse of rows counted on a graph: ``degree``, in-edges per vertex, and ``hits``, for each of :attr:`Reuse.shares`
    the share of repeated reads that find the row among the rows read last."""

    graph: StrictStr
    degree: Positive
    hits: Annotated[tuple[Share, ...], Field(min_length=2)]


class Reuse(Strict):
    """How often a repeated read finds its row among the rows read last, if these are ``shares`` of all rows. A graph
    that is not available is taken to be like the graph in ``of`` with the nearest number of in-edges per vertex."""

    shares: Annotated[tuple[Positive, ...], Field(min_length=2)]
    of: Annotated[tuple[GraphReuse, ...], Field(min_length=1)]
    assumed: Reason

    @model_validator(mode="after")
    def _grow(self) -> Self:
        if self.shares[-1] != 1.0 or any(b <= a for a, b in pairwise(self.shares)):
            raise ValueError("shares: expected increasing numbers that end with 1.0")
        for one in self.of:
            if len(one.hits) != len(self.shares) or one.hits[-1] != 1.0 or any(b < a for a, b in pairwise(one.hits)):
                raise ValueError(f"of.hits ({one.graph}): expected one for each share, none falling, the last 1.0")
        return self


class Balance(Strict):
    """Assumed imbalance (largest over mean) of in-edges and halo rows if none can be counted, by rank count."""

    edges: dict[StrictStr, Annotated[StrictFloat, Field(ge=1.0)]]
    halo: dict[StrictStr, Annotated[StrictFloat, Field(ge=1.0)]]
    assumed: Reason


class Adjustment(Strict):
    """How a table's software differs from ours on a device: factors on the ``costs`` of a primitive's curves, and on
    the sizes of caches that those costs name (``cache``). Applies to model kinds ``models`` and graphs ``datasets`` (by
    any name); empty means all."""

    primitive: StrictStr
    models: tuple[StrictStr, ...] = ()
    datasets: tuple[StrictStr, ...] = ()
    costs: Annotated[dict[StrictStr, Positive], Field(min_length=1)]
    cache: Positive = 1.0
    assumed: Reason

    @property
    def label(self) -> str:
        about = [*self.models, *self.datasets]
        return f"{self.primitive} of {', '.join(about)}" if about else self.primitive

    def concerns(self, model: str, dataset: Dataset) -> bool:
        """Return whether the adjustment applies to this kind of model and this graph."""
        named = not self.datasets or bool(set(self.datasets) & set(dataset.names))
        return named and (not self.models or model in self.models)

    @field_validator("primitive")
    @classmethod
    def _known(cls, primitive: str) -> str:
        if primitive not in PRIMITIVES:
            hint = nearest(primitive, PRIMITIVES)
            raise ValueError(f"got '{primitive}', expected one of {', '.join(PRIMITIVES)}{hint}")
        return primitive


class ModelSettings(Strict):
    """Experiment settings that apply only to some ``models`` of a table."""

    models: Annotated[tuple[StrictStr, ...], Field(min_length=1)]
    set: Annotated[dict[StrictStr, Any], Field(min_length=1)]
    assumed: Reason


class OpenSettings(Strict):
    """An alternative to what a step of an ablation is taken to be."""

    set: Annotated[dict[StrictStr, Any], Field(min_length=1)]
    assumed: Reason


class Kept(Strict):
    """Bytes that a system keeps on its devices, by its authors' formula: ``edge_bytes`` for each in-edge, and
    ``item_bytes`` times (``rows`` x widths of all layers) for each own or halo row, (``hidden`` x widths between layers
    + ``last`` x classes) for each own row."""

    item_bytes: Count = 4
    rows: Some
    hidden: Some
    last: Some
    edge_bytes: Some
    assumed: Reason


class Blocks(Strict):
    """A system that divides a graph into equal blocks of rows, in the order of its file, and holds edges as one block
    for each owner of their sources. ``assumed``: why edges that are not counted spread evenly over all blocks."""

    assumed: Reason


class Chunked(Strict):
    """A system that trains the chunks of each rank one after the other. ``assumed``: why with so many."""

    assumed: Reason


Quantity = Literal["epoch", "communication"]
"""What a printed time is of: whole epochs, or the part of them in which ranks communicate and do not compute."""


class PublishedTable(Strict):
    """The rows of a file whose columns equal ``select``. ``time``: column with the seconds of ``epochs`` epochs, or of
    what is ``timed`` of them; ``communication``: column with those of them in which ranks communicate and do not
    compute (None: not printed).
    ``models``: name in the model column -> kind of model here; rows of other models count as left out. ``ranks``,
    ``layers``: a column, or a number. ``noise``: relative standard deviation of a printed time, besides its rounding;
    ``noise_assumed``: why. ``extends``: the system here that is run (None: the suite's); ``backend``: the communication
    library (None: the profile's usual one); ``blocks``: rows are divided into blocks, not by METIS; ``chunked``: parts
    are trained chunk by chunk. ``set``: settings of all models; ``given``: of some. ``open``: alternative settings that
    fit the publication as well; they widen ranges and can make a verdict undecided. ``listed``: single halo rows are
    cached or dropped, so that they are listed as the suite's ``halo_rows`` says. ``apart``: the group of tables with
    which the rows are scored."""

    file: StrictStr
    select: dict[StrictStr, tuple[StrictStr, ...]]
    dataset: StrictStr
    model: StrictStr
    time: StrictStr
    timed: Quantity = "epoch"
    communication: StrictStr | None = None
    epochs: Count = 1
    ranks: StrictStr | Count
    layers: StrictStr | Count
    models: dict[StrictStr, StrictStr]
    profile: StrictStr
    label: StrictStr
    extends: StrictStr | None = None
    backend: BackendName | None = None
    blocks: Blocks | None = None
    chunked: Chunked | None = None
    listed: bool = False
    apart: Name | None = None
    noise: Share = 0.0
    noise_assumed: Reason = "nothing printed tells more than its rounding"
    set: dict[StrictStr, Any] = Field(default_factory=dict)
    adjust: tuple[Adjustment, ...] = ()
    given: tuple[ModelSettings, ...] = ()
    open: tuple[ModelSettings, ...] = ()
    kept: Kept | None = None

    @model_validator(mode="after")
    def _models_are_mapped(self) -> Self:
        mapped = sorted(set(self.models.values()))
        for key in ("adjust", "given", "open"):
            unknown = {name for one in getattr(self, key) for name in one.models}.difference(mapped)
            if unknown:
                got = ", ".join(sorted(unknown))
                raise ValueError(f"{key}.models: got {got}, expected kinds of the table: {', '.join(mapped)}")
        return self


class Step(Strict):
    """What runs in a step of an ablation: the system ``extends`` with the table's settings and ``set``; None: the
    table's own system. ``open``: alternatives, as of a table."""

    extends: StrictStr | None = None
    set: dict[StrictStr, Any] = Field(default_factory=dict)
    open: tuple[OpenSettings, ...] = ()
    assumed: Reason


class Ablation(Strict):
    """Figures of a ``paper``'s ``section`` in a file of facts (:mod:`simgnn.study.published.facts`): of systems that
    are a table's with more, step by step. ``like``: the label of that table, whose hardware, adjustments, settings and
    names of models hold here, too. ``quantities``: words for what is timed -> what is predicted, and ``assumed``: why.
    ``steps``: by their names; a step that names a system runs on halo rows that are listed one by one. ``apart``: the
    group with which the figures are scored."""

    label: StrictStr
    file: StrictStr
    paper: StrictStr
    section: StrictStr
    like: StrictStr
    ranks: Count
    layers: Count
    models: tuple[StrictStr, ...]
    quantities: Annotated[dict[StrictStr, Quantity], Field(min_length=1)]
    assumed: Reason
    steps: Annotated[dict[StrictStr, Step], Field(min_length=1)]
    apart: Name

    def table(self, like: PublishedTable, step: str, timed: Quantity, epochs: int) -> PublishedTable:
        """Return a table that describes how a ``step`` runs, ``like`` another one."""
        found, kinds = self.steps[step], tuple(sorted(set(like.models.values())))
        given = [ModelSettings(models=kinds, set=found.set, assumed=found.assumed)] if found.set else []
        more = [ModelSettings(models=kinds, set=one.set, assumed=one.assumed) for one in found.open]
        changed = {
            "label": f"{self.label}: {step}", "file": self.file, "extends": found.extends or like.extends,
            "timed": timed, "communication": None, "epochs": epochs, "listed": found.extends is not None,
            "given": (*like.given, *given), "open": (*like.open, *more), "apart": self.apart,
        }  # fmt: skip
        return like.model_copy(update=changed)


class PublishedBars(Strict):
    """Largest median factor between predicted and published times, least ``tau`` (None: no bar), most wrong memory
    verdicts. ``median_ratio``: largest median factor between predicted and published ratios of a time to that before a
    step of an ablation (None: no bar). ``wrong_pairs``: most pairs of rows of one printed table in the wrong order
    (None: no bar)."""

    median_factor: Annotated[StrictFloat, Field(ge=1.0)]
    median_ratio: Annotated[StrictFloat, Field(ge=1.0)] | None = None
    tau: Annotated[StrictFloat, Field(ge=-1.0, le=1.0)] | None = None
    wrong_verdicts: Whole = 0
    wrong_pairs: Whole | None = None


class PublishedSuite(Strict):
    """A suite of published results: tables, descriptions of their graphs, and by how much assumptions are varied.
    ``apart``: bars of groups of tables that are scored by themselves, by name."""

    kind: Literal["published"]
    name: Name
    description: StrictStr
    extends: StrictStr = "vanilla"
    vary: Annotated[StrictFloat, Field(ge=0.0, lt=1.0)]
    bars: PublishedBars
    apart: dict[Name, PublishedBars] = Field(default_factory=dict)
    reuse: Reuse | None = None
    balance: Balance | None = None
    halo_rows: HaloLike | None = None
    chunks: ChunksLike | None = None
    datasets: Annotated[tuple[Dataset, ...], Field(min_length=1)]
    tables: Annotated[tuple[PublishedTable, ...], Field(min_length=1)]
    ablations: tuple[Ablation, ...] = ()

    @model_validator(mode="after")
    def _datasets_are_described(self) -> Self:
        names = [name for dataset in self.datasets for name in dataset.names]
        doubled = sorted({name for name in names if names.count(name) > 1})
        if doubled:
            raise ValueError(f"datasets: {', '.join(doubled)} named twice; expected each name once")
        unknown = {name for table in self.tables for one in table.adjust for name in one.datasets}.difference(names)
        if unknown:
            raise ValueError(
                f"tables.adjust.datasets: got {', '.join(sorted(unknown))}, expected names of datasets: "
                f"{', '.join(sorted(names))}"
            )
        return self

    @model_validator(mode="after")
    def _ablations_are_like_tables(self) -> Self:
        tables = {table.label: table for table in self.tables}
        for one in self.ablations:
            if one.like not in tables:
                known = tuple(tables)
                hint = nearest(one.like, known)
                raise ValueError(f"ablations.like: got '{one.like}', expected the label of a table{hint}")
            if unknown := sorted(set(one.models).difference(tables[one.like].models)):
                raise ValueError(
                    f"ablations.models: got {', '.join(unknown)}, expected models of '{one.like}': "
                    f"{', '.join(tables[one.like].models)}"
                )
        return self

    @model_validator(mode="after")
    def _groups_are_named(self) -> Self:
        named = {table.apart for table in self.tables if table.apart is not None}
        named |= {ablation.apart for ablation in self.ablations}
        if named != set(self.apart):
            wrong = ", ".join(sorted(named ^ set(self.apart)))
            raise ValueError(
                f"apart: got bars for {', '.join(sorted(self.apart)) or 'no group'} and tables in "
                f"{', '.join(sorted(named)) or 'no group'}; expected both of each group: correct {wrong}"
            )
        if all(table.apart is not None for table in self.tables):
            raise ValueError("tables.apart: every table is in a group; expected one without, which 'bars' are about")
        return self

    def assumptions(self) -> tuple[str, ...]:
        """List all assumptions, one line each."""
        lines = [
            f"{one.names[0]}: {one.assumed}; {100 * one.train_share:g} % of its vertices are trained on"
            f"{_settings(one.set)}"
            for one in self.datasets
        ]
        if self.reuse is not None:
            lines.append(f"rows read again: {self.reuse.assumed}")
        if self.balance is not None:
            lines.append(f"balance of partitions: {self.balance.assumed}")
        if self.halo_rows is not None:
            lines.append(f"halo rows, one by one: {self.halo_rows.assumed}")
        if self.chunks is not None:
            lines.append(f"rows that chunks share: {self.chunks.assumed}")
        for table in self.tables:
            lines.append(f"{table.label}, noise of its times {100 * table.noise:g} %: {table.noise_assumed}")
            lines += [f"{table.label}, {one.label}: {one.assumed}" for one in table.adjust]
            lines += [f"{table.label}, blocks of rows: {table.blocks.assumed}"] if table.blocks else []
            lines += [f"{table.label}, chunks: {table.chunked.assumed}"] if table.chunked else []
            lines += [f"{table.label}: runs as {table.extends}"] if table.extends else []
            lines += [f"{table.label}: communicates by {table.backend}"] if table.backend else []
            lines += [f"{table.label}{_settings(table.set)}"] if table.set else []
            given = table.given
            lines += [f"{table.label}, {', '.join(one.models)}: {one.assumed}{_settings(one.set)}" for one in given]
            lines += [f"{table.label}, left open: {one.assumed}{_settings(one.set)}" for one in table.open]
            lines += [f"{table.label}, memory: {table.kept.assumed}"] if table.kept else []
        for ablation in self.ablations:
            lines.append(f"{ablation.label}, like {ablation.like}: {ablation.assumed}")
            for name, step in ablation.steps.items():
                runs = f"; runs as {step.extends}" if step.extends else ""
                lines.append(f"{ablation.label}, {name}: {step.assumed}{runs}{_settings(step.set)}")
                lines += [
                    f"{ablation.label}, {name}, left open: {one.assumed}{_settings(one.set)}" for one in step.open
                ]
        return tuple(lines)


def _settings(table: Table) -> str:
    text = ", ".join(f"{'.'.join(path)} = {shown(value)}" for path, value in leaves(table))
    return f"; set: {text}" if text else ""


def load_published(path: Path) -> PublishedSuite:
    """Load a suite of published results from a file. Raises :class:`ConfigError` that lists every fault."""
    return validated(PublishedSuite, load_toml(path), path)


def published_folder() -> Path:
    """Return the folder of the published tables, ``published`` beside ``$SIMGNN_DATA``. Raises :class:`ConfigError`."""
    data = os.environ.get("SIMGNN_DATA", "")
    folder = Path(data).resolve().parent / "published"
    if not data or not folder.is_dir():
        raise ConfigError(
            f"published: expected the tables in the folder 'published' beside SIMGNN_DATA, got "
            f"{folder if data else 'SIMGNN_DATA not set'}; set it to the folder of the real graphs"
        )
    return folder
