"""Batches are staged ahead of the training step."""

from typing import ClassVar, Literal

from pydantic import Field

from simgnn.policies.base import Policy


class Prefetch(Policy):
    """A window of staged batches, filled in the background (RapidGNN, DistDGL).

    ``window``: batches whose input rows have a buffer, the one in training included; 1 stages nothing ahead.
    """

    slot: ClassVar[str] = "schedule"

    kind: Literal["prefetch"] = "prefetch"
    window: int = Field(default=4, ge=1, le=65_536, description="batches with a staging buffer")
