"""Scores predictions against epoch times and out-of-memory results that others have published.

Every row of the suite (:mod:`simgnn.study.published.suite`) is predicted with the assumptions as stated, then with each
assumption alone varied by ``vary`` up and down, and with each open setting. A memory verdict is given only if none of
these changes it.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from simgnn.study.backend import Backend
from simgnn.study.error_measures import Floats, kendall_tau, ordered_pairs
from simgnn.study.published.rows import PublishedRow, published_row
from simgnn.study.published.suite import PublishedBars, PublishedSuite
from simgnn.study.published.tables import selected_rows


@dataclass(frozen=True)
class Order:
    """Kendall's ``tau`` over ``pairs`` of rows whose measured times differ by more than noise; None without pairs.
    ``discordant`` pairs are predicted in the opposite order, ``equal`` pairs with equal times."""

    tau: float | None
    pairs: int
    discordant: int
    equal: int


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
                rows.append(published_row(suite, table, entry, backend))
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
