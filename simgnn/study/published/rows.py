"""Rows of a published table, as a suite selects them; what is printed there is checked before anything is predicted."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from simgnn.errors import ConfigError
from simgnn.study.published.suite import PublishedTable

SCORED = ("ok", "oom")


@dataclass(frozen=True)
class Entry:
    """One printed result. ``seconds``: of all its epochs, None where it ran out of memory; ``text``: as printed."""

    dataset: str
    model: str
    layers: int
    ranks: int
    status: str
    seconds: float | None
    text: str


@dataclass(frozen=True)
class Selected:
    """``entries``: what is scored. ``left_out``: rows of models that the suite does not map; ``otherwise``: rows that
    ended neither well nor out of memory."""

    entries: tuple[Entry, ...]
    left_out: int
    otherwise: int


def selected_rows(table: PublishedTable, path: Path) -> Selected:
    """The rows of a file that a suite selects; :class:`ConfigError` with every fault, and its line."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            rows = [(reader.line_num, row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"published: {path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    columns = {table.dataset, table.model, table.time, "status", *table.select}
    columns |= {name for name in (table.ranks, table.layers) if isinstance(name, str)}
    missing = sorted(columns - set(reader.fieldnames or ()))
    if missing:
        raise ConfigError(f"published: {path} has no column {', '.join(missing)}; expected those that the suite names")
    chosen = [(line, row) for line, row in rows if all(row[key] in values for key, values in table.select.items())]
    if not chosen:
        raise ConfigError(f"published: no row of {path} is as the suite selects: {table.select}")
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
    return Selected(tuple(entries), left_out, otherwise)


def _entry(table: PublishedTable, row: Mapping[str, str], where: str, faults: list[str]) -> Entry:
    ranks, layers = (
        _count(row, column, where, faults) if isinstance(column, str) else column
        for column in (table.ranks, table.layers)
    )
    seconds = _seconds(row, table.time, where, faults) if row["status"] == "ok" else None
    return Entry(
        dataset=row[table.dataset],
        model=row[table.model],
        layers=layers,
        ranks=ranks,
        status=row["status"],
        seconds=seconds,
        text=row[table.time],
    )


def _count(row: Mapping[str, str], column: str, where: str, faults: list[str]) -> int:
    try:
        found = int(row[column])
    except ValueError:
        found = 0
    if found < 1:
        faults.append(f"{where}: {column}: got '{row[column]}', expected a whole number of 1 or more")
    return found


def _seconds(row: Mapping[str, str], column: str, where: str, faults: list[str]) -> float:
    try:
        found = float(row[column])
    except ValueError:
        found = 0.0
    if not (isfinite(found) and found > 0):
        faults.append(f"{where}: {column}: got '{row[column]}', expected seconds above zero, as status 'ok' says")
    return found
