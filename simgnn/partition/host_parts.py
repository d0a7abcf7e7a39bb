"""Base class of edge-cuts whose hosts can train apart: no halo row crosses between them, only gradients of weights."""

from collections.abc import Iterator
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from simgnn.graph.graph import Graph
from simgnn.policy import BatchingTraits, Choices, CommunicationTraits, DroppedHalo, Idle, Partitioner, Refusal
from simgnn.program.sizes import IntArray


class HostParts(Partitioner):
    """A partitioner with the option ``inter_machine``.

    With ``"gradients"`` every rank does without the halo rows that ranks of other hosts own, and without their edges:
    training is that of the graph without the edges between hosts. With ``"halo"`` (the default) nothing is dropped.
    The option belongs to the partition, not to the cluster, because it decides which edges a rank holds. Source:
    CaPGNN, whose caption says that machines only synchronise gradients, while its text speaks of messages."""

    inter_machine: Literal["halo", "gradients"] = Field(
        default="halo",
        description="what hosts exchange: halo rows and gradients of weights, or these gradients alone, so that edges "
        "between hosts are dropped (lossy)",
    )

    @property
    def drops_between_hosts(self) -> bool:
        return self.inter_machine == "gradients"

    def refuses(self, choices: Choices) -> Iterator[Refusal]:
        if self.drops_between_hosts:
            yield from needs_halo_rows(self, choices, "inter_machine", self.inter_machine)

    def idle(self, choices: Choices) -> Iterator[Idle]:
        if self.drops_between_hosts and choices.cluster.hosts == 1:
            yield Idle(
                "inter_machine", "cluster.hosts = 1",
                "there are no edges between hosts to drop; remove it, or use several hosts (cluster.hosts)",
            )  # fmt: skip

    def between_hosts(self, graph: Graph, owner: NDArray[np.int32], hosts: IntArray) -> DroppedHalo | None:
        """Return the halo rows of other hosts, which ranks do without; None if they keep them. ``owner`` int32 [V];
        ``hosts`` int64 [P]: the host of each rank."""
        if not self.drops_between_hosts:
            return None
        # this loads Numba, which checking an experiment does not need
        from simgnn.partition.local.edge_cut_kernels import halo_of_ranks

        rank, vertex = halo_of_ranks(graph.csr, owner, len(hosts))
        far = hosts[owner[vertex]] != hosts[rank]
        return DroppedHalo(rank[far].astype(np.int32), vertex[far])


def needs_halo_rows(policy: Partitioner, choices: Choices, option: str, value: str) -> Iterator[Refusal]:
    """Yield the refusal of an option by which ranks do without halo rows, if there are no such rows."""
    communication, batching = choices.communication, choices.batching
    if batching.mini_batches:
        fitting = choices.fitting(BatchingTraits, lambda other: not other.mini_batches)
        yield Refusal(
            "partition", option,
            f"got '{value}' with batching.kind = '{batching.label}', expected another {_named(option)}, or batching "
            f"{fitting}: batches are drawn from the whole graph, so that ranks could not do without halo rows",
        )  # fmt: skip
    elif communication.moves != "rows":
        fitting = choices.fitting(CommunicationTraits, lambda other: other.moves == "rows" and other.cut == policy.cut)
        yield Refusal(
            "partition", option,
            f"got '{value}' with communication.kind = '{communication.label}', expected another {_named(option)}, or "
            f"communication {fitting}: whole {communication.moves} travel, whichever halo rows a rank needs",
        )  # fmt: skip


def _named(option: str) -> str:
    return "partition" if option == "kind" else "value"
