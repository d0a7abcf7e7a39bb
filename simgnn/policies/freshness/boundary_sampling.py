"""Boundary sampling: in each epoch, pairs of ranks exchange a fresh random sample of their halo rows, and no others."""

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

import numpy as np
from numba import njit
from numpy.typing import NDArray
from pydantic import Field

from simgnn.emit.drawn_rows import Drawn, DrawsRows
from simgnn.graph.hashing import splitmix, stream_key, unit
from simgnn.policy import Choices, CommunicationTraits, FreshnessTraits, Refusal
from simgnn.program.sizes import IntArray


class BoundarySampling(DrawsRows):
    """Of the |Q| halo rows that a rank needs of an owner, an epoch uses m = round(p |Q|), at least one unless p = 0.

    All layers and the backward pass use the same rows; a rank sums over its own rows and these alone. Sums that are
    linear in their rows (GCN, GraphSAGE, GIN) multiply halo rows and their gradients by |Q| / m, so that the expected
    sum over given rows is the exact one; attention does not. Degrees are those of the whole graph. The sample follows
    from (seed, epoch, owner, receiver), so that no ids travel. Rows of layer 1 are sampled and sent in every epoch too.
    Evaluations use all halo rows. docs/systems/bnsgcn.md describes what is sent when.

    Source: BNS-GCN, boundary node sampling. Deviations: both ends draw, where its code sends ids (``send_indices`` adds
    these messages); shares are rounded half up, where its code rounds down; attention is not scaled; and inputs of
    layer 1 are sampled, where its code keeps those of the whole halo and sums them once."""

    amounts: ClassVar[tuple[str, ...]] = ("p",)

    kind: Literal["boundary-sampling"] = "boundary-sampling"
    p: float = Field(default=0.1, ge=0, le=1, description="share of halo rows that an epoch uses")
    sampling: Literal["fixed", "bernoulli"] = Field(
        default="fixed", description="fixed: as many rows of a pair in every epoch; bernoulli: each row with chance p"
    )
    send_indices: bool = Field(default=False, description="owners also send which rows they drew, 8 bytes a row")
    cache_features: bool = Field(
        default=False, description="keep the input features of all halo rows, and take those of layer 1 from there"
    )

    def refuses(self, choices: Choices) -> Iterator[Refusal]:
        communication = choices.communication
        if not communication.sums_drawn_rows and communication.moves in self.serves:
            fitting = choices.fitting(CommunicationTraits, lambda other: other.sums_drawn_rows)
            why = "a sum lacks the rows that were not drawn, so ranks must hold all in-edges of their rows"
            yield Refusal(
                "communication", "kind",
                f"got '{communication.label}' with freshness.kind = '{self.label}', expected {fitting}: {why}",
            )  # fmt: skip
        if not choices.model.built_in:
            fitting = choices.fitting(FreshnessTraits, lambda other: not other.draws_rows)
            why = "a layer of your own reads all in-neighbours, and may not be linear in their rows"
            yield Refusal(
                "freshness", "kind",
                f"got '{self.label}' with model.kind = '{choices.model.kind}', expected {fitting}: {why}",
            )  # fmt: skip
        if self.cache_features and communication.input_rows() == "transformed":
            yield Refusal(
                "freshness", "cache_features",
                "got true with communication.rows = 'transformed', expected false: no input rows are exchanged; leave "
                "out cache_features, or set communication.rows = 'input'",
            )  # fmt: skip

    @property
    def scales(self) -> bool:
        return self.p < 1

    @property
    def holds_inputs(self) -> bool:
        return self.cache_features

    @property
    def sends_ids(self) -> bool:
        return self.send_indices

    def fixed_counts(self, rows: IntArray) -> IntArray | None:
        if self.sampling == "bernoulli":
            return None
        least = np.minimum(rows, int(self.p > 0))
        counts: IntArray = np.maximum(np.floor(self.p * rows + 0.5).astype(np.int64), least)
        return counts

    def factors(self, rows: IntArray, drawn: IntArray) -> NDArray[np.float64]:
        if self.sampling == "bernoulli":
            return np.full(len(rows), 1 / self.p if self.p else 1.0)
        return rows / np.maximum(drawn, 1)

    def drawn(self, seed: int, epoch: int, senders: IntArray, receivers: IntArray, rows: IntArray) -> Drawn:
        key, counts = stream_key(seed, f"boundary/{epoch}"), self.fixed_counts(rows)
        places = np.empty(int(rows.sum() if counts is None else counts.sum()), np.int64)
        pairs = (senders.astype(np.uint64), receivers.astype(np.uint64), rows)
        if counts is None:
            counts = np.zeros_like(rows)
            found = _toss(key, *pairs, self.p, counts, places)
            return Drawn(places[:found].copy(), counts)
        _sample(key, *pairs, counts, places)
        return Drawn(places, counts)


@njit(cache=True, nogil=True)
def _sample(key: Any, senders: Any, receivers: Any, rows: Any, counts: Any, places: Any) -> None:
    """Draw ``counts`` [k] of ``rows`` [k] rows of each pair without replacement, every subset alike: a row is taken
    with the chance of those still wanted among those still left. Source: Knuth, TAOCP 2, 3.4.2, algorithm S."""
    begin = at = 0
    for pair in range(len(rows)):
        stream = splitmix(splitmix(key, senders[pair]), receivers[pair])
        wanted, left = counts[pair], rows[pair]
        for row in range(rows[pair]):
            if unit(splitmix(stream, np.uint64(row))) * left < wanted:
                places[at] = begin + row
                at += 1
                wanted -= 1
            left -= 1
        begin += rows[pair]


@njit(cache=True, nogil=True)
def _toss(key: Any, senders: Any, receivers: Any, rows: Any, chance: Any, counts: Any, places: Any) -> Any:
    """Draw each of ``rows`` [k] rows of each pair with probability ``chance``; returns how many in all."""
    begin = at = 0
    for pair in range(len(rows)):
        stream = splitmix(splitmix(key, senders[pair]), receivers[pair])
        before = at
        for row in range(rows[pair]):
            if unit(splitmix(stream, np.uint64(row))) < chance:
                places[at] = begin + row
                at += 1
        counts[pair] = at - before
        begin += rows[pair]
    return at
