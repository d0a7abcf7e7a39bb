"""METIS partitions: pymetis for one balance constraint, DGL for several, and two levels for hosts and ranks."""

import contextlib
import ctypes
import io
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgnn.errors import ConfigError
from simgnn.graph.csr import CSR
from simgnn.graph.graph import MASKS, Graph
from simgnn.memory import check_memory
from simgnn.partition.edges import symmetric_csr
from simgnn.partition.local.edge_cut_kernels import induced_rows
from simgnn.partition.local.serving import Serving

EDGE_BYTES, VERTEX_BYTES = 120, 100
"""Memory that METIS takes for each stored edge and vertex, copies for it included: 98 to 118 bytes an edge measured."""
MEAN_WEIGHT = 1000
"""Mean weight of a vertex, so that rounding to whole numbers changes no part by more than 0.1 %."""
LARGEST_SUM = 2**30


def metis_owner(
    graph: Graph, ranks: int, seed: int, weights: NDArray[np.int64] | None, imbalance: float
) -> NDArray[np.int32]:
    """Compute the owner of each vertex, int32 [V], by METIS's k-way scheme, which minimises the edge cut. ``weights``
    int64 [V]: weight of each vertex, balanced over parts (None: 1 each); ``imbalance`` >= 1: allowed ratio of the
    heaviest part to the mean. Source: Karypis and Kumar, METIS 5. Not reproducible between platforms."""
    if ranks == 1:
        return np.zeros(graph.vertices, dtype=np.int32)
    if graph.edges == 0:
        # METIS balances nothing without edges; equal blocks are optimal
        return np.sort(np.arange(graph.vertices, dtype=np.int64) % ranks).astype(np.int32)
    # METIS: loaded when a graph is partitioned
    import pymetis

    csr = symmetric_csr(graph)
    check_memory(
        EDGE_BYTES * csr.edges + VERTEX_BYTES * csr.rows,
        f"partition.kind = 'metis': dividing {csr.edges:,} edges",
        "use partition.kind = 'ebv', which streams edges, a smaller graph, or a machine with more memory",
        ConfigError,
    )
    index = np.dtype(pymetis.zero_copy_dtype())
    options = pymetis.Options(
        seed=seed % (2**31 - 1), ufactor=max(1, round((imbalance - 1.0) * 1000)), objtype=0, numbering=0
    )
    found = pymetis.part_graph(
        ranks,
        adjacency=pymetis.CSRAdjacency(csr.indptr.astype(index, copy=False), csr.indices.astype(index, copy=False)),
        vweights=None if weights is None else weights.astype(index),
        recursive=False,
        options=options,
    )
    return np.asarray(found.vertex_part, dtype=np.int32)


def whole_numbers(work: NDArray[np.float64]) -> NDArray[np.int64]:
    """Convert the work of each vertex [V] to METIS's weights, at least 1: their mean is about ``MEAN_WEIGHT``, or less
    where the sum would not fit into METIS's 32 bits."""
    scale = min(MEAN_WEIGHT * len(work), LARGEST_SUM) / max(float(work.sum()), np.finfo(float).tiny)
    return np.maximum(np.rint(work * scale), 1).astype(np.int64)


def graph_mask(graph: Graph, name: str) -> NDArray[np.bool_] | None:
    """Return the mask that a quantity of ``partition.balance`` names; None for "vertices" and "edges". Raises
    :class:`ConfigError` when the graph lacks the mask."""
    if name in ("vertices", "edges"):
        return None
    mask: NDArray[np.bool_] | None = getattr(graph, f"{name}_mask")
    if mask is None or not mask.any():
        raise ConfigError(
            f"partition.balance names '{name}', but '{graph.name}' has no {name} vertices; remove '{name}'"
        )
    return mask


M_PERTURB = -6
"""Parameter of glibc's ``mallopt``: fill new memory with the complement of the value's last byte (malloc.h)."""


def dgl_metis_owner(graph: Graph, ranks: int, balance: Sequence[str]) -> NDArray[np.int32]:
    """Compute the owner of each vertex, int32 [V], with every quantity in ``balance`` spread evenly over the parts.

    DGL balances classes of vertices: the vertices of each named mask, and the rest; so "vertices" is implied. With
    "edges" it also balances the in-degrees of each class. DGL sets the imbalance and METIS's seed itself. For a graph
    without edges, where METIS balances nothing, each class is dealt evenly. Raises :class:`ConfigError` when DGL is
    missing, or when a part stays empty. Source: DGL 1.1 ``metis_partition_assignment``, with which DistDGL partitions
    (Zheng et al., IA3 2020).
    """
    classes = np.zeros(graph.vertices, dtype=np.int64)
    for place, name in enumerate(balance, start=1):
        mask = graph_mask(graph, name)
        if mask is not None:
            classes[mask] = place
    if graph.edges == 0:
        owner = np.empty(graph.vertices, dtype=np.int32)
        owner[np.argsort(classes, kind="stable")] = np.arange(graph.vertices) % ranks
        return owner
    try:
        # DGL: optional, and slow to load
        import dgl
        import torch
    except ImportError as error:
        raise ConfigError(
            f"partition.balance = {list(balance)}: several constraints need DGL, which cannot be "
            f"imported here ({error}); install dgl==1.1.3 on Python 3.11, or name one constraint only"
        ) from error

    csr = symmetric_csr(graph)
    pointers, sources = torch.from_numpy(csr.indptr.copy()), torch.from_numpy(csr.indices.astype(np.int64))
    # a symmetric pattern: rows may stand for sources as well as for destinations
    whole = dgl.graph(("csr", (pointers, sources, torch.empty(0, dtype=torch.int64))), num_nodes=graph.vertices)
    kinds = torch.from_numpy(classes)
    with contextlib.redirect_stdout(io.StringIO()), zeroed_memory():
        found = dgl.metis_partition_assignment(whole, ranks, balance_ntypes=kinds, balance_edges="edges" in balance)
    if found is None:
        raise ConfigError(
            f"partition.balance = {list(balance)}: METIS found no partition of '{graph.name}' into {ranks} parts; "
            "use fewer constraints or fewer ranks"
        )
    owner = np.asarray(found.numpy(), dtype=np.int32)
    empty = np.flatnonzero(np.bincount(owner, minlength=ranks) == 0)
    if len(empty):
        raise ConfigError(
            f"partition.balance = {list(balance)}: METIS left {len(empty)} of {ranks} parts of '{graph.name}' empty "
            f"(the first: {empty[0]}); use fewer ranks (--ranks, cluster.hosts, cluster.ranks_per_host) or constraints"
        )
    return owner


@contextlib.contextmanager
def zeroed_memory() -> Iterator[None]:
    """Make glibc return zeroed memory while the block runs. DGL's METIS with several constraints reads uninitialised
    memory, so that its result varies between processes; without glibc it still may vary."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        yield
        return
    mallopt(M_PERTURB, 0xFF)
    try:
        yield
    finally:
        mallopt(M_PERTURB, 0)


def nested_owner(
    graph: Graph,
    hosts: NDArray[np.int64],
    divide: Callable[[Graph, int, NDArray[np.int64] | slice], NDArray[np.int32]],
) -> NDArray[np.int32]:
    """Compute the owner of each vertex, int32 [V], in two levels: divide the graph among hosts, then each part among
    the host's ranks. ``hosts`` int64 [P], the host of each rank; ``divide(graph, parts, vertices)``: the part of each
    vertex of a graph, which has the ``vertices`` of the whole one.
    Raises :class:`ConfigError` when hosts differ in numbers of ranks, or a host gets fewer vertices than ranks."""
    members = Serving(tuple(hosts.tolist())).members
    if len({len(ranks) for ranks in members}) > 1:
        raise ConfigError(
            f"partition.across = 'hosts': the hosts have {', '.join(str(len(ranks)) for ranks in members)} ranks, "
            "expected as many on each host, since all hosts get equal parts; use partition.across = 'ranks'"
        )
    host = divide(graph, len(members), slice(None))
    owner = np.empty(graph.vertices, np.int32)
    for place, ranks in enumerate(members):
        mine = np.flatnonzero(host == place)
        if len(mine) < len(ranks):
            raise ConfigError(
                f"partition.across = 'hosts': host {place} got {len(mine)} vertices of '{graph.name}' for its "
                f"{len(ranks)} ranks, expected at least one for each; use fewer ranks (--ranks, cluster.hosts, "
                "cluster.ranks_per_host)"
            )
        if len(ranks) == 1:
            owner[mine] = ranks[0]
        else:
            owner[mine] = np.array(ranks, np.int32)[divide(subgraph(graph, mine, host, place), len(ranks), mine)]
    return owner


def subgraph(graph: Graph, vertices: NDArray[np.int64], part: NDArray[np.int32], place: int) -> Graph:
    """Extract the subgraph of ``vertices`` int64 [n], ascending: the vertices whose ``part`` int32 [V] is ``place``. It
    keeps masks, but not features and labels."""
    csr, lookup = graph.csr, np.empty(graph.vertices, np.int64)
    lookup[vertices] = np.arange(len(vertices))
    indptr, indices = induced_rows(np.asarray(csr.indptr), np.asarray(csr.indices), vertices, part, place, lookup, 0)
    masks: dict[str, Any] = {f"{name}_mask": getattr(graph, f"{name}_mask") for name in MASKS}
    masks = {name: mask if mask is None else mask[vertices] for name, mask in masks.items()}
    return Graph(graph.name, CSR(indptr, indices, len(vertices)), symmetric=graph.symmetric, **masks)
