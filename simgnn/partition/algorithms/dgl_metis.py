"""METIS through DGL: the one that balances several constraints at once (what DistDGL partitions with)."""

import contextlib
import ctypes
import io
import sys
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from simgnn.errors import ConfigError
from simgnn.graph.graph import Graph
from simgnn.partition.algorithms.metis import graph_mask
from simgnn.partition.edges import symmetric_csr

M_PERTURB = -6
"""Parameter of glibc's ``mallopt``: new memory is filled with the complement of its value's last byte (malloc.h)."""


def dgl_metis_owner(graph: Graph, ranks: int, balance: Sequence[str]) -> NDArray[np.int32]:
    """Owner of each vertex, int32 [V], with every quantity in ``balance`` spread evenly over the parts.

    DGL balances classes of vertices: those of each named mask, and the rest; so "vertices" is implied. With "edges" it
    balances the in-degrees of each class too; it fixes the imbalance and METIS's seed. Without edges, where METIS
    balances nothing, each class is dealt evenly. Raises :class:`ConfigError` without DGL, and where a part stays empty.
    Source: DGL 1.1 ``metis_partition_assignment``, public interface; DistDGL, Zheng et al., IA3 2020.
    """
    classes = vertex_classes(graph, balance)
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
    """Let glibc hand out zeroed memory. DGL's METIS with several constraints reads some that it never wrote, so that
    one graph had another partition in every process; elsewhere than on glibc it may still."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        yield
        return
    mallopt(M_PERTURB, 0xFF)
    try:
        yield
    finally:
        mallopt(M_PERTURB, 0)


def vertex_classes(graph: Graph, balance: Sequence[str]) -> NDArray[np.int64]:
    """Class of each vertex, int64 [V]: 0, or 1 + the place in ``balance`` of the mask that holds it."""
    classes = np.zeros(graph.vertices, dtype=np.int64)
    for place, name in enumerate(balance):
        mask = graph_mask(graph, name)
        if mask is not None:
            classes[mask] = place + 1
    return classes
