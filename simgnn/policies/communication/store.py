"""Rows of a mini-batch from the hosts that keep them: asked for when they are needed, or sent by a plan."""

from typing import ClassVar, Literal

from pydantic import Field

from simgnn.partition.partition import PartitionKind
from simgnn.partition.stats import PartitionStats
from simgnn.policies.communication.base import Communication, Sizes
from simgnn.policies.minibatch import FEATURES, INPUTS, PLACES, PULLED_ROWS, VERTICES
from simgnn.policies.staging import Staging, received
from simgnn.program.builder import accesses
from simgnn.program.kinds import OpKind
from simgnn.program.ops import Nature, Op, Transfer

ROUTE = "rows"
"""Rows that batches pull, from the rank that sends to the one that needs, by epoch and step."""


class Pulls(Communication):
    """Input rows of other hosts, once a batch; nothing else of a layer travels.

    ``rows``: ``requested``, ids go to the owners and rows come back (DistDGL: Zheng et al., IA3 2020); ``scheduled``:
    owners know from presampled batches what to send when, so that rows travel alone (RapidGNN).
    """

    cut: ClassVar[PartitionKind] = "edge-cut"

    kind: Literal["store"] = "store"
    rows: Literal["requested", "scheduled"] = Field(default="requested", description="how rows of other hosts arrive")

    def sizes(self, stats: PartitionStats, item_bytes: int) -> Sizes:
        """Of a full graph it moves nothing; :mod:`simgnn.experiment.combinations` refuses it there."""
        raise AssertionError("communication.kind = 'store' serves mini-batches alone")

    def pull(self, staging: Staging) -> str:
        """Emit what brings a batch's rows of other hosts; returns their buffer, in order of the ranks that send."""
        if self.rows == "scheduled":
            # staged beside training: else it were chance whether these rows are there when training needs most
            ahead = staging.builder.buffers[INPUTS].depth > 1
            return staging.send(ROUTE, ROUTE, "serve", lasting=ahead)
        pulled = staging.builder.buffer(PULLED_ROWS, received(ROUTE), staging.width, space="host")
        staging.add(
            Op(
                "rows/fetch",
                OpKind.FETCH,
                Nature.FETCHING,
                accesses([VERTICES, FEATURES]),
                accesses([pulled]),
                transfer=Transfer(staging.row_bytes),
                route=ROUTE,
                module=PLACES,
                category="comm",
                options={"rows": "remote"},
            )
        )
        return pulled
