"""Reads the published results that a suite selects from the tables of papers."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import TypeVar

from simgnn.errors import ConfigError
from simgnn.study.published.suite import PublishedTable

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
