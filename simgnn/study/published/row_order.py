"""In which order rows of several printed tables come out: pairs of rows of one table, and pairs across tables.

Rows of one table ran on one machine and were measured by the same people; across tables machine, software and authors
differ too. A bar on Kendall's tau pools both; these tell where its discordant pairs are.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simgnn.study.error_measures import Floats, ordered_pairs


@dataclass(frozen=True)
class Order:
    """Kendall's ``tau`` over ``pairs`` of rows whose measured gap exceeds the noise; None without a pair. Of these
    ``discordant`` are predicted the other way round, ``equal`` to be equal."""

    tau: float | None
    pairs: int
    discordant: int
    equal: int


@dataclass(frozen=True)
class Orders:
    """``within``, ``across``: pairs of rows of the same table, of two tables. ``discordant``: of each row [n], how many
    of its pairs are predicted the other way round."""

    within: Order
    across: Order
    discordant: tuple[int, ...]


def orders(predicted: Floats, measured: Floats, noise: Floats, tables: Sequence[str]) -> Orders:
    """Of times [n] and the table of each; ``noise`` as in :mod:`simgnn.study.error_measures`."""
    i, j = ordered_pairs(measured, noise)
    agreement = np.sign(predicted[i] - predicted[j]) * np.sign(measured[i] - measured[j])
    _, table = np.unique(np.asarray(tables, dtype=np.str_), return_inverse=True)
    same = table[i] == table[j]
    wrong = agreement < 0
    ends = np.concatenate((i[wrong], j[wrong]))
    return Orders(
        _order(agreement[same]), _order(agreement[~same]), tuple(np.bincount(ends, minlength=len(measured)).tolist())
    )


def _order(agreement: NDArray[np.float64]) -> Order:
    pairs, discordant, equal = len(agreement), int((agreement < 0).sum()), int((agreement == 0).sum())
    return Order(
        tau=(pairs - equal - 2 * discordant) / pairs if pairs else None, pairs=pairs, discordant=discordant, equal=equal
    )
