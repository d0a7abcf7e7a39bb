"""A partition in two levels: the graph is divided among hosts, then what a host has among its ranks."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from simgnn.errors import ConfigError
from simgnn.graph.csr import CSR
from simgnn.graph.graph import Graph
from simgnn.partition.local.edge_cut_kernels import induced_rows
from simgnn.partition.local.serving import Serving

Divide = Callable[[Graph, int], NDArray[np.int32]]
"""A graph into so many parts: the part of each vertex, int32 [V]."""


def nested_owner(graph: Graph, hosts: NDArray[np.int64], divide: Divide) -> NDArray[np.int32]:
    """Owner of each vertex, int32 [V], when hosts share the graph first; ``hosts`` int64 [P], the host of each rank.

    Which host has a vertex is thus what ``divide`` says of as many parts as there are hosts. Raises
    :class:`ConfigError` for hosts of different numbers of ranks, since parts are meant to be equal, and for a host that
    gets fewer vertices than it has ranks.
    """
    members = Serving(tuple(hosts.tolist())).members
    if len({len(ranks) for ranks in members}) > 1:
        raise ConfigError(
            f"partition.across = 'hosts': the hosts have {', '.join(str(len(ranks)) for ranks in members)} ranks, "
            "expected as many on each, since their parts are equal; use partition.across = 'ranks'"
        )
    host = divide(graph, len(members))
    owner = np.empty(graph.vertices, np.int32)
    for place, ranks in enumerate(members):
        mine = np.flatnonzero(host == place)
        if len(mine) < len(ranks):
            raise ConfigError(
                f"partition.across = 'hosts': host {place} got {len(mine)} vertices of '{graph.name}' for its "
                f"{len(ranks)} ranks, expected one for each at least; use fewer ranks (--ranks, cluster.hosts, "
                "cluster.ranks_per_host)"
            )
        if len(ranks) == 1:
            owner[mine] = ranks[0]
        else:
            owner[mine] = np.array(ranks, np.int32)[divide(subgraph(graph, mine, host, place), len(ranks))]
    return owner


def subgraph(graph: Graph, vertices: NDArray[np.int64], part: NDArray[np.int32], place: int) -> Graph:
    """The graph among ``vertices`` int64 [n], ascending: those whose ``part`` int32 [V] is ``place``. It has their
    masks, and neither features nor labels."""
    csr, lookup = graph.csr, np.empty(graph.vertices, np.int64)
    lookup[vertices] = np.arange(len(vertices))
    indptr, indices = induced_rows(np.asarray(csr.indptr), np.asarray(csr.indices), vertices, part, place, lookup, 0)
    train, validation, test = (
        None if mask is None else mask[vertices] for mask in (graph.train_mask, graph.validation_mask, graph.test_mask)
    )
    return Graph(
        graph.name,
        CSR(indptr, indices, len(vertices)),
        train_mask=train,
        validation_mask=validation,
        test_mask=test,
        symmetric=graph.symmetric,
    )
