"""Halo exchange: before a layer aggregates, each rank receives the remote rows that its own vertices need."""

from typing import ClassVar, Literal

from pydantic import Field

from simgnn.policies.base import Policy


class Halo(Policy):
    """Rows of remote in-neighbours, from their owner, by one uneven all-to-all a layer and direction; edge-cuts only.

    ``rows``: what layer 1 exchanges. ``input``: features, which never change, so they are sent once and transformed
    where they are needed; ``transformed``: rows after the weight matrix, narrower but new every epoch; ``auto``: the
    cheaper one over the run. ``resend_inputs``: send the features again in every epoch, as systems without a copy do.
    Source: halo exchange of DGL's and PipeGCN's vanilla training.
    """

    slot: ClassVar[str] = "communication"
    cut: ClassVar[str] = "edge-cut"

    kind: Literal["halo"] = "halo"
    rows: Literal["auto", "input", "transformed"] = Field(default="auto", description="what layer 1 exchanges")
    resend_inputs: bool = Field(default=False, description="send input features again in every epoch")
