"""What guarded blocks do at run time: ranks tell whether their block changed, agree on who sends, and check ages."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import ClassVar, NamedTuple

from array_api_compat import array_namespace

from simgnn.errors import BackendError
from simgnn.policy import Action, Array, Policy, PolicyContext, PolicyError

NEVER = -1
"""Version of a block that was never sent. Other versions are epochs."""


class Change(NamedTuple):
    """How far a block is from its last broadcast copy: ``gap``, and the ``limit`` up to which it need not be sent."""

    gap: float
    limit: float

    @property
    def small(self) -> bool:
        """Whether the copies of others may stay in use. False where the gap is no finite number."""
        return isfinite(self.gap) and self.gap <= self.limit


class AgreesOnBlocks(Policy, ABC):
    """The run-time half of a freshness by which all ranks agree on the roots that send their block."""

    @abstractmethod
    def agree(self, context: PolicyContext, versions: Sequence[int], wanted: Sequence[int] | None) -> Sequence[bool]:
        """Which roots send: the same on every rank that is called with the same.

        ``versions`` [P]: epoch in which each root last sent, or ``NEVER``. ``wanted`` [P]: whether each root's block
        has changed too much to stay (None: no rank looks at its rows).
        """


class ComparesBlocks(AgreesOnBlocks, ABC):
    """One whose decisions follow from values."""

    @abstractmethod
    def change(self, rows: Array, sent: Array) -> Change:
        """How far ``rows`` [n, F] are from the copy ``sent`` [n, F]."""


class FlagChange(Action[ComparesBlocks]):
    """A rank reports whether its block has moved too far from what it sent last."""

    starts_from_zeros: ClassVar[bool] = False

    def run(self, context: PolicyContext, rows: Array, sent: Array | None) -> tuple[Array, ...]:
        """The flag, uint8 [1, 1] (1 where nothing was sent yet), and the change, float64 [1, 2]."""
        xp = array_namespace(rows)
        change = None if sent is None else self.owner.change(rows, sent)
        wants = change is None or not change.small
        numbers = [0.0, 0.0] if change is None else list(change)
        return xp.asarray([[int(wants)]], dtype=xp.uint8), xp.asarray([numbers], dtype=xp.float64)


class Agree(Action[AgreesOnBlocks]):
    """All ranks decide alike which roots send."""

    def run(
        self, context: PolicyContext, versions: Array, flags: Array | None = None, change: Array | None = None
    ) -> tuple[Array, ...]:
        """The versions as they are, and which roots send, uint8 [P, 1].

        ``versions`` int64 [P, 1]: one more than the epoch in which each root last sent, 0 before. Where values decide:
        the ``flags`` uint8 [P, 1] of all ranks, and this rank's ``change``.
        """
        xp = array_namespace(versions)
        last = [int(number) + NEVER for number in _numbers(versions)]
        wanted = None if flags is None else [int(flag) for flag in _numbers(flags)]
        active = [bool(sends) for sends in self.owner.agree(context, last, wanted)]
        if len(active) != context.ranks:
            raise PolicyError(f"{type(self.owner).__name__}.agree returned {len(active)} guards, not {context.ranks}")
        if change is not None and last[context.rank] != NEVER and not active[context.rank]:
            check_change(context, Change(*_numbers(change)))
        return versions, xp.asarray(active, dtype=xp.uint8)[:, None]

    def decided(self, context: PolicyContext, read: Sequence[Array], written: Sequence[Array]) -> Mapping[str, int]:
        """The guard ``POINT/root-R`` of every root whose block travels in this turn."""
        point = context.options["point"]
        sends = {f"{point}/root-{root}": int(active) for root, active in enumerate(_numbers(written[1]))}
        return {name: active for name, active in sends.items() if name in context.guards}


GUARD_ACTIONS = (FlagChange, Agree)


def check_change(context: PolicyContext, change: Change) -> None:
    """Raise :class:`PolicyError` where a rank that does not send has changed by more than the limit."""
    if not change.gap <= change.limit:
        raise PolicyError(
            f"rank {context.rank} does not send in epoch {context.epoch + 1} although its block has moved by "
            f"{change.gap:.6g}; expected at most {change.limit:.6g} (freshness.bound_change): this is a fault of the "
            "backend, not of the experiment"
        )


def check_ages(rank: int, epoch: int, versions: Array, others: Iterable[int], oldest: int) -> None:
    """Raise :class:`BackendError` where the block of one of the ``others`` is more than ``oldest`` epochs old, or was
    never sent, whatever was decided. ``versions``: as of :class:`Agree`."""
    known = _numbers(versions)
    for root in others:
        version = int(known[root]) + NEVER
        if version == NEVER or epoch - version > oldest:
            came = "was never sent" if version == NEVER else f"is of epoch {version + 1}"
            raise BackendError(
                f"the block of rank {root} in use on rank {rank} in epoch {epoch + 1} {came}; expected at most "
                f"{oldest} epochs old (freshness.bound_epochs): this is a fault of the program or of the backend, not "
                "of the experiment"
            )


def _numbers(row: Array) -> list[float]:
    found: list[float] = array_namespace(row).reshape(row, (-1,)).tolist()
    return found
