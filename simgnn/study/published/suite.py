"""The file of a ``published`` suite: epoch times and memory verdicts that others printed, and what is assumed of them.

Graphs that are not here are numbers: vertices, edges and widths as printed, and assumptions, such as how many halo rows
a partition has and how often a row is read again soon. So is what a paper's software does otherwise than ours. Each
assumption has its reason, and all of it is committed before scoring (:mod:`simgnn.study.published.score`).
"""

import os
from itertools import pairwise
from math import log
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StrictFloat, StrictInt, StrictStr, StringConstraints, field_validator, model_validator

from simgnn.errors import ConfigError
from simgnn.experiment.problems import shown
from simgnn.hardware.primitives import PRIMITIVES
from simgnn.hardware.profile.quantities import Strict
from simgnn.hardware.topology.topology import Name
from simgnn.schema_faults import validated
from simgnn.spelling import nearest
from simgnn.tomlfile import Table, leaves, load_toml

Share = Annotated[StrictFloat, Field(ge=0.0, le=1.0)]
Some = Annotated[StrictFloat, Field(ge=0.0)]
Positive = Annotated[StrictFloat, Field(gt=0.0)]
Count = Annotated[StrictInt, Field(ge=1)]
Whole = Annotated[StrictInt, Field(ge=0)]
Reason = Annotated[str, StringConstraints(strict=True, pattern=r"\S")]
"""Why something is assumed; not empty."""


class Counted(Strict):
    """A partition that was counted: rows and in-edges of each rank; halo rows as [owner, rank, rows]."""

    rows: Annotated[tuple[Count, ...], Field(min_length=1)]
    edges: Annotated[tuple[Whole, ...], Field(min_length=1)]
    halo: tuple[tuple[Whole, Whole, Whole], ...]


class Dataset(Strict):
    """A graph as numbers. ``names``: what papers call it. ``edges``: in-edges that are aggregated, both directions
    counted. ``halo``: assumed halo rows of all ranks over vertices, by rank count; ``counted``: partitions of a graph
    that is at hand, which replace ``halo``."""

    names: Annotated[tuple[StrictStr, ...], Field(min_length=1)]
    vertices: Count
    edges: Count
    features: Count
    classes: Count
    train_share: Share
    halo: dict[StrictStr, Some] = Field(default_factory=dict)
    counted: dict[StrictStr, Counted] = Field(default_factory=dict)
    set: dict[StrictStr, Any] = Field(default_factory=dict)
    assumed: Reason

    @model_validator(mode="after")
    def _counts_add_up(self) -> Self:
        for ranks, share in self.halo.items():
            if not ranks.isdecimal() or share > int(ranks) - 1:
                raise ValueError(
                    f"halo.{ranks}: got {share:g}, expected a number of ranks, and at most that less one: all ranks "
                    "together can lack each vertex so often"
                )
        for ranks, one in self.counted.items():
            if not ranks == str(len(one.rows)) == str(len(one.edges)):
                raise ValueError(f"counted.{ranks}: expected {ranks} rows and edges, one a rank")
            for name, total in (("rows", self.vertices), ("edges", self.edges)):
                if sum(getattr(one, name)) != total:
                    raise ValueError(f"counted.{ranks}.{name}: add up to {sum(getattr(one, name))}, expected {total}")
        return self


class GraphReuse(Strict):
    """A graph that was counted: its in-edges a vertex, and the share of repeated reads of a row that find it among the
    rows read last (``hits``)."""

    graph: StrictStr
    degree: Positive
    hits: Annotated[tuple[Share, ...], Field(min_length=2)]


class Reuse(Strict):
    """How often a row that is read again lies among the rows read last, where these are ``shares`` of all rows. A graph
    without edges here is taken to be like the counted one of ``of`` with the nearest number of in-edges a vertex."""

    shares: Annotated[tuple[Positive, ...], Field(min_length=2)]
    of: Annotated[tuple[GraphReuse, ...], Field(min_length=1)]
    assumed: Reason

    @model_validator(mode="after")
    def _grow(self) -> Self:
        if self.shares[-1] != 1.0 or any(b <= a for a, b in pairwise(self.shares)):
            raise ValueError("shares: expected numbers that grow and end with 1.0")
        for one in self.of:
            if len(one.hits) != len(self.shares) or one.hits[-1] != 1.0 or any(b < a for a, b in pairwise(one.hits)):
                raise ValueError(f"of.hits: expected as many as shares that do not fall and end with 1.0 ({one.graph})")
        return self

    def like(self, degree: float) -> GraphReuse:
        """The counted graph whose in-edges a vertex differ from ``degree`` by the least factor."""
        return min(self.of, key=lambda one: abs(log(one.degree / degree)))


class Balance(Strict):
    """Largest over mean of a rank's in-edges and halo rows, by rank count, of partitions that nobody here can count."""

    edges: dict[StrictStr, Annotated[StrictFloat, Field(ge=1.0)]]
    halo: dict[StrictStr, Annotated[StrictFloat, Field(ge=1.0)]]
    assumed: Reason


class Adjustment(Strict):
    """What the software of a table does otherwise on a device: factors on the ``costs`` of a primitive's curves, and on
    the bytes of the caches that they name. It applies to the kinds of ``models`` and to the graphs ``datasets`` (by any
    of their names), to all where none is named."""

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
        """Whether it applies to a row of this kind of model and this graph."""
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
    """Settings of an experiment that only some ``models`` of a table have."""

    models: Annotated[tuple[StrictStr, ...], Field(min_length=1)]
    set: Annotated[dict[StrictStr, Any], Field(min_length=1)]
    assumed: Reason


class Kept(Strict):
    """What a system keeps on its devices by its authors' own sums, bytes: of each vertex ``item_bytes`` times (``rows``
    x widths of all layers' rows, of halo rows too + ``hidden`` x widths between layers + ``last`` x classes), and
    ``edge_bytes`` of each in-edge."""

    item_bytes: Count = 4
    rows: Some
    hidden: Some
    last: Some
    edge_bytes: Some
    assumed: Reason


class PublishedTable(Strict):
    """Rows of one file: those whose columns equal ``select``. ``time``: column of seconds, of ``epochs`` epochs.
    ``models``: what the model column says -> kind here; rows of other models are counted as left out. ``ranks``,
    ``layers``: a column, or a number. ``noise``: standard deviation of a printed time as a share of it, besides its
    rounding; ``noise_assumed``: why. ``given``: settings of some models besides ``set``; ``open``: settings that would
    fit what is published as well, which widen ranges and may undo a verdict."""

    file: StrictStr
    select: dict[StrictStr, tuple[StrictStr, ...]]
    dataset: StrictStr
    model: StrictStr
    time: StrictStr
    epochs: Count = 1
    ranks: StrictStr | Count
    layers: StrictStr | Count
    models: dict[StrictStr, StrictStr]
    profile: StrictStr
    label: StrictStr
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
                raise ValueError(f"{key}.models: got {got}, expected those of the table: {', '.join(mapped)}")
        return self


class PublishedBars(Strict):
    """Largest ``median_factor`` either way, least ``tau``, most decided memory verdicts that may be wrong."""

    median_factor: Annotated[StrictFloat, Field(ge=1.0)]
    tau: Annotated[StrictFloat, Field(ge=-1.0, le=1.0)]
    wrong_verdicts: Whole = 0


class PublishedSuite(Strict):
    """Tables of published results, the graphs that they are of, and how far each assumption is varied."""

    kind: Literal["published"]
    name: Name
    description: StrictStr
    extends: StrictStr = "vanilla"
    vary: Annotated[StrictFloat, Field(ge=0.0, lt=1.0)]
    bars: PublishedBars
    reuse: Reuse | None = None
    balance: Balance | None = None
    datasets: Annotated[tuple[Dataset, ...], Field(min_length=1)]
    tables: Annotated[tuple[PublishedTable, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _datasets_are_described(self) -> Self:
        names = [name for dataset in self.datasets for name in dataset.names]
        doubled = sorted({name for name in names if names.count(name) > 1})
        if doubled:
            raise ValueError(f"datasets: {', '.join(doubled)} named twice; expected each name in one of them")
        unknown = {name for table in self.tables for one in table.adjust for name in one.datasets}.difference(names)
        if unknown:
            raise ValueError(
                f"tables.adjust.datasets: got {', '.join(sorted(unknown))}, expected names of datasets: "
                f"{', '.join(sorted(names))}"
            )
        return self

    def assumptions(self) -> tuple[str, ...]:
        """Everything that is assumed, one line each."""
        told = [
            f"{one.names[0]}: {one.assumed}; {100 * one.train_share:g} % of its vertices are trained on"
            f"{_settings(one.set)}"
            for one in self.datasets
        ]
        if self.reuse is not None:
            told.append(f"rows read again: {self.reuse.assumed}")
        if self.balance is not None:
            told.append(f"balance of partitions: {self.balance.assumed}")
        for table in self.tables:
            told.append(f"{table.label}, noise of its times {100 * table.noise:g} %: {table.noise_assumed}")
            told += [f"{table.label}, {one.label}: {one.assumed}" for one in table.adjust]
            told += [f"{table.label}{_settings(table.set)}"] if table.set else []
            given = table.given
            told += [f"{table.label}, {', '.join(one.models)}: {one.assumed}{_settings(one.set)}" for one in given]
            told += [f"{table.label}, left open: {one.assumed}{_settings(one.set)}" for one in table.open]
            told += [f"{table.label}, memory: {table.kept.assumed}"] if table.kept else []
        return tuple(told)


def _settings(table: Table) -> str:
    said = ", ".join(f"{'.'.join(path)} = {shown(value)}" for path, value in leaves(table))
    return f"; set: {said}" if said else ""


def load_published(path: Path) -> PublishedSuite:
    """The suite of a file; :class:`ConfigError` with every fault."""
    return validated(PublishedSuite, load_toml(path), path)


def published_folder() -> Path:
    """The folder of the published tables, ``published`` beside ``$SIMGNN_DATA``; :class:`ConfigError` if absent."""
    data = os.environ.get("SIMGNN_DATA", "")
    folder = Path(data).resolve().parent / "published"
    if not data or not folder.is_dir():
        raise ConfigError(
            f"published: expected the tables in the folder 'published' beside SIMGNN_DATA, got "
            f"{folder if data else 'SIMGNN_DATA not set'}; set it to the folder of the real graphs"
        )
    return folder
