"""Reads figures of an ablation from a file of facts in running text: seconds before and after a step is added.

A fact is a line (paper, section, quantity, value, unit), such as "Reddit GCN comm time, Vanilla to +JACA", "112.31 to
41.86", "s per 200 epochs": graph, model, what is timed, and one step or two. The same figure may occur twice.
"""

import csv
import re
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from simgnn.errors import ConfigError
from simgnn.spelling import nearest
from simgnn.study.published.suite import Ablation, Quantity

COLUMNS = ("paper", "section", "quantity", "value", "unit")
BETWEEN = " to "
QUANTITY = re.compile(r"(?P<graph>\S+) (?P<model>\S+) (?P<timed>[^,]+), (?P<steps>.+)")
UNIT = re.compile(r"s per (?P<epochs>[1-9]\d*) epochs")


@dataclass(frozen=True)
class Figure:
    """The seconds that a paper prints of a step of an ablation. ``epochs``: in so many; ``text``: as printed; ``line``:
    of the file."""

    dataset: str
    model: str
    quantity: Quantity
    step: str
    seconds: float
    text: str
    epochs: int
    line: int

    @property
    def of(self) -> tuple[str, str, Quantity, str]:
        """What the figure is of; a paper prints one figure of it."""
        return self.dataset, self.model, self.quantity, self.step


@dataclass(frozen=True)
class Change:
    """Figures before and after a step is added. ``before``: None if only one is printed."""

    before: Figure | None
    after: Figure


def changes(ablation: Ablation, path: Path) -> list[Change]:
    """Read the facts that an ablation selects, in their order. Raises :class:`ConfigError` with every fault and its
    line."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            rows = [(reader.line_num, row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"published: {path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if missing := sorted(set(COLUMNS) - set(reader.fieldnames or ())):
        raise ConfigError(f"published: {path} has no column {', '.join(missing)}, which files of facts have")
    chosen = [
        (line, row)
        for line, row in rows
        if (row["paper"], row["section"]) == (ablation.paper, ablation.section) and UNIT.fullmatch(row["unit"] or "")
    ]
    if not chosen:
        raise ConfigError(
            f"published: {path} has no figure of {ablation.paper}, section {ablation.section}, in seconds per a number "
            "of epochs; correct 'paper' or 'section'"
        )
    faults: list[str] = []
    found, printed = list[Change](), dict[tuple[str, ...], Figure]()
    for line, row in chosen:
        where = f"published: {path}, line {line}"
        figures = _figures(ablation, row, line, where, faults)
        for figure in figures:
            known = printed.setdefault(figure.of, figure)
            if known.seconds / known.epochs != figure.seconds / figure.epochs:
                faults.append(
                    f"{where}: value: got {figure.text} s of {figure.step}, expected {known.text} s as in line "
                    f"{known.line}, which is of the same"
                )
        if figures:
            found.append(Change(figures[0] if len(figures) > 1 else None, figures[-1]))
    if faults:
        raise ConfigError(faults)
    return found


def _figures(
    ablation: Ablation, row: dict[str, str], line: int, where: str, faults: list[str]
) -> tuple[Figure, ...]:  # fmt: skip
    """Read the figures of a fact, before the step and after it, or after it alone; none if there is a fault."""
    told, unit = QUANTITY.fullmatch(row["quantity"]), UNIT.fullmatch(row["unit"])
    assert unit is not None, "lines are selected by their unit"
    if told is None:
        faults.append(f"{where}: quantity: got '{row['quantity']}', expected 'GRAPH MODEL WHAT, STEP to STEP'")
        return ()
    steps, values = told["steps"].split(BETWEEN), (row["value"] or "").split(BETWEEN)
    before = len(faults)
    for name, got, known in (
        ("model", [told["model"]], ablation.models),
        ("time", [told["timed"]], list(ablation.quantities)),
        ("step", steps, list(ablation.steps)),
    ):
        faults += [
            f"{where}: quantity: got the {name} '{one}', expected one of {', '.join(known)}{nearest(one, known)}"
            for one in got
            if one not in known
        ]
    if len(steps) not in (1, 2) or len(steps) != len(values):
        faults.append(f"{where}: value: got '{row['value']}', expected a number for each of {', '.join(steps)}")
    faults += [f"{where}: value: got '{one}', expected seconds above zero" for one in values if not _above_zero(one)]
    if len(faults) > before:
        return ()
    return tuple(
        Figure(
            told["graph"], told["model"], ablation.quantities[told["timed"]], step, float(text), text,
            int(unit["epochs"]), line,
        )
        for step, text in zip(steps, values, strict=True)
    )  # fmt: skip


def _above_zero(text: str) -> bool:
    try:
        found = float(text)
    except ValueError:
        return False
    return isfinite(found) and found > 0
