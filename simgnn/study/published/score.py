"""Scores predictions against epoch times and out-of-memory results that others have published.

Every row of the suite (:mod:`simgnn.study.published.suite`) is predicted with the assumptions as stated, then with each
assumption alone varied by ``vary`` up and down, and with each open setting. A memory verdict is given only if none of
these changes it.
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import isfinite
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeVar

import numpy as np

from simgnn.errors import ConfigError
from simgnn.hardware.profile.profile import load_profile
from simgnn.study.backend import Backend
from simgnn.study.cases import case_experiment
from simgnn.study.error_measures import Floats, kendall_tau, ordered_pairs
from simgnn.study.profile_variants import adjusted
from simgnn.study.published.graph import Variation, divide, kept_bytes, statistics, variations
from simgnn.study.published.suite import Dataset, PublishedBars, PublishedSuite, PublishedTable
from simgnn.tomlfile import Table, write_toml

Verdict = Literal["fits", "oom", "undecided"]
EPOCHS = 3
SCORED = ("ok", "oom")
Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class Entry:
    """One published result. ``seconds``: of all epochs, None if it ran out of memory; ``text``: the time as printed;
    ``communication``: seconds of communication of all epochs, None if none are printed."""

    dataset: str
    model: str
    layers: int
    ranks: int
    status: str
    seconds: float | None
    text: str
    communication: float | None = None


@dataclass(frozen=True)
class Order:
    """Kendall's ``tau`` over ``pairs`` of rows whose measured times differ by more than noise; None without pairs.
    ``discordant`` pairs are predicted in the opposite order, ``equal`` pairs with equal times."""

    tau: float | None
    pairs: int
    discordant: int
    equal: int


@dataclass(frozen=True)
class PublishedRow:
    """One published result and its prediction. ``factor``: predicted over published time. ``low_s``, ``high_s``: least
    and largest prediction over the variations; None if running out of memory is predicted. ``noise``: relative standard
    deviation of the published time, rounding included. ``file``: the printed table. ``discordant``: number of other
    timed rows whose order with this row is predicted wrongly. ``published_communication_s``: seconds of an epoch in
    which ranks communicate and do not compute, as printed; ``predicted_communication_s``: the mean over ranks."""

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
    published_communication_s: float | None = None
    predicted_communication_s: float | None = None

    @property
    def communication_factor(self) -> float | None:
        """Predicted over published communication; None: not printed, or no time is predicted."""
        if self.published_communication_s is None or self.predicted_communication_s is None:
            return None
        return self.predicted_communication_s / self.published_communication_s


@dataclass(frozen=True)
class PublishedBoard:
    """Result of ``simgnn validate published``. ``left_out``: rows of models that the suite maps to no model here.
    ``otherwise``: rows that ended neither well nor out of memory, which are not scored. ``inside``: timed rows whose
    range of predictions holds the published time. ``tau``: over all pairs of rows; ``within``, ``across``: over pairs
    of rows in the same table, and in different tables. ``communication_factor``: the median factor either way between
    printed and predicted communication, over ``communication_rows`` rows (None: no row prints it). ``apart``: the
    boards of tables that are scored by themselves; their rows and bars are in none of the other fields."""

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
    communication_factor: float | None = None
    communication_rows: int = 0
    assumptions: tuple[str, ...] = ()
    apart: "tuple[PublishedBoard, ...]" = ()

    @property
    def holds(self) -> bool:
        return all(self.bars.values()) and all(board.holds for board in self.apart)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "holds": self.holds}


def selected_rows(table: PublishedTable, path: Path) -> tuple[list[Entry], int, int]:
    """Read the rows of a file that a suite selects: those to score, the number of rows of unmapped models, and of rows
    that ended neither well nor out of memory. Raises :class:`ConfigError` with every fault and its line."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            rows = [(reader.line_num, row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"published: {path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    columns = {table.dataset, table.model, table.time, "status", *table.select}
    columns |= {name for name in (table.ranks, table.layers, table.communication) if isinstance(name, str)}
    missing = sorted(columns - set(reader.fieldnames or ()))
    if missing:
        raise ConfigError(
            f"published: {path} has no column {', '.join(missing)}, which the suite names; correct one of them"
        )
    chosen = [(line, row) for line, row in rows if all(row[key] in values for key, values in table.select.items())]
    if not chosen:
        raise ConfigError(f"published: no row of {path} matches the suite's selection {table.select}; correct 'select'")
    faults: list[str] = []
    entries, left_out, otherwise = [], 0, 0
    for line, row in chosen:
        short = sorted(name for name in columns if row[name] is None)
        if short:
            faults.append(f"published: {path}, line {line}: ends before column {', '.join(short)}")
        elif row["status"] not in SCORED:
            otherwise += 1
        elif row[table.model] not in table.models:
            left_out += 1
        else:
            entries.append(_entry(table, row, f"published: {path}, line {line}", faults))
    if faults:
        raise ConfigError(faults)
    return entries, left_out, otherwise


def _entry(table: PublishedTable, row: Mapping[str, str], where: str, faults: list[str]) -> Entry:
    def above_zero(column: str, convert: type[Number], expected: str) -> Number:
        try:
            found = convert(row[column])
        except ValueError:
            found = convert(0)
        if not (isfinite(found) and found > 0):
            faults.append(f"{where}: {column}: got '{row[column]}', expected {expected}")
        return found

    ranks, layers = (
        above_zero(column, int, "a whole number of 1 or more") if isinstance(column, str) else column
        for column in (table.ranks, table.layers)
    )
    ended = row["status"] == "ok"
    expected = "seconds above zero, since the status is 'ok'"
    communication = table.communication if ended else None
    return Entry(
        dataset=row[table.dataset],
        model=row[table.model],
        layers=layers,
        ranks=ranks,
        status=row["status"],
        seconds=above_zero(table.time, float, expected) if ended else None,
        text=row[table.time],
        communication=None if communication is None else above_zero(communication, float, expected),
    )


def orders(
    predicted: Floats, measured: Floats, noise: Floats, tables: Sequence[str]
) -> tuple[Order, Order, tuple[int, ...]]:
    """Compare predicted with measured order of rows [n] that are printed in ``tables`` [n]. Returns the order over
    pairs of rows in the same table (one machine, measured by the same people), the order over pairs in different
    tables, and the number of discordant pairs of each row [n]."""
    i, j = ordered_pairs(measured, noise)
    agreement = np.sign(predicted[i] - predicted[j]) * np.sign(measured[i] - measured[j])
    _, table = np.unique(np.asarray(tables, dtype=np.str_), return_inverse=True)
    same, wrong = table[i] == table[j], agreement < 0
    discordant = np.bincount(np.concatenate((i[wrong], j[wrong])), minlength=len(measured))
    return _order(agreement[same]), _order(agreement[~same]), tuple(discordant.tolist())


def _order(agreement: Floats) -> Order:
    pairs, discordant, equal = len(agreement), int((agreement < 0).sum()), int((agreement == 0).sum())
    tau = (pairs - equal - 2 * discordant) / pairs if pairs else None
    return Order(tau, pairs, discordant, equal)


def score_published(suite: PublishedSuite, tables: Path, backend: Backend) -> PublishedBoard:
    """Predict and score every selected row. Raises :class:`ConfigError` where a file does not match the suite."""
    selected = [(table, *selected_rows(table, tables / table.file)) for table in suite.tables]

    def board(name: str, group: str | None, bars: PublishedBars) -> PublishedBoard:
        rows, left_out, otherwise = [], 0, 0
        for table, entries, unmapped, ended in selected:
            if table.apart != group:
                continue
            left_out, otherwise = left_out + unmapped, otherwise + ended
            for entry in entries:
                backend.tell(f"predicting {table.label}: {entry.dataset}, {entry.model}")
                rows.append(_row(suite, table, entry, backend))
        return _board(name, bars, rows, left_out, otherwise)

    apart = tuple(board(name, name, bars) for name, bars in suite.apart.items())
    return replace(board(suite.name, None, suite.bars), assumptions=suite.assumptions(), apart=apart)


def _board(
    name: str, bars: PublishedBars, rows: Sequence[PublishedRow], left_out: int, otherwise: int
) -> PublishedBoard:
    places = [at for at, row in enumerate(rows) if row.factor is not None and row.published_s is not None]
    timed = [rows[at] for at in places]
    factors = np.array([row.factor for row in timed], dtype=np.float64)
    median = float(np.median(np.maximum(factors, 1 / factors))) if timed else None
    names = ("predicted_s", "published_s", "noise", "low_s", "high_s")
    columns = ([getattr(row, name) for row in timed] for name in names)
    predicted, published, noise, low, high = (np.array(column, dtype=np.float64) for column in columns)
    tau, pairs = kendall_tau(predicted, published, noise)
    within, across, wrong = orders(predicted, published, noise, [row.file for row in timed])
    discordant = dict(zip(places, wrong, strict=True))
    parts = [row.communication_factor for row in rows if row.communication_factor]
    decided = [row for row in rows if row.verdict != "undecided"]
    right = sum((row.verdict == "oom") == (row.published_status == "oom") for row in decided)
    return PublishedBoard(
        suite=name,
        rows=tuple(replace(row, discordant=discordant.get(at)) for at, row in enumerate(rows)),
        left_out=left_out,
        otherwise=otherwise,
        median_factor=median,
        tau=tau,
        tau_pairs=pairs,
        within=within,
        across=across,
        inside=int(((low <= published) & (published <= high)).sum()),
        right=right,
        wrong=len(decided) - right,
        undecided=len(rows) - len(decided),
        bars={
            "median_factor": median is not None and median <= bars.median_factor,
            **({} if bars.tau is None else {"tau": tau is not None and tau >= bars.tau}),
            "wrong_verdicts": len(decided) - right <= bars.wrong_verdicts,
        },
        communication_factor=float(np.median([max(one, 1 / one) for one in parts])) if parts else None,
        communication_rows=len(parts),
    )


def _row(suite: PublishedSuite, table: PublishedTable, entry: Entry, backend: Backend) -> PublishedRow:
    name, ranks = entry.dataset, entry.ranks
    dataset = next((one for one in suite.datasets if name in one.names), None)
    if dataset is None:
        raise ConfigError(
            f"datasets: {table.file} has rows of the graph '{name}', which the suite does not describe; add it"
        )
    kind = table.models[entry.model]
    changes = variations(suite, table, kind, ranks, str(ranks) in dataset.counted)
    results = [_predicted(suite, table, dataset, entry, change, backend) for change in changes]
    predicted, communication, full = results[0]
    times = [seconds for seconds, _, _ in results if seconds is not None]
    agree = all(verdict == full for _, _, verdict in results)
    published = None if entry.seconds is None else entry.seconds / table.epochs
    return PublishedRow(
        file=table.file,
        label=table.label,
        dataset=name,
        model=entry.model,
        layers=entry.layers,
        ranks=ranks,
        published_s=published,
        published_status=entry.status,
        noise=0.0 if published is None else float(np.hypot(table.noise, rounding(entry.text))),
        predicted_s=predicted,
        low_s=min(times, default=None),
        high_s=max(times, default=None),
        factor=None if published is None or predicted is None else predicted / published,
        verdict=("oom" if full else "fits") if agree else "undecided",
        published_communication_s=None if entry.communication is None else entry.communication / table.epochs,
        predicted_communication_s=communication,
    )


def rounding(text: str) -> float:
    """Return the standard deviation of the rounding error of a printed decimal number, divided by the number."""
    unit = 10.0 ** -len(text.partition(".")[2])
    return float(unit / np.sqrt(12) / float(text))


def _predicted(
    suite: PublishedSuite, table: PublishedTable, dataset: Dataset, entry: Entry, change: Variation, backend: Backend
) -> tuple[float | None, float | None, bool]:
    """Return the predicted seconds of an epoch and those of communication (None if memory runs out), and whether memory
    runs out."""
    name, ranks, kind = entry.dataset, entry.ranks, table.models[entry.model]
    with TemporaryDirectory(prefix="simgnn-published-") as scratch:
        path = Path(scratch) / "graph.toml"
        write_toml(path, statistics(suite, dataset, name, ranks, change, table.blocks is not None))
        own: Table = {
            "name": f"{name}-{ranks}",
            "model": {"kind": kind, "layers": entry.layers},
            "graph": {"source": f"stats:{path}"},
            "cluster": {"hosts": 1, "ranks_per_host": ranks},
            "train": {"epochs": EPOCHS, "eval_every": 0},
        }
        given = [one.set for one in table.given if kind in one.models]
        system = table.extends or suite.extends
        experiment = case_experiment(system, [table.set, *given, dataset.set, change.set, own])
        adjustments = [one for one in table.adjust if one.concerns(kind, dataset)]
        profile = load_profile(table.profile)
        profile = profile if table.backend is None else profile.using(table.backend)
        found = backend.predict(experiment, adjusted(profile, adjustments, change.memory))
    full = found.result.status == "oom"
    if table.kept is not None:
        widths = experiment.model.widths(dataset.features, dataset.classes)
        division = divide(suite, dataset, ranks, change, table.blocks is not None)
        needed = kept_bytes(table.kept, widths, division)
        full = full or needed > min(found.machine.device(rank).memory.value for rank in range(ranks))
    if full:
        return None, None, True
    exposed = float(np.mean([times.comm_exposed_s for times in found.result.per_rank]))
    return found.result.epoch_s_median, exposed, False
