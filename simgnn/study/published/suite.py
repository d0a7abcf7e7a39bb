"""Suites of published results: epoch times and memory verdicts that others have printed, and what is assumed of them.

Graphs that are not here are numbers: vertices, edges, widths as printed, and assumptions (how many halo rows a
partition has, how often a row is read again soon). What a paper's software does otherwise than ours is told too, each
with its reason. All of it is committed in the suite's file before scoring (:mod:`simgnn.study.published.score`).
"""

import os
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StrictFloat, StrictStr, ValidationError, field_validator, model_validator

from simgnn.errors import ConfigError
from simgnn.experiment.problems import shown
from simgnn.hardware.primitives import PRIMITIVES
from simgnn.hardware.profile.quantities import Strict
from simgnn.hardware.topology.topology import Name
from simgnn.schema_faults import sentences
from simgnn.spelling import nearest
from simgnn.study.published.datasets import Balance, Count, Dataset, Positive, Reason, Reuse, Share, Some, Whole
from simgnn.tomlfile import Table, leaves, load_toml


class Adjustment(Strict):
    """What the software of a table does otherwise on a device: factors on the ``costs`` of a primitive's curves, and on
    the bytes of the caches that they speak of. ``models``: kinds of models that do so, ``datasets``: graphs (by any of
    their names) that the factors were counted on; all where none is named."""

    primitive: StrictStr
    models: tuple[StrictStr, ...] = ()
    datasets: tuple[StrictStr, ...] = ()
    costs: Annotated[dict[StrictStr, Positive], Field(min_length=1)]
    cache: Positive = 1.0
    assumed: Reason

    @property
    def label(self) -> str:
        """What it is about, in words."""
        about = [*self.models, *self.datasets]
        return f"{self.primitive} of {', '.join(about)}" if about else self.primitive

    def concerns(self, model: str, dataset: Dataset) -> bool:
        """Whether a row of this kind of model and this graph is adjusted."""
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
    """Settings of an experiment that only some ``models`` of a table have, and why."""

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
        named = {
            "adjust": {name for one in self.adjust for name in one.models},
            "given": {name for one in self.given for name in one.models},
            "open": {name for one in self.open for name in one.models},
        }
        for key, models in named.items():
            unknown = models - set(mapped)
            if unknown:
                got = ", ".join(sorted(unknown))
                raise ValueError(f"{key}.models: got {got}, expected those of the table: {', '.join(mapped)}")
        return self


class PublishedBars(Strict):
    """``median_factor``: either way; ``wrong_verdicts``: decided memory verdicts that may be wrong."""

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
    def _names_are_single(self) -> Self:
        names = [name for dataset in self.datasets for name in dataset.names]
        doubled = sorted({name for name in names if names.count(name) > 1})
        if doubled:
            raise ValueError(f"datasets: {', '.join(doubled)} named twice; expected each name in one of them")
        return self

    @model_validator(mode="after")
    def _adjusted_datasets_are_described(self) -> Self:
        known = {name for dataset in self.datasets for name in dataset.names}
        for table in self.tables:
            unknown = {name for one in table.adjust for name in one.datasets} - known
            if unknown:
                raise ValueError(
                    f"tables.adjust.datasets: got {', '.join(sorted(unknown))}, expected names of datasets: "
                    f"{', '.join(sorted(known))}"
                )
        return self

    def assumptions(self) -> tuple[str, ...]:
        """All that is assumed, a line each."""
        told = [
            f"{dataset.names[0]}: {dataset.assumed}; {100 * dataset.train_share:g} % of its vertices are trained on"
            f"{_settings(dataset.set)}"
            for dataset in self.datasets
        ]
        if self.reuse is not None:
            told.append(f"rows read again: {self.reuse.assumed}")
        if self.balance is not None:
            told.append(f"balance of partitions: {self.balance.assumed}")
        for table in self.tables:
            told.append(f"{table.label}, noise of its times {100 * table.noise:g} %: {table.noise_assumed}")
            told += [f"{table.label}, {one.label}: {one.assumed}" for one in table.adjust]
            told += [f"{table.label}{_settings(table.set)}"] if table.set else []
            told += [
                f"{table.label}, {', '.join(one.models)}: {one.assumed}{_settings(one.set)}" for one in table.given
            ]
            told += [f"{table.label}, left open: {one.assumed}{_settings(one.set)}" for one in table.open]
            told += [f"{table.label}, memory: {table.kept.assumed}"] if table.kept else []
        return tuple(told)


def _settings(table: Table) -> str:
    """Settings, in words that follow others."""
    said = ", ".join(f"{'.'.join(path)} = {shown(value)}" for path, value in leaves(table))
    return f"; set: {said}" if said else ""


def load_published(path: Path) -> PublishedSuite:
    """The suite of a file; :class:`ConfigError` with every fault."""
    try:
        return PublishedSuite.model_validate(load_toml(path))
    except ValidationError as error:
        raise ConfigError([f"{path}: {line}" for line in sentences(PublishedSuite, error)]) from None


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
