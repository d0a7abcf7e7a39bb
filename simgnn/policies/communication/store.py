"""Fetches the input rows of a mini-batch from the hosts that store them: by request, or sent by a plan."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from simgnn.emit.batches.names import FEATURES, INPUTS, PLACES, PULLED_ROWS, VERTICES
from simgnn.emit.batches.staging import LocateRows, ServeRows, Staging, received, sent
from simgnn.emit.builder import accesses
from simgnn.emit.communication import BatchCommunication
from simgnn.policy import BatchingTraits, Choices, Cut, Refusal
from simgnn.program.kinds import Form, OpKind
from simgnn.program.ops import Nature, Op, Transfer
from simgnn.program.sizes import Scratch, rows_of

ROUTE = "rows"
"""Rows that batches pull, from the rank that sends to the one that needs, by epoch and step."""


class Pulls(BatchCommunication):
    """Input rows of other hosts travel once per batch; nothing else of a layer travels.

    ``rows``: ``requested``, ids go to the owners and rows come back (DistDGL: Zheng et al., IA3 2020); ``scheduled``,
    owners know from presampled batches which rows to send when, so that no requests travel (RapidGNN)."""

    cut: ClassVar[Cut] = "edge-cut"

    kind: Literal["store"] = "store"
    rows: Literal["requested", "scheduled"] = Field(default="requested", description="how rows of other hosts arrive")

    @property
    def sends_unasked(self) -> bool:
        return self.rows == "scheduled"

    def refuses(self, choices: Choices) -> Iterator[Refusal]:
        if choices.trains and self.sends_unasked and choices.batching.mini_batches and not choices.batching.known_ahead:
            yield Refusal(
                "communication", "rows",
                f"got 'scheduled' with batching.kind = '{choices.batching.label}', expected 'requested': owners know "
                "ahead only of batches that are drawn before training begins (batching.kind = "
                f"{choices.fitting(BatchingTraits, lambda batching: batching.known_ahead)})",
            )  # fmt: skip

    def pull(self, staging: Staging) -> str:
        if self.rows == "scheduled":
            # rows staged beside training get lasting buffers, so that peak memory does not depend on timing
            ahead = staging.builder.buffers[INPUTS].depth > 1
            return staging.send(ROUTE, ROUTE, ServeRows, lasting=ahead)
        pulled = staging.builder.buffer(PULLED_ROWS, received(ROUTE), staging.width, space="host")
        fetch = Op(
            "rows/fetch", OpKind.FETCH, Nature.FETCHING, accesses([VERTICES, FEATURES]), accesses([pulled]),
            transfer=Transfer(staging.row_bytes), route=ROUTE, module=PLACES, action=LocateRows.label, category="comm",
            form=Form.REMOTE_ROWS, scratch=Scratch(rows_of(sent(ROUTE), staging.row_bytes)),
        )  # fmt: skip
        staging.add(fetch)
        return pulled
