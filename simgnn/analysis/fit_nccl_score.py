"""How well fitted collectives predict times that they were not fitted on: sizes held out, and rank counts held out.

Predictions go through :meth:`simgnn.hardware.machine.Machine.collective`, as those of a simulation do.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simgnn.analysis.fit_nccl import LARGE_BYTES, fit_law, fit_table, regimes
from simgnn.analysis.fit_nccl_tables import Floats, Table
from simgnn.errors import HardwareError
from simgnn.hardware.links import Collective
from simgnn.hardware.machine import Machine
from simgnn.hardware.profile import Profile

FOLDS = 5


@dataclass(frozen=True, eq=False)
class Score:
    """Relative errors [n] of the held-out rows of one table from ``LARGE_BYTES`` on.

    ``noise`` [n]: twice the standard error of each measured median as a share of it; ``steady``: whether the table's
    rate has no jumps between sizes.
    """

    table: str
    errors: Floats
    noise: Floats
    steady: bool

    @property
    def mean(self) -> float:
        """Mean relative error."""
        return float(self.errors.mean())

    def mean_known_to(self, bar: float) -> float:
        """Mean over the rows whose own median is known to within ``bar``; NaN where there is none."""
        known = self.errors[self.noise <= bar]
        return float(known.mean()) if len(known) else float("nan")


def predict(profile: Profile, entries: Sequence[Collective], table: Table) -> Floats:
    """Seconds [n] of an all-reduce of each size of a table, on a profile with these collectives instead of its own."""
    backend = profile.backends["nccl"].model_copy(update={"collectives": tuple(entries)})
    changed = profile.model_copy(update={"backends": {**profile.backends, "nccl": backend}})
    machine = Machine.place(changed, table.hosts)
    members = range(table.ranks)
    return np.array([machine.collective("allreduce", "nccl", size, members).seconds_alone for size in table.nbytes])


def interpolation(profile: Profile, tables: Sequence[Table], seed: int = 0) -> list[Score]:
    """Every size predicted from the other sizes of its table, in ``FOLDS`` parts drawn by ``seed``."""
    scores = []
    for table in tables:
        law = fit_law([one for one in tables if one.gpu == table.gpu], table.scope)
        fold = np.random.default_rng(seed).permutation(len(table.nbytes)) % FOLDS
        predicted = np.empty(len(fold))
        for part in range(FOLDS):
            held = fold == part
            predicted[held] = predict(profile, fit_table(table.where(~held), law), table.where(held))
        scores.append(_score(table, predicted))
    return scores


def left_out(profiles: dict[str, Profile], tables: Sequence[Table]) -> list[Score]:
    """Every table predicted without any table of its machine and rank count.

    ``profiles``: of each GPU of the tables, one with room for the group. All is learnt from the tables of the same
    machine that are left. Those whose rate jumps between sizes are predicted too, but nothing is learnt from them.
    """
    scores = []
    for table in tables:
        rest = [one for one in tables if one.gpu == table.gpu and one.ranks != table.ranks]
        law = fit_law(rest, table.scope)
        mine = [one for one in rest if one.scope == table.scope and len(regimes(one)) == 1]
        if not mine:
            raise HardwareError(f"{table.name}: no other rank count of its machine and scope to predict it from")
        entries = [entry for one in mine for entry in fit_table(one, law)]
        scores.append(_score(table, predict(profiles[table.gpu], entries, table)))
    return scores


def _score(table: Table, predicted: Floats) -> Score:
    large = table.nbytes >= LARGE_BYTES
    errors = np.abs(predicted / table.seconds - 1.0)[large]
    return Score(table.name, errors, 2.0 * table.noise[large], len(regimes(table)) == 1)
