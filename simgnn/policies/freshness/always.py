"""Exact training: every remote row is fresh."""

from typing import ClassVar, Literal

from simgnn.policies.base import Policy


class Always(Policy):
    """Every transfer carries every row, every time."""

    slot: ClassVar[str] = "freshness"

    kind: Literal["always"] = "always"
