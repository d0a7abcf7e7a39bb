"""Exact training: every remote row is fresh."""

from typing import ClassVar, Literal

from simgnn.policies.freshness.base import Freshness
from simgnn.policy import Moves


class Always(Freshness):
    """Every transfer carries every row, every time."""

    serves: ClassVar[tuple[Moves, ...]] = ("rows", "blocks", "batches")
    exact: ClassVar[bool] = True

    kind: Literal["always"] = "always"
