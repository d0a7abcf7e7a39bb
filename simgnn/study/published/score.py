"""Predictions against epoch times and memory verdicts that others have published (:mod:`simgnn.study.published.suite`).

Every row is predicted as assumed, then with each assumption varied by ``vary`` either way, alone, and with each setting
that is open. A memory verdict is given only where none of that changes it.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np

from simgnn.errors import ConfigError
from simgnn.hardware.profile.profile import load_profile
from simgnn.study.backend import Backend
from simgnn.study.cases import case_experiment
from simgnn.study.error_measures import kendall_tau
from simgnn.study.profile_variants import adjusted
from simgnn.study.published.datasets import Dataset
from simgnn.study.published.graph import Variation, divide, kept_bytes, statistics, variations
from simgnn.study.published.row_order import Order, orders
from simgnn.study.published.rows import Entry, selected_rows
from simgnn.study.published.suite import PublishedSuite, PublishedTable
from simgnn.tomlfile import Table, write_toml

Verdict = Literal["fits", "oom", "undecided"]
EPOCHS = 3


@dataclass(frozen=True)
class PublishedRow:
    """One published result and its prediction. ``factor``: predicted over published time; ``low_s``, ``high_s``: least
    and largest prediction over the variations. None: out of memory is predicted, which takes no time. ``noise``:
    standard deviation of the published time as a share of it, its rounding included. ``file``: of the printed table.
    ``discordant``: how many other timed rows it is predicted on the wrong side of."""

    file: str
    label: str
    dataset: str
    model: str
    layers: int
    ranks: int
    published_s: float | None
    published_status: str
    noise: float
    predicted_s: float | None
    low_s: float | None
    high_s: float | None
    factor: float | None
    verdict: Verdict
    discordant: int | None = None

    @property
    def inside(self) -> bool:
        """Whether the published time lies in the range."""
        if self.published_s is None or self.low_s is None or self.high_s is None:
            return False
        return self.low_s <= self.published_s <= self.high_s


@dataclass(frozen=True)
class PublishedBoard:
    """What ``simgnn validate published`` reports. ``left_out``: rows of models that the suite does not map to ours;
    ``otherwise``: rows that ended neither well nor out of memory, which are not scored;
    ``inside``: timed rows whose range holds the published time. ``tau`` is over all pairs of rows, whatever table they
    are of; ``within`` and ``across``: over pairs of one printed table, and of two."""

    suite: str
    rows: tuple[PublishedRow, ...]
    left_out: int
    otherwise: int
    median_factor: float | None
    tau: float | None
    tau_pairs: int
    within: Order
    across: Order
    inside: int
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


def score_published(suite: PublishedSuite, tables: Path, backend: Backend) -> PublishedBoard:
    """Predict every selected row and score. Raises :class:`ConfigError` for a file, column, graph or number that is
    not as the suite says."""
    rows, left_out, otherwise = [], 0, 0
    selected = [selected_rows(table, tables / table.file) for table in suite.tables]
    for table, found in zip(suite.tables, selected, strict=True):
        left_out, otherwise = left_out + found.left_out, otherwise + found.otherwise
        for entry in found.entries:
            backend.tell(f"predicting {table.label}: {entry.dataset}, {entry.model}")
            rows.append(_row(suite, table, entry, backend))
    return _board(suite, rows, left_out, otherwise)


def _board(suite: PublishedSuite, rows: Sequence[PublishedRow], left_out: int, otherwise: int) -> PublishedBoard:
    places = [at for at, row in enumerate(rows) if row.factor is not None and row.published_s is not None]
    timed = [rows[at] for at in places]
    factors = np.array([row.factor for row in timed], dtype=np.float64)
    median = float(np.median(np.maximum(factors, 1 / factors))) if timed else None
    predicted = np.array([row.predicted_s for row in timed], dtype=np.float64)
    published = np.array([row.published_s for row in timed], dtype=np.float64)
    noise = np.array([row.noise for row in timed], dtype=np.float64)
    tau, pairs = kendall_tau(predicted, published, noise)
    found = orders(predicted, published, noise, [row.file for row in timed])
    discordant = dict(zip(places, found.discordant, strict=True))
    decided = [row for row in rows if row.verdict != "undecided"]
    right = sum((row.verdict == "oom") == (row.published_status == "oom") for row in decided)
    bars = suite.bars
    return PublishedBoard(
        suite=suite.name,
        rows=tuple(replace(row, discordant=discordant.get(at)) for at, row in enumerate(rows)),
        left_out=left_out,
        otherwise=otherwise,
        median_factor=median,
        tau=tau,
        tau_pairs=pairs,
        within=found.within,
        across=found.across,
        inside=sum(row.inside for row in timed),
        right=right,
        wrong=len(decided) - right,
        undecided=len(rows) - len(decided),
        bars={
            "median_factor": median is not None and median <= bars.median_factor,
            "tau": tau is not None and tau >= bars.tau,
            "wrong_verdicts": len(decided) - right <= bars.wrong_verdicts,
        },
        assumptions=suite.assumptions(),
    )


def _row(suite: PublishedSuite, table: PublishedTable, entry: Entry, backend: Backend) -> PublishedRow:
    name, ranks, layers = entry.dataset, entry.ranks, entry.layers
    dataset = next((one for one in suite.datasets if name in one.names), None)
    if dataset is None:
        raise ConfigError(f"datasets: {table.file} speaks of '{name}', which the suite does not describe")
    model = {"kind": table.models[entry.model], "layers": layers}
    changes = variations(suite, table, str(model["kind"]), ranks, str(ranks) in dataset.counted)
    results = [_predicted(suite, table, dataset, name, ranks, model, change, backend) for change in changes]
    predicted, full = results[0]
    times = [seconds for seconds, _ in results if seconds is not None]
    agree = all(verdict == full for _, verdict in results)
    published = None if entry.seconds is None else entry.seconds / table.epochs
    return PublishedRow(
        file=table.file,
        label=table.label,
        dataset=name,
        model=entry.model,
        layers=layers,
        ranks=ranks,
        published_s=published,
        published_status=entry.status,
        noise=0.0 if published is None else float(np.hypot(table.noise, rounding(entry.text))),
        predicted_s=predicted,
        low_s=min(times, default=None),
        high_s=max(times, default=None),
        factor=None if published is None or predicted is None else predicted / published,
        verdict=("oom" if full else "fits") if agree else "undecided",
    )


def rounding(text: str) -> float:
    """Standard deviation of what a printed decimal number hides, as a share of it: any value of its last digit's unit
    is as likely as another."""
    unit = 10.0 ** -len(text.partition(".")[2])
    return float(unit / np.sqrt(12) / float(text))


def _predicted(
    suite: PublishedSuite,
    table: PublishedTable,
    dataset: Dataset,
    name: str,
    ranks: int,
    model: Table,
    change: Variation,
    backend: Backend,
) -> tuple[float | None, bool]:
    """Seconds of an epoch (None where memory runs out), and whether it does."""
    with TemporaryDirectory(prefix="simgnn-published-") as scratch:
        path = Path(scratch) / "graph.toml"
        write_toml(path, statistics(suite, dataset, name, ranks, change))
        settings: list[Table] = [
            table.set,
            *(one.set for one in table.given if model["kind"] in one.models),
            dataset.set,
            change.set,
            {
                "name": f"{name}-{ranks}",
                "model": model,
                "graph": {"source": f"stats:{path}"},
                "cluster": {"hosts": 1, "ranks_per_host": ranks},
                "train": {"epochs": EPOCHS, "eval_every": 0},
            },
        ]
        experiment = case_experiment(suite.extends, settings)
        adjustments = [one for one in table.adjust if one.concerns(str(model["kind"]), dataset)]
        found = backend.predict(experiment, adjusted(load_profile(table.profile), adjustments, change.memory))
    full = found.result.status == "oom"
    if table.kept is not None:
        widths = experiment.model.widths(dataset.features, dataset.classes)
        needed = kept_bytes(table.kept, widths, divide(suite, dataset, ranks, change))
        full = full or needed > min(found.machine.device(rank).memory.value for rank in range(ranks))
    return None if full else found.result.epoch_s_median, full
