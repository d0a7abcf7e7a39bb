"""Predictions against epoch times and memory verdicts that others have published, on statistics with assumptions.

Graphs that are not here are numbers: vertices, edges, widths as printed, and assumptions (how many halo rows a
partition has, whether edges were counted in both directions). Assumptions are committed in the suite's file before
scoring. A memory verdict is given only where varying each assumption by ``vary`` either way does not change it.
"""

import csv
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, StrictFloat, StrictInt, StrictStr, ValidationError, model_validator

from simgnn.errors import ConfigError
from simgnn.hardware.problems import sentences
from simgnn.hardware.profile import load_profile
from simgnn.hardware.quantities import Strict
from simgnn.hardware.topology import Name
from simgnn.study.backend import Backend
from simgnn.study.cases import case_experiment
from simgnn.study.score import kendall_tau
from simgnn.tomlfile import Table, load_toml, write_toml

Share = Annotated[StrictFloat, Field(ge=0.0, le=1.0)]
Count = Annotated[StrictInt, Field(ge=1)]
Verdict = Literal["fits", "oom", "undecided"]
EPOCHS = 3


class Dataset(Strict):
    """A graph as numbers. ``names``: what papers call it. ``edges``: in-edges that are aggregated, both directions
    counted. ``halo``: assumed halo rows of all ranks over vertices, by rank count. ``assumed`` says why so."""

    names: Annotated[tuple[StrictStr, ...], Field(min_length=1)]
    vertices: Count
    edges: Count
    features: Count
    classes: Count
    train_share: Share
    halo: dict[StrictStr, Annotated[StrictFloat, Field(ge=0.0)]] = Field(default_factory=dict)
    set: dict[StrictStr, Any] = Field(default_factory=dict)
    assumed: StrictStr


class PublishedTable(Strict):
    """Rows of one file: those whose columns equal ``select``. ``time``: column of seconds, of ``epochs`` epochs.
    ``models``: what the model column says -> kind here; rows of other models are counted as left out. ``ranks``: a
    column, or a number."""

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
    set: dict[StrictStr, Any] = Field(default_factory=dict)


class PublishedBars(Strict):
    """``median_factor``: either way; ``wrong_verdicts``: decided memory verdicts that may be wrong."""

    median_factor: Annotated[StrictFloat, Field(ge=1.0)]
    tau: Annotated[StrictFloat, Field(ge=-1.0, le=1.0)]
    wrong_verdicts: Annotated[StrictInt, Field(ge=0)] = 0


class PublishedSuite(Strict):
    """Tables of published results, the graphs that they are of, and how far each assumption is varied."""

    kind: Literal["published"]
    name: Name
    description: StrictStr
    extends: StrictStr = "vanilla"
    vary: Share
    bars: PublishedBars
    datasets: Annotated[tuple[Dataset, ...], Field(min_length=1)]
    tables: Annotated[tuple[PublishedTable, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _names_are_single(self) -> Self:
        names = [name for dataset in self.datasets for name in dataset.names]
        doubled = sorted({name for name in names if names.count(name) > 1})
        if doubled:
            raise ValueError(f"datasets: {', '.join(doubled)} named twice; expected each name in one of them")
        return self


@dataclass(frozen=True)
class PublishedRow:
    """One published result and its prediction. ``factor``: predicted over published time; ``low_s``, ``high_s``: least
    and largest prediction over the varied assumptions. None: out of memory is predicted, which takes no time."""

    label: str
    dataset: str
    model: str
    layers: int
    ranks: int
    published_s: float | None
    published_status: str
    predicted_s: float | None
    low_s: float | None
    high_s: float | None
    factor: float | None
    verdict: Verdict


@dataclass(frozen=True)
class PublishedBoard:
    """What ``simgnn validate published`` reports. ``left_out``: rows of models that the suite does not map to ours."""

    suite: str
    rows: tuple[PublishedRow, ...]
    left_out: int
    median_factor: float | None
    tau: float | None
    tau_pairs: int
    right: int
    wrong: int
    undecided: int
    bars: dict[str, bool]
    assumptions: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether every bar holds."""
        return all(self.bars.values())

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {**asdict(self), "holds": self.holds}


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


def score_published(suite: PublishedSuite, tables: Path, backend: Backend) -> PublishedBoard:
    """Predict every selected row and score. Raises :class:`ConfigError` for a file, column, graph or number that is
    not as the suite says."""
    rows, left_out = [], 0
    for table in suite.tables:
        for entry in _selected(table, tables / table.file):
            if entry[table.model] not in table.models:
                left_out += 1
                continue
            backend.tell(f"predicting {table.label}: {entry[table.dataset]}, {entry[table.model]}")
            rows.append(_row(suite, table, entry, backend))
    timed = [row for row in rows if row.factor is not None and row.published_s is not None]
    factors = np.array([row.factor for row in timed], dtype=np.float64)
    median = float(np.median(np.maximum(factors, 1 / factors))) if timed else None
    predicted = np.array([row.predicted_s for row in timed], dtype=np.float64)
    published = np.array([row.published_s for row in timed], dtype=np.float64)
    tau, pairs = kendall_tau(predicted, published, np.zeros(len(timed)))
    decided = [row for row in rows if row.verdict != "undecided"]
    right = sum((row.verdict == "oom") == (row.published_status == "oom") for row in decided)
    bars = suite.bars
    return PublishedBoard(
        suite.name,
        tuple(rows),
        left_out,
        median,
        tau,
        pairs,
        right,
        len(decided) - right,
        len(rows) - len(decided),
        {
            "median_factor": median is not None and median <= bars.median_factor,
            "tau": tau is not None and tau >= bars.tau,
            "wrong_verdicts": len(decided) - right <= bars.wrong_verdicts,
        },
        tuple(f"{dataset.names[0]}: {dataset.assumed}" for dataset in suite.datasets),
    )


def _selected(table: PublishedTable, path: Path) -> Iterator[Mapping[str, str]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            entries = list(csv.DictReader(file))
    except OSError as error:
        raise ConfigError(f"published: {path} cannot be read: {error.strerror}") from None
    columns = {table.dataset, table.model, table.time, "status", *table.select}
    columns |= {name for name in (table.ranks, table.layers) if isinstance(name, str)}
    missing = sorted(columns - set(entries[0] if entries else ()))
    if missing:
        raise ConfigError(f"published: {path} has no column {', '.join(missing)}; expected those that the suite names")
    chosen = [
        entry
        for entry in entries
        if entry["status"] in ("ok", "oom") and all(entry[key] in values for key, values in table.select.items())
    ]
    if not chosen:
        raise ConfigError(f"published: no row of {path} is as the suite selects: {table.select}")
    yield from chosen


def _row(suite: PublishedSuite, table: PublishedTable, entry: Mapping[str, str], backend: Backend) -> PublishedRow:
    name = entry[table.dataset]
    dataset = next((one for one in suite.datasets if name in one.names), None)
    if dataset is None:
        raise ConfigError(f"datasets: {table.file} speaks of '{name}', which the suite does not describe")
    ranks, layers = (int(entry[where]) if isinstance(where, str) else where for where in (table.ranks, table.layers))
    if ranks > 1 and str(ranks) not in dataset.halo:
        raise ConfigError(f"datasets: '{name}' has no halo for {ranks} ranks, which {table.file} needs")
    model = {"kind": table.models[entry[table.model]], "layers": layers}
    results = []
    for change in _variations(suite.vary, ranks):
        with TemporaryDirectory(prefix="simgnn-published-") as scratch:
            path = Path(scratch) / "graph.toml"
            write_toml(path, _statistics(dataset, name, ranks, change))
            settings: list[Table] = [
                table.set,
                dataset.set,
                {
                    "name": f"{name}-{ranks}",
                    "model": model,
                    "graph": {"source": f"stats:{path}"},
                    "cluster": {"hosts": 1, "ranks_per_host": ranks},
                    "train": {"epochs": EPOCHS, "eval_every": 0},
                },
            ]
            found = backend.predict(case_experiment(suite.extends, settings), load_profile(table.profile)).result
            results.append((found.epoch_s_median, found.status == "oom"))
    predicted, full = results[0]
    times = [seconds for seconds, _ in results if seconds is not None]
    agree = all(verdict == full for _, verdict in results)
    published = float(entry[table.time]) / table.epochs if entry["status"] == "ok" else None
    return PublishedRow(
        table.label,
        name,
        entry[table.model],
        layers,
        ranks,
        published,
        entry["status"],
        predicted,
        min(times, default=None),
        max(times, default=None),
        None if published is None or predicted is None else predicted / published,
        ("oom" if full else "fits") if agree else "undecided",
    )


def _variations(share: float, ranks: int) -> list[dict[str, float]]:
    """Nothing changed, then each assumption changed either way."""
    names = ["edges", *(["halo"] if ranks > 1 else [])]
    return [{}, *({name: factor} for name in names for factor in (1 - share, 1 + share))]


def _statistics(dataset: Dataset, name: str, ranks: int, change: Mapping[str, float]) -> Table:
    halo = dataset.halo[str(ranks)] * change.get("halo", 1.0) if ranks > 1 else 0.0
    partition: Table = {"ranks": ranks, "replication_factor": min(1.0 + halo, float(ranks))}
    return {
        "graph": {
            "name": name,
            "vertices": dataset.vertices,
            "edges": round(dataset.edges * change.get("edges", 1.0)),
            "feature_width": dataset.features,
            "classes": dataset.classes,
            "train_vertices": int(dataset.vertices * dataset.train_share),
        },
        "partition": partition,
    }
