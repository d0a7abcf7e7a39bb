"""How well fitted collectives predict times that they were not fitted on: sizes held out, and rank counts held out.

Predictions go through :meth:`simgnn.hardware.price.machine.Machine.collective`, as those of a simulation do.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simgnn.analysis.nccl.law import LARGE_BYTES, fit_law
from simgnn.analysis.nccl.measured_tables import Floats, Table
from simgnn.analysis.nccl.profile_entries import Fitted, fit_scope
from simgnn.errors import HardwareError
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.profile.profile import Profile

FOLDS = 5


@dataclass(frozen=True, eq=False)
class Score:
    """Relative errors [n] of the held-out rows of one table from ``LARGE_BYTES`` on, whose sizes are ``nbytes`` [n].

    ``noise`` [n]: twice the standard error of each measured median as a share of it.
    """

    table: str
    nbytes: Floats
    errors: Floats
    noise: Floats

    @property
    def mean(self) -> float:
        """Mean relative error."""
        return float(self.errors.mean())

    def mean_from(self, low: float, high: float) -> float:
        """Mean over the sizes from ``low`` up to but not with ``high``; NaN where there is none."""
        inside = (self.nbytes >= low) & (self.nbytes < high)
        return float(self.errors[inside].mean()) if inside.any() else float("nan")


def predict(profile: Profile, fitted: Fitted, table: Table) -> Floats:
    """Seconds [n] of an all-reduce of each size of a table, on a profile with these collectives instead of its own."""
    update = {"collectives": fitted.entries, "choices": fitted.choices}
    backend = profile.backends["nccl"].model_copy(update=update)
    changed = profile.model_copy(update={"backends": {**profile.backends, "nccl": backend}})
    machine = Machine.place(changed, table.hosts)
    members = range(table.ranks)
    return np.array([machine.collective("allreduce", "nccl", size, members).seconds_alone for size in table.nbytes])


def interpolation(profile: Profile, tables: Sequence[Table], seed: int = 0) -> list[Score]:
    """Every size of an all-reduce predicted from the other sizes of its table, in ``FOLDS`` parts drawn by ``seed``.

    The law is learnt anew for each part, from the sizes of the table that are left and the machine's other tables.
    """
    scores = []
    for table in tables:
        if table.collective != "all_reduce":
            continue
        mine = [one for one in tables if one.gpu == table.gpu]
        fold = np.random.default_rng(seed).permutation(len(table.nbytes)) % FOLDS
        predicted = np.empty(len(fold))
        for part in range(FOLDS):
            held = fold == part
            seen = table.where(~held)
            law = fit_law([seen if one is table else one for one in mine], table.scope)
            predicted[held] = predict(profile, fit_scope([seen], law), table.where(held))
        scores.append(_score(table, predicted))
    return scores


def left_out(profiles: dict[str, Profile], tables: Sequence[Table]) -> list[Score]:
    """Every all-reduce table predicted without any all-reduce of its machine and rank count.

    ``profiles``: of each GPU of the tables, one with room for the group. All is learnt from the all-reduces of the same
    machine that are left, and from its single messages.
    """
    scores = []
    for table in tables:
        if table.collective != "all_reduce":
            continue
        rest = [one for one in tables if one.gpu == table.gpu]
        rest = [one for one in rest if one.collective != "all_reduce" or one.ranks != table.ranks]
        mine = [one for one in rest if (one.collective, one.scope) == ("all_reduce", table.scope)]
        if not mine:
            raise HardwareError(f"{table.name}: no other rank count of its machine and scope to predict it from")
        fitted = fit_scope(mine, fit_law(rest, table.scope))
        scores.append(_score(table, predict(profiles[table.gpu], fitted, table)))
    return scores


def _score(table: Table, predicted: Floats) -> Score:
    large = table.nbytes >= LARGE_BYTES
    errors = np.abs(predicted / table.seconds - 1.0)[large]
    return Score(table.name, table.nbytes[large], errors, 2.0 * table.noise[large])
