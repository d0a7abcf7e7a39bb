"""METIS by vertices, each partition divided into contiguous chunks: the two levels of HongTu."""

from collections.abc import Iterator
from typing import Literal, Self, cast

from pydantic import Field, field_validator

from simgnn.errors import ConfigError
from simgnn.partition.chunks.orders import CANDIDATES, Candidate
from simgnn.partition.chunks.partitioner import ChunkedPartitioner, ChunkSettings
from simgnn.partition.chunks.volumes import PeerRows
from simgnn.policy import Choices, CommunicationTraits, Partitioner, Refusal
from simgnn.program.sizes import IntArray
from simgnn.registry import shipped

UNKNOWN = "got 'auto', expected a number, such as 8: nothing here says how much memory chunks may take"


class MetisChunks(ChunkedPartitioner):
    """METIS with as many vertices for each rank, and ``chunks`` contiguous chunks of each partition, with as many
    in-edges and vertices. Source: HongTu (SIGMOD), two-level partition and algorithm 4.

    The order of a rank's chunks decides which rows a batch of P chunks shares, and which rows stay from batch to batch:
    the cheapest of ``candidates`` is taken, by the rows that move and by the rates at which they move. What does not
    train chunk by chunk uses METIS's parts alone."""

    kind: Literal["metis-chunks"] = "metis-chunks"
    chunks: int | Literal["auto"] = Field(
        default="auto", description="chunks of each partition, from 1 to 65536; auto: the fewest that fit into devices"
    )
    chunk_vertex_weight: float = Field(
        default=1.0, ge=0.0, le=1e9, description="work of a vertex beside its in-edges, 1 each, that chunks balance"
    )
    include_self: bool = Field(
        default=True, description="a chunk needs the rows of its own vertices, too; false: only those of in-neighbours"
    )
    imbalance: float = Field(default=1.03, gt=1.0, le=10.0, description="vertices of the largest part over the mean")
    across: Literal["ranks", "hosts"] = Field(default="ranks", description="what shares the graph: hosts before ranks")
    candidates: tuple[Candidate, ...] = Field(
        default=CANDIDATES,
        min_length=1,
        description="orders of chunks that compete by cost: as divided, after phase 1 (p1), after phase 2 (p2), after "
        "both (p1p2); the initial one always does",
    )
    peer_rows: PeerRows = Field(
        default="eq4", description="rows read from peers, for the cost: eq4 as published, exact as counted"
    )

    @field_validator("chunks", mode="before")
    @classmethod
    def _number_or_auto(cls, value: object) -> object:
        if value != "auto" and (isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 2**16):
            raise ValueError("expected a whole number from 1 to 65536, or 'auto'")
        return value

    def refuses(self, choices: Choices) -> Iterator[Refusal]:
        if self.chunks == "auto" and choices.communication.moves != "chunks":
            # the smallest number that fits follows from the memory of a program that trains chunk by chunk
            fits = choices.fitting(CommunicationTraits, lambda other: other.moves == "chunks")
            yield Refusal("partition", "chunks", f"{UNKNOWN}, as communication.kind = {fits} would")

    @property
    def holds_own_rows(self) -> bool:
        return self.include_self

    def parts_of(self, hosts: IntArray) -> Partitioner:
        options = {"balance": ["vertices"], "imbalance": self.imbalance, "across": self.across, "reorder": self.reorder}
        return cast(Partitioner, shipped("partition")["metis"].model_validate({"kind": "metis", **options}))

    @property
    def stated_chunks(self) -> int | None:
        return None if self.chunks == "auto" else self.chunks

    def in_chunks(self, chunks: int) -> Self:
        return self.model_copy(update={"chunks": chunks})

    def settings(self, chunks: int | None = None) -> ChunkSettings:
        wanted = self.chunks if chunks is None else chunks
        if wanted == "auto":
            raise ConfigError(f"partition.chunks: {UNKNOWN}")
        return ChunkSettings(
            chunks=wanted,
            vertex_weight=self.chunk_vertex_weight,
            with_self=self.include_self,
            candidates=self.candidates,
            peer_rows=self.peer_rows,
            rates=self.rates,
        )
