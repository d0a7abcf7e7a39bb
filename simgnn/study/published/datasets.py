"""What a ``published`` suite says of graphs: numbers, and what is assumed of their partitions and of reads of rows."""

from itertools import pairwise
from math import log
from typing import Annotated, Any, Self

from pydantic import Field, StrictFloat, StrictInt, StrictStr, StringConstraints, model_validator

from simgnn.hardware.profile.quantities import Strict

Share = Annotated[StrictFloat, Field(ge=0.0, le=1.0)]
Some = Annotated[StrictFloat, Field(ge=0.0)]
Positive = Annotated[StrictFloat, Field(gt=0.0)]
Count = Annotated[StrictInt, Field(ge=1)]
Whole = Annotated[StrictInt, Field(ge=0)]
Reason = Annotated[str, StringConstraints(strict=True, pattern=r"\S")]
"""Why something is assumed: no reason is none."""


class Counted(Strict):
    """A partition that was counted: rows and in-edges of each rank; halo rows as [owner, rank, rows]."""

    rows: Annotated[tuple[Count, ...], Field(min_length=1)]
    edges: Annotated[tuple[Whole, ...], Field(min_length=1)]
    halo: tuple[tuple[Whole, Whole, Whole], ...]


class Dataset(Strict):
    """A graph as numbers. ``names``: what papers call it. ``edges``: in-edges that are aggregated, both directions
    counted. ``halo``: assumed halo rows of all ranks over vertices, by rank count; ``counted`` replaces it where the
    graph is at hand. ``assumed`` says why so."""

    names: Annotated[tuple[StrictStr, ...], Field(min_length=1)]
    vertices: Count
    edges: Count
    features: Count
    classes: Count
    train_share: Share
    halo: dict[StrictStr, Some] = Field(default_factory=dict)
    counted: dict[StrictStr, Counted] = Field(default_factory=dict)
    set: dict[StrictStr, Any] = Field(default_factory=dict)
    assumed: Reason

    @model_validator(mode="after")
    def _counts_add_up(self) -> Self:
        for ranks, share in self.halo.items():
            if not ranks.isdecimal() or share > int(ranks) - 1:
                raise ValueError(
                    f"halo.{ranks}: got {share:g}, expected a number of ranks, and at most that less one: all ranks "
                    "together can lack each vertex so often"
                )
        for ranks, one in self.counted.items():
            if not ranks == str(len(one.rows)) == str(len(one.edges)):
                raise ValueError(f"counted.{ranks}: expected {ranks} rows and edges, one a rank")
            for name, total in (("rows", self.vertices), ("edges", self.edges)):
                if sum(getattr(one, name)) != total:
                    raise ValueError(f"counted.{ranks}.{name}: add up to {sum(getattr(one, name))}, expected {total}")
        return self


class GraphReuse(Strict):
    """One graph that was counted: its in-edges a vertex, and the share ``hits`` of the reads of a row after its first
    that find it among the rows read last."""

    graph: StrictStr
    degree: Positive
    hits: Annotated[tuple[Share, ...], Field(min_length=2)]


class Reuse(Strict):
    """How often a row that is read again lies among the rows read last, where these are ``shares`` of all rows. A graph
    whose edges are not here is taken to be like the counted one of ``of`` whose in-edges a vertex are nearest."""

    shares: Annotated[tuple[Positive, ...], Field(min_length=2)]
    of: Annotated[tuple[GraphReuse, ...], Field(min_length=1)]
    assumed: Reason

    @model_validator(mode="after")
    def _grow(self) -> Self:
        if self.shares[-1] != 1.0 or any(b <= a for a, b in pairwise(self.shares)):
            raise ValueError("shares: expected numbers that grow and end with 1.0")
        for one in self.of:
            if len(one.hits) != len(self.shares) or one.hits[-1] != 1.0 or any(b < a for a, b in pairwise(one.hits)):
                raise ValueError(f"of.hits: expected as many as shares that do not fall and end with 1.0 ({one.graph})")
        return self

    def like(self, degree: float) -> GraphReuse:
        """The counted graph whose in-edges a vertex differ from ``degree`` by the least factor."""
        return min(self.of, key=lambda one: abs(log(one.degree / degree)))


class Balance(Strict):
    """Largest over mean of a rank's in-edges and halo rows, by rank count, of partitions that nobody here can count."""

    edges: dict[StrictStr, Annotated[StrictFloat, Field(ge=1.0)]]
    halo: dict[StrictStr, Annotated[StrictFloat, Field(ge=1.0)]]
    assumed: Reason
