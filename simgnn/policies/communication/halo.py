"""Halo exchange: before a layer aggregates, each rank receives the remote rows that its own vertices need."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from simgnn.partition.stats import PartitionStats
from simgnn.policies.communication.base import Communication, Sums, Transfers
from simgnn.policies.communication.halo_sums import HaloNames, HaloSums
from simgnn.policies.segments import Segments
from simgnn.policy import Choices, Cut, Refusal
from simgnn.program.builder import ProgramBuilder
from simgnn.program.sizes import Column, IntArray, Route

SPARSE = "sparse input features"


class Halo(Communication):
    """Rows of remote in-neighbours, from their owner, by one uneven all-to-all a layer and direction; edge-cuts only.

    ``rows``: what layer 1 exchanges. ``input``: features, which never change, so they are sent once and transformed
    where they are needed; ``transformed``: rows after the weight matrix, narrower but new every epoch; ``auto``: the
    cheaper one over the run. ``resend_inputs``: send the features again in every epoch, as systems without a copy do.
    Source: halo exchange of DGL's and PipeGCN's vanilla training.
    """

    cut: ClassVar[Cut] = "edge-cut"

    kind: Literal["halo"] = "halo"
    rows: Literal["auto", "input", "transformed"] = Field(default="auto", description="what layer 1 exchanges")
    resend_inputs: bool = Field(default=False, description="send input features again in every epoch")

    def refuses(self, choices: Choices) -> Iterator[Refusal]:
        """Options about input rows where none are sent, and rows exchanged before they are there."""
        if self.rows == "transformed":
            if self.resend_inputs:
                yield Refusal(
                    "communication", "resend_inputs",
                    "got true with communication.rows = 'transformed', expected false: no input rows are sent at all",
                )  # fmt: skip
            if choices.model.aggregates_first:
                yield Refusal(
                    "communication", "rows",
                    f"got 'transformed' with {choices.model.aggregates_first}, expected 'auto' or 'input': rows are "
                    "aggregated before they are transformed",
                )  # fmt: skip
        if self.resend_inputs and not (choices.freshness.exact and not choices.codec.encodes):
            other = choices.codec if choices.freshness.exact else choices.freshness
            yield Refusal(
                "communication", "resend_inputs",
                f"got true with {other.slot}.kind = '{other.label}', expected false: input rows never change, so they "
                "are sent once, exactly; leave it out, or send all rows as they are",
            )  # fmt: skip

    def sizes(self, stats: PartitionStats, item_bytes: int) -> "HaloSizes":
        """See :class:`Communication`; sparse features need two tables more."""
        if stats.facts.feature_nonzeros is None:
            return HaloSizes(stats, item_bytes, None, None)
        nonzeros = stats.table("feature_nonzeros", SPARSE)
        halo = np.asarray(stats.table("halo_feature_nonzeros", SPARSE), dtype=np.int64)
        return HaloSizes(stats, item_bytes, nonzeros, halo)

    def input_rows(self) -> str:
        """See :class:`Communication`."""
        return self.rows

    def resends_inputs(self) -> bool:
        """See :class:`Communication`."""
        return self.resend_inputs

    def resolved(self, rows: str) -> dict[str, Any]:
        """See :class:`Communication`."""
        return {"communication.rows": rows}


@dataclass(frozen=True)
class HaloSizes:
    """Per-rank numbers. Of sparse features: stored values of each rank's own rows [P], and of the halo rows of each
    pair [owner, rank]."""

    stats: PartitionStats
    item_bytes: int
    feature_nonzeros: IntArray | None
    halo_nonzeros: IntArray | None

    @property
    def fetches_inputs(self) -> bool:
        """Whether any rank has a halo."""
        return self.stats.ranks > 1 and len(self.stats.halo.source) > 0

    @property
    def copied_rows(self) -> int:
        """Halo rows over all ranks."""
        return int(self.stats.halo_rows().sum())

    @property
    def input_bytes(self) -> int:
        """Payload of all halo input rows: dense rows, or lengths, column ids and values of sparse ones."""
        if self.halo_nonzeros is None:
            return self.copied_rows * self.stats.facts.feature_width * self.item_bytes
        return self.copied_rows * 4 + int(self.halo_nonzeros.sum()) * (4 + self.item_bytes)

    def add_to(self, builder: ProgramBuilder, aggregated: bool) -> dict[str, Any]:
        """See :class:`~simgnn.policies.communication.base.Sizes`."""
        stats = self.stats
        halo_rows = stats.halo_rows()
        builder.route("halo", stats.halo)
        send_rows = np.bincount(stats.halo.source, stats.halo.rows, minlength=stats.ranks).astype(np.int64)
        fields: dict[str, Any] = {
            "rows": builder.column("rows", stats.rows),
            "sources": builder.column("sources", stats.rows + halo_rows),
            "edges": builder.column("edges", stats.edges),
            "train_rows": builder.column("train_rows", stats.table("train_rows", "the loss")),
            "feature_nonzeros": None,
            "aggregated_nonzeros": None,
        }
        builder.column("halo_rows", halo_rows)
        builder.column("send_rows", send_rows)
        if self.feature_nonzeros is None or self.halo_nonzeros is None:
            return fields
        encoded = stats.halo.matrix(stats.ranks) * 4 + self.halo_nonzeros * (4 + self.item_bytes)
        builder.route("halo_feature_bytes", Route.from_matrix(encoded))
        builder.column("send_feature_bytes", encoded.sum(axis=1))
        builder.column("halo_feature_bytes", encoded.sum(axis=0))
        builder.column("halo_nonzeros", self.halo_nonzeros.sum(axis=0))
        fields["feature_nonzeros"] = builder.column("feature_nonzeros", self.feature_nonzeros)
        if aggregated:
            table = stats.table("aggregated_feature_nonzeros", "the sum of sparse input features")
            fields["aggregated_nonzeros"] = builder.column("aggregated_nonzeros", table)
        return fields

    def sums(self, segments: Segments, transfers: Transfers, rows: str, fetched_in: tuple[str, ...]) -> Sums:
        """See :class:`~simgnn.policies.communication.base.Sizes`."""
        nonzeros = None if self.halo_nonzeros is None else Column("halo_nonzeros")
        names = HaloNames(Column("halo_rows"), Column("send_rows"), nonzeros)
        return HaloSums(segments, names, transfers.rows(), self.fetches_inputs, rows, fetched_in)
