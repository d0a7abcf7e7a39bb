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
from simgnn.study.published.facts import Change, Figure, changes
from simgnn.study.published.rows import PublishedRow, published_row
from simgnn.study.published.suite import Ablation, PublishedBars, PublishedSuite
from simgnn.study.published.tables import Entry, selected_rows


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
    printed and predicted communication, over ``communication_rows`` rows (None: no row prints it). ``ratio_factor``:
    the same of ratios of a time to that without the last step of an ablation, over ``ratio_rows`` rows. ``apart``: the
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
    ratio_factor: float | None = None
    ratio_rows: int = 0
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


def wrong_pairs(predicted: Floats, measured: Floats, noise: Floats, tables: Sequence[str]) -> dict[str, int]:
    """Count the pairs of rows of each table [n] that are predicted in the opposite order."""
    found = {}
    for table in dict.fromkeys(tables):
        here = np.array([each == table for each in tables])
        found[table] = orders(predicted[here], measured[here], noise[here], [table] * int(here.sum()))[0].discordant
    return found


def score_published(suite: PublishedSuite, tables: Path, backend: Backend) -> PublishedBoard:
    """Predict and score every selected row. Raises :class:`ConfigError` where a file does not match the suite."""
    selected = [(table, *selected_rows(table, tables / table.file)) for table in suite.tables]
    ablated = [(one, changes(one, tables / one.file)) for one in suite.ablations]

    def board(name: str, group: str | None, bars: PublishedBars) -> PublishedBoard:
        rows, left_out, otherwise = [], 0, 0
        for table, entries, unmapped, ended in selected:
            if table.apart != group:
                continue
            left_out, otherwise = left_out + unmapped, otherwise + ended
            for entry in entries:
                backend.tell(f"predicting {table.label}: {entry.dataset}, {entry.model}")
                rows.append(published_row(suite, table, entry, backend))
        for ablation, found in ablated:
            rows += ablation_rows(suite, ablation, found, backend) if ablation.apart == group else []
        return _board(name, bars, rows, left_out, otherwise)

    apart = tuple(board(name, name, bars) for name, bars in suite.apart.items())
    return replace(board(suite.name, None, suite.bars), assumptions=suite.assumptions(), apart=apart)


def ablation_rows(
    suite: PublishedSuite, ablation: Ablation, found: Sequence[Change], backend: Backend
) -> list[PublishedRow]:  # fmt: skip
    """Predict the figures of an ablation, each once, in the order of the facts; those after a step have its ratio."""
    like = next(table for table in suite.tables if table.label == ablation.like)
    rows: dict[tuple[str, ...], PublishedRow] = {}

    def row(figure: Figure) -> PublishedRow:
        if figure.of not in rows:
            backend.tell(f"predicting {ablation.label}, {figure.step}: {figure.dataset}, {figure.model}")
            table = ablation.table(like, figure.step, figure.quantity, figure.epochs)
            entry = Entry(
                figure.dataset, figure.model, ablation.layers, ablation.ranks, "ok", figure.seconds, figure.text
            )
            rows[figure.of] = published_row(suite, table, entry, backend)
        return rows[figure.of]

    for change in found:
        if change.before is None:
            row(change.after)
            continue
        before, after = row(change.before), row(change.after)
        published, predicted = (
            None if one is None or other is None else one / other
            for one, other in ((after.published_s, before.published_s), (after.predicted_s, before.predicted_s))
        )
        rows[change.after.of] = replace(after, published_ratio=published, predicted_ratio=predicted)
    return list(rows.values())


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
    printed = [f"{row.file}, {row.timed}" for row in timed]
    within, across, wrong = orders(predicted, published, noise, printed)
    by_table = wrong_pairs(predicted, published, noise, printed)
    discordant = dict(zip(places, wrong, strict=True))
    parts = [row.communication_factor for row in rows if row.communication_factor]
    ratios = [row.ratio_factor for row in rows if row.ratio_factor]
    ratio = float(np.median([max(one, 1 / one) for one in ratios])) if ratios else None
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
            **({} if bars.median_ratio is None else {"median_ratio": ratio is not None and ratio <= bars.median_ratio}),
            **({} if bars.tau is None else {"tau": tau is not None and tau >= bars.tau}),
            **(
                {}
                if bars.wrong_pairs is None
                else {"wrong_pairs": max(by_table.values(), default=0) <= bars.wrong_pairs}
            ),
            "wrong_verdicts": len(decided) - right <= bars.wrong_verdicts,
        },
        communication_factor=float(np.median([max(one, 1 / one) for one in parts])) if parts else None,
        communication_rows=len(parts),
        ratio_factor=ratio,
        ratio_rows=len(ratios),
    )
