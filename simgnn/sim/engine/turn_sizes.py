"""Sizes of ops in one turn (a training step or evaluation): fixed ones from the program, decisions from an activity.

An activity maps the name of each decision (a size or guard that only training fixes) to int64 values: [P] or
[P, epochs, steps] with one value for each rank, or [P, P] or [P, P, epochs, steps] with one for each (sender,
receiver). In the latter case the value of a rank is the sum over receivers.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from simgnn.errors import BackendError
from simgnn.program.ops import Op
from simgnn.program.program import Program
from simgnn.program.sizes import Column, Decision, IntArray, Size

Activity = Mapping[str, IntArray]


@dataclass(frozen=True)
class Sizes:
    """Looks up sizes of a program under an activity. ``asked_by`` names the op in error messages."""

    program: Program
    activity: Activity = field(default_factory=dict)

    def per_rank(self, size: Size, epoch: int, step: int, asked_by: str) -> IntArray:
        """Value of a size on every rank in one turn, int64 [P]."""
        if not isinstance(size, Decision):
            return self.program.sizes.per_rank(size, epoch, step)
        values = self.ranks_of(size.name, epoch, step, asked_by)
        self._check(size, values, epoch, step, asked_by)
        return values

    def at_most(self, size: Size, epoch: int, step: int, asked_by: str) -> IntArray:
        """Like :meth:`per_rank`, but a decision without a recorded value counts as its upper bound."""
        if isinstance(size, Decision) and size.name not in self.activity:
            size = size.bound
        return self.per_rank(size, epoch, step, asked_by)

    def pairs(self, decision: Decision, epoch: int, step: int, asked_by: str) -> IntArray:
        """Value of a decision for every (sender, receiver), int64 [P, P]."""
        values = self.recorded(decision.name, epoch, step, asked_by)
        if values.ndim != 2:
            raise BackendError(
                f"decision '{decision.name}' of op '{asked_by}' needs a value for each pair of ranks, but the activity "
                f"has one for each rank. Record the activity again."
            )
        self._check(decision, values.sum(axis=1), epoch, step, asked_by)
        return values

    def runs_in(self, op: Op, epoch: int, step: int) -> IntArray:
        """Value of the guard of an op on every rank in a turn, int64 [P]; on ranks with zero the op does not run."""
        if op.guard is None:
            return np.ones(self.program.ranks, dtype=np.int64)
        return self.ranks_of(op.guard.decision, epoch, step, op.name)

    def is_static(self, op: Op) -> bool:
        """Whether the op has the same sizes in every turn."""
        if op.route is not None and self.program.sizes.routes[op.route].rows.ndim > 1:
            return False
        return self.are_static(op.sizes)

    def are_static(self, sizes: Iterable[Size]) -> bool:
        """Whether all given sizes are the same in every turn."""
        return all(self._is_static(size) for size in sizes)

    def _is_static(self, size: Size) -> bool:
        if isinstance(size, Decision):
            return size.name in self.activity and self.activity[size.name].ndim < 3
        return not isinstance(size, Column) or self.program.sizes.columns[size.name].ndim == 1

    def ranks_of(self, name: str, epoch: int, step: int, asked_by: str) -> IntArray:
        """Values of a decision or guard on every rank in one turn, int64 [P]."""
        values = self.recorded(name, epoch, step, asked_by)
        return values.sum(axis=1) if values.ndim == 2 else values

    def recorded(self, name: str, epoch: int, step: int, asked_by: str) -> IntArray:
        """Recorded values of a decision in one turn, [P] or [P, P]."""
        if name not in self.activity:
            known = ", ".join(sorted(self.activity)) or "none"
            raise BackendError(
                f"decision '{name}' of op '{asked_by}' depends on values that only training produces, and no activity "
                f"has it (only: {known}). Record one with `simgnn run EXPERIMENT --out DIR`, then use `--activity DIR`."
            )
        values = np.asarray(self.activity[name], dtype=np.int64)
        ranks = self.program.ranks
        pairwise = values.ndim in (2, 4)
        if values.ndim not in (1, 2, 3, 4) or values.shape[: 1 + pairwise] != (ranks,) * (1 + pairwise):
            raise BackendError(
                f"activity of decision '{name}': got shape {list(values.shape)}, expected [P], [P, P], "
                f"[P, epochs, steps] or [P, P, epochs, steps] with P = {ranks}. It was recorded on another partition."
            )
        if values.ndim < 3:
            return values
        recorded = values.shape[-2]
        if epoch >= recorded:
            raise BackendError(
                f"activity of decision '{name}' has only {recorded} epochs, but epoch {epoch + 1} needs it. Simulate "
                f"fewer epochs (train.epochs) or record a longer run."
            )
        return np.asarray(values[..., epoch, max(step, 0)])

    def _check(self, decision: Decision, values: IntArray, epoch: int, step: int, asked_by: str) -> None:
        bound = self.program.sizes.per_rank(decision.bound, epoch, step)
        for rank in np.flatnonzero((values > bound) | (values < 0)).tolist():
            raise BackendError(
                f"decision '{decision.name}' of op '{asked_by}' is {values[rank]} on rank {rank} in the activity, "
                f"expected 0 to {bound[rank]} (its bound). It was recorded for another experiment or partition."
            )


def epoch_signature(program: Program, activity: Activity, epoch: int) -> tuple[str | bytes, ...]:
    """What determines an epoch besides its starting state: its templates, and the sizes that vary by epoch."""
    calendar = program.calendar
    parts: list[str | bytes] = [*calendar.of_epoch(epoch)]
    varying = [column for _, column in sorted(program.sizes.columns.items()) if column.ndim == 3]
    varying += [route.rows for _, route in sorted(program.sizes.routes.items()) if route.rows.ndim == 3]
    parts += [np.ascontiguousarray(column[:, epoch]).tobytes() for column in varying]
    parts += [np.ascontiguousarray(v[..., epoch, :]).tobytes() for _, v in sorted(activity.items()) if v.ndim > 2]
    return tuple(parts)
