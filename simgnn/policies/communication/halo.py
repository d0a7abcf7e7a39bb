"""Halo exchange: before a layer aggregates, each rank receives the remote rows that its own vertices need."""

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from simgnn.emit.communication import Communication
from simgnn.emit.sums.halo import SPARSE, HaloSizes
from simgnn.partition.statistics.partition_stats import PartitionStats
from simgnn.policy import Choices, Cut, Refusal


class Halo(Communication):
    """Owners send rows to the ranks that need them, by one uneven all-to-all per layer and direction; edge-cuts only.

    ``rows``: what layer 1 exchanges. ``input``: features, which never change, so they are sent once and each rank
    transforms them itself; ``transformed``: rows after the weight matrix, narrower but new every epoch; ``auto``: the
    cheaper one over the run. ``resend_inputs``: send the features again in every epoch, as systems without a copy do.
    Source: halo exchange of DGL's and PipeGCN's vanilla training."""

    cut: ClassVar[Cut] = "edge-cut"
    sums_drawn_rows: ClassVar[bool] = True
    stores_halo: ClassVar[bool] = True

    kind: Literal["halo"] = "halo"
    rows: Literal["auto", "input", "transformed"] = Field(default="auto", description="what layer 1 exchanges")
    resend_inputs: bool = Field(default=False, description="send input features again in every epoch")

    def refuses(self, choices: Choices) -> Iterator[Refusal]:
        if self.rows == "transformed":
            if self.resend_inputs:
                message = (
                    "got true with communication.rows = 'transformed', expected false: no input rows are sent at all"
                )
                yield Refusal("communication", "resend_inputs", message)
            if choices.model.aggregates_first:
                why = "rows are aggregated before they are transformed"
                message = f"got 'transformed' with {choices.model.aggregates_first}, expected 'auto' or 'input': {why}"
                yield Refusal("communication", "rows", message)
        resent = choices.freshness.exact or choices.freshness.caches_halo
        if self.resend_inputs and not (resent and not choices.codec.encodes):
            other = choices.codec if resent else choices.freshness
            why = "input rows never change, so they are sent once, exactly"
            if not resent and choices.freshness.draws_rows:
                why = "each epoch sends those rows that it draws, of layer 1 too, and no others"
            yield Refusal(
                "communication", "resend_inputs",
                f"got true with {other.slot}.kind = '{other.label}', expected false: {why}; leave it out, or send all "
                "rows as they are",
            )  # fmt: skip

    def sizes(self, stats: PartitionStats, item_bytes: int) -> "HaloSizes":
        if stats.facts.feature_nonzeros is None:
            return HaloSizes(stats, item_bytes)
        nonzeros = stats.table("feature_nonzeros", SPARSE)
        halo = np.asarray(stats.table("halo_feature_nonzeros", SPARSE), dtype=np.int64)
        return HaloSizes(stats, item_bytes, nonzeros, halo)

    def input_rows(self) -> str:
        return self.rows

    def resends_inputs(self) -> bool:
        return self.resend_inputs

    def resolved(self, rows: str) -> dict[str, Any]:
        return {"communication.rows": rows}
