"""The choices of slot ``partition``: frozen values whose fields are their configuration."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator

from simgnn.errors import ConfigError
from simgnn.partition.partition import Partition, PartitionKind

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from simgnn.graph.graph import Graph

Reorder = Literal["none", "rcm", "degree"]
Balanced = Literal["vertices", "edges", "train", "validation", "test"]
Master = Literal["host-majority", "balanced", "hash", "first"]


class PartitionPolicy(BaseModel, ABC):
    """Plan-time face of every partitioner: ``partition`` is a pure function of graph, hosts, seed and the fields.

    ``reorder`` is the order of a rank's own rows; it changes speed, never values. ``cut``: what it divides.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    slot: ClassVar[str] = "partition"
    cut: ClassVar[PartitionKind] = "edge-cut"

    reorder: Reorder = "rcm"

    @property
    def label(self) -> str:
        """The value of ``kind``."""
        return str(self.__class__.model_fields["kind"].default)

    def resolved(self, seed: int) -> Self:
        """The same policy with whatever it would take from the experiment, whose seed is ``seed``, stated."""
        return self

    def stated(self) -> dict[str, Any]:
        """Kind and every option, as a table that an experiment or a ``stats:`` file may hold."""
        return self.model_dump(mode="json", exclude_none=True)

    def partition(self, graph: "Graph", hosts: "NDArray[np.int64]", seed: int, spill: Path | None = None) -> Partition:
        """Divide ``graph`` into P = len(hosts) parts; ``hosts`` [P] is the host of each rank.

        ``spill``: folder for what a partitioner keeps on disk meanwhile (default: the system's for temporary files).
        Raises :class:`ConfigError` when there are more ranks than vertices.
        """
        ranks = len(hosts)
        if ranks < 1:
            raise ConfigError("partition: got 0 ranks, expected at least 1 (cluster.hosts, cluster.ranks_per_host)")
        if ranks > graph.vertices:
            raise ConfigError(
                f"partition.kind = '{self.label}': {ranks} ranks, but the graph '{graph.name}' has {graph.vertices} "
                f"vertices; use at most that many ranks (--ranks, cluster.hosts, cluster.ranks_per_host)"
            )
        return self._divide(graph, hosts, seed, spill)

    @abstractmethod
    def _divide(self, graph: "Graph", hosts: "NDArray[np.int64]", seed: int, spill: Path | None) -> Partition: ...


class Random(PartitionPolicy):
    """A seeded shuffle dealt evenly. ``seed``: its own, else the experiment's."""

    kind: Literal["random"] = "random"
    seed: int | None = Field(default=None, ge=0)

    def resolved(self, seed: int) -> Self:
        return self if self.seed is not None else self.model_copy(update={"seed": seed})

    def _divide(self, graph: "Graph", hosts: "NDArray[np.int64]", seed: int, spill: Path | None) -> Partition:
        from simgnn.partition.simple import random_owner

        chosen = seed if self.seed is None else self.seed
        return Partition("edge-cut", len(hosts), random_owner(graph.vertices, len(hosts), chosen))


class BlockRow(PartitionPolicy):
    """Contiguous blocks of vertices after a permutation (CAGNET's 1D layout); sizes differ by one at most."""

    kind: Literal["block-row"] = "block-row"
    permutation: Literal["identity", "random", "degree-balanced"] = "identity"

    def _divide(self, graph: "Graph", hosts: "NDArray[np.int64]", seed: int, spill: Path | None) -> Partition:
        import numpy as np

        from simgnn.partition.simple import block_owner, degree_balanced_owner, random_owner

        ranks = len(hosts)
        if self.permutation == "random":
            owner = random_owner(graph.vertices, ranks, seed)
        elif self.permutation == "degree-balanced":
            owner = degree_balanced_owner(graph.csr.degrees(), ranks)
        else:
            owner = block_owner(np.arange(graph.vertices, dtype=np.int64), ranks)
        return Partition("edge-cut", ranks, owner)


class Metis(PartitionPolicy):
    """METIS, smallest edge cut. One quantity in ``balance``: pymetis; several: DGL's METIS.

    ``imbalance``: heaviest part over the mean that one constraint may reach; DGL fixes its own. ``across``: what shares
    the graph. ``ranks``: all of them at once; ``hosts``: these first, so that as little as METIS can is cut between
    them (DistDGL divides among machines: Zheng et al., IA3 2020), then each host's part is divided among its ranks.
    """

    kind: Literal["metis"] = "metis"
    balance: Annotated[tuple[Balanced, ...], Field(min_length=1)] = ("vertices",)
    imbalance: float = Field(default=1.03, gt=1.0, le=10.0)
    across: Literal["ranks", "hosts"] = Field(default="ranks", description="what shares the graph: hosts before ranks")

    @field_validator("balance")
    @classmethod
    def _names_once(cls, value: tuple[Balanced, ...]) -> tuple[Balanced, ...]:
        if len(set(value)) != len(value):
            raise ValueError(f"names a quantity twice: {', '.join(value)}")
        return value

    def stated(self) -> dict[str, Any]:
        table = super().stated()
        if len(self.balance) > 1:
            del table["imbalance"]  # DGL fixes its own
        return table

    def _divide(self, graph: "Graph", hosts: "NDArray[np.int64]", seed: int, spill: Path | None) -> Partition:
        from simgnn.partition.metis import graph_mask
        from simgnn.partition.nested import nested_owner

        ranks = len(hosts)
        if len(self.balance) > 1 and "imbalance" in self.model_fields_set:
            raise ConfigError(
                f"partition.imbalance = {self.imbalance} cannot be kept with several constraints (partition.balance = "
                f"{list(self.balance)}): DGL fixes it; leave it out or name one constraint"
            )
        if self.across == "ranks" or len(set(hosts.tolist())) == 1:
            return Partition("edge-cut", ranks, self._owner(graph, ranks, seed, self.balance))
        for name in self.balance:
            graph_mask(graph, name)  # what the whole graph lacks is refused, what a host's part lacks is left out

        def divide(part: "Graph", parts: int) -> "NDArray[np.int32]":
            return self._owner(part, parts, seed, self._held_in(part))

        return Partition("edge-cut", ranks, nested_owner(graph, hosts, divide))

    def _held_in(self, graph: "Graph") -> tuple[Balanced, ...]:
        """What of ``balance`` a part of the graph can be balanced by. Of several quantities at least two are left,
        since these imply vertices."""
        masks = {name: getattr(graph, f"{name}_mask", None) for name in self.balance}
        held = tuple(
            name for name, mask in masks.items() if name in ("vertices", "edges") or (mask is not None and mask.any())
        )
        if len(held) == len(self.balance) or len(held) > 1:
            return held
        return tuple(dict.fromkeys(("vertices", *held)))

    def _owner(self, graph: "Graph", parts: int, seed: int, balance: tuple[Balanced, ...]) -> "NDArray[np.int32]":
        """The part of each vertex, int32 [V], by one call of METIS."""
        import numpy as np

        from simgnn.partition.dgl_metis import dgl_metis_owner
        from simgnn.partition.metis import graph_mask, metis_owner

        if len(balance) > 1 and parts > 1:
            return dgl_metis_owner(graph, parts, balance)
        mask = graph_mask(graph, balance[0])
        weights = mask.astype(np.int64) if mask is not None else None
        if balance[0] == "edges":
            weights = graph.csr.degrees()
        return metis_owner(graph, parts, seed, weights, self.imbalance)


class Ebv(PartitionPolicy):
    """Vertex-cut by EBV (specs: CDFGNN sections 4-5); ``gamma`` > 0 prefers replicas on one host, 0 is plain EBV.

    ``alpha`` and ``beta`` weigh the balance of edges and of replicas in the score. A graph in memory-mapped files is
    read in pieces, never held.
    """

    cut: ClassVar[PartitionKind] = "vertex-cut"

    kind: Literal["ebv"] = "ebv"
    gamma: float = Field(default=0.1, ge=0.0, lt=1.0)
    alpha: float = Field(default=1.0, ge=0.0)
    beta: float = Field(default=1.0, ge=0.0)
    edge_order: Literal["degree-sum", "input", "random"] = "degree-sum"
    master: Master = "host-majority"

    def _divide(self, graph: "Graph", hosts: "NDArray[np.int64]", seed: int, spill: Path | None) -> Partition:
        from simgnn.partition.ebv import ebv_partition

        return ebv_partition(
            graph,
            hosts,
            gamma=self.gamma,
            alpha=self.alpha,
            beta=self.beta,
            edge_order=self.edge_order,
            master=self.master,
            seed=seed,
            spill=spill,
        )


class RandomEdges(PartitionPolicy):
    """Vertex-cut to compare with: edges dealt by a seeded hash of both ends. ``master`` as of :class:`Ebv`."""

    cut: ClassVar[PartitionKind] = "vertex-cut"

    kind: Literal["random-edges"] = "random-edges"
    master: Master = "host-majority"

    def _divide(self, graph: "Graph", hosts: "NDArray[np.int64]", seed: int, spill: Path | None) -> Partition:
        from simgnn.partition.ebv import with_masters
        from simgnn.partition.edges import UndirectedEdges
        from simgnn.partition.reference_cuts import random_edges

        return with_masters(random_edges(UndirectedEdges.of(graph), hosts, seed=seed, spill=spill), self.master, seed)


class Dbh(PartitionPolicy):
    """Vertex-cut to compare with: an edge goes where a seeded hash of its end of lower degree says (degree-based
    hashing), so that hubs are divided and leaves are not. ``master`` as of :class:`Ebv`."""

    cut: ClassVar[PartitionKind] = "vertex-cut"

    kind: Literal["dbh"] = "dbh"
    master: Master = "host-majority"

    def _divide(self, graph: "Graph", hosts: "NDArray[np.int64]", seed: int, spill: Path | None) -> Partition:
        from simgnn.partition.ebv import with_masters
        from simgnn.partition.edges import UndirectedEdges
        from simgnn.partition.reference_cuts import dbh_edges

        return with_masters(dbh_edges(UndirectedEdges.of(graph), hosts, seed=seed, spill=spill), self.master, seed)


class Hdrf(PartitionPolicy):
    """Vertex-cut to compare with: a stream of edges, each to a rank that has its ends, that of lower degree above all
    (high-degree replicated first); ``balance`` weighs what ranks have already (lambda). ``master`` as of :class:`Ebv`.
    """

    cut: ClassVar[PartitionKind] = "vertex-cut"

    kind: Literal["hdrf"] = "hdrf"
    balance: float = Field(default=1.1, ge=0.0, le=1e6)
    edge_order: Literal["degree-sum", "input", "random"] = "input"
    master: Master = "host-majority"

    def _divide(self, graph: "Graph", hosts: "NDArray[np.int64]", seed: int, spill: Path | None) -> Partition:
        from simgnn.partition.ebv import with_masters
        from simgnn.partition.edges import UndirectedEdges
        from simgnn.partition.reference_cuts import hdrf_edges

        found = hdrf_edges(
            UndirectedEdges.of(graph), hosts, balance=self.balance, edge_order=self.edge_order, seed=seed, spill=spill
        )
        return with_masters(found, self.master, seed)


PARTITION_KINDS: Mapping[str, type[PartitionPolicy]] = MappingProxyType(
    {
        "random": Random,
        "block-row": BlockRow,
        "metis": Metis,
        "ebv": Ebv,
        "hdrf": Hdrf,
        "dbh": Dbh,
        "random-edges": RandomEdges,
    }
)
