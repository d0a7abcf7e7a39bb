"""The kinds of ops in programs. The simulator prices each kind, and the executor runs each kind."""

from collections.abc import Mapping
from enum import StrEnum


class OpKind(StrEnum):
    """One kind of op. A test checks that both handler tables cover every member."""

    # compute
    AGGREGATE = "aggregate"
    TRANSFORM = "transform"
    ELEMENTWISE = "elementwise"
    LOSS = "loss"
    SELECT = "select"
    ENCODE = "encode"
    DECODE = "decode"
    ADD = "add"
    SAMPLE = "sample"
    OPTIMIZE = "optimize"
    # communication
    EXCHANGE = "exchange"  # uneven all-to-all
    BROADCAST = "broadcast"
    ALLREDUCE = "allreduce"
    ALLGATHER = "allgather"
    FETCH = "fetch"  # request and reply
    H2D = "h2d"
    D2H = "d2h"
    COPY = "copy"
    PEER_READ = "peer_read"
    BARRIER = "barrier"


class Form(StrEnum):
    """A variant of how an op of a kind works. A test checks that the executor's table covers every member."""

    PUT = "put"  # a copy that puts rows which arrived in the place of those that the route names
    SPARSE_ROWS = "sparse-rows"  # a copy between rows of a sparse matrix and one block of bytes for each peer
    OWN_ROWS = "own-rows"  # a copy to the host in which each rank touches only its own rows of a shared buffer
    MERGED_ROWS = "merged-rows"  # the same, of rows that are in the host's memory already
    OWN_VIEWS = "own-views"  # a select in which each rank exchanges its views of two shared buffers; no row moves
    GREATER = "greater"  # an add that keeps the greater of two elements instead of their sum
    FIRST_ROWS = "first-rows"  # an add to the first rows of what is written
    ZEROS = "zeros"  # writes zeros to rows, or to a whole buffer
    DROPOUT = (
        "dropout"  # drops elements of rows in training; all ranks draw alike, so that copies of a vertex are equal
    )
    BATCH_DROPOUT = "batch-dropout"  # dropout where each rank draws for its own mini-batch
    RANK_MEANS = "rank-means"  # a loss whose gradient is that of the mean over each rank's batch, not over all seeds
    REMOTE_ROWS = "remote-rows"  # a fetch of rows of other ranks, rank after rank, written in the order of arrival


class Segment(StrEnum):
    """A part of a layer that an op computes: a function of the layer's module, see :mod:`executor.layers`."""

    PREPARE = "prepare"
    MAXIMUM = "maximum"
    AGGREGATE = "aggregate"
    SUM_OWN = "sum_own"
    ADD_HALO = "add_halo"
    UPDATE = "update"
    FORWARD = "forward"
    PRODUCT_GRADIENT = "product_gradient"
    HALO_GRADIENTS = "halo_gradients"
    OWN_GRADIENTS = "own_gradients"
    ADD_BLOCK = "add_block"
    BLOCK_PAYLOAD = "block_payload"
    BLOCK_GRADIENTS = "block_gradients"
    SCORE_GRADIENTS = "score_gradients"
    EDGE_GRADIENTS = "edge_gradients"


KIND_OF_FORM: Mapping[Form, OpKind] = {
    Form.PUT: OpKind.COPY,
    Form.SPARSE_ROWS: OpKind.COPY,
    Form.OWN_ROWS: OpKind.D2H,
    Form.MERGED_ROWS: OpKind.COPY,
    Form.OWN_VIEWS: OpKind.SELECT,
    Form.GREATER: OpKind.ADD,
    Form.FIRST_ROWS: OpKind.ADD,
    Form.ZEROS: OpKind.ELEMENTWISE,
    Form.DROPOUT: OpKind.ELEMENTWISE,
    Form.BATCH_DROPOUT: OpKind.ELEMENTWISE,
    Form.RANK_MEANS: OpKind.LOSS,
    Form.REMOTE_ROWS: OpKind.FETCH,
}
FORMS_OF_PARTS = frozenset({Form.ZEROS, Form.DROPOUT})
"""Forms whose ops may touch parts of buffers."""
WRITES_OWN_ROWS = frozenset({Form.OWN_ROWS, Form.MERGED_ROWS})
"""Forms by which ranks of a host write a shared buffer at once, each its own rows."""
PAIRWISE_KINDS = frozenset({OpKind.EXCHANGE, OpKind.FETCH, OpKind.PEER_READ})
"""Kinds whose payload is counted per rank pair, as ``bytes_sent``."""
COLLECTIVE_KINDS = frozenset({OpKind.BROADCAST, OpKind.ALLREDUCE, OpKind.ALLGATHER, OpKind.BARRIER})
"""Kinds whose payload is counted per rank, as ``collective_bytes``."""
LOCAL_COPY_KINDS = frozenset({OpKind.H2D, OpKind.D2H, OpKind.COPY})
"""Kinds that move rows without a second rank."""
COMPUTE_KINDS = frozenset(OpKind) - PAIRWISE_KINDS - COLLECTIVE_KINDS - LOCAL_COPY_KINDS
GROUP_KINDS = PAIRWISE_KINDS | COLLECTIVE_KINDS
"""Kinds that need a process group, whose members issue their ops in one order.

A peer read is one of them, since both ends take part: the owner of rows sends them, from its stream, once it has issued
the op; the reader waits for them. So each end orders the op among its own uses of the buffers, as for an exchange, and
no barrier is needed for rows that an owner has yet to write or is about to overwrite. It costs messages between the
pairs of its route, but no call of the whole group, and ranks without rows pass it by. Gradients go the other way: a
peer read along the reverse route brings each owner the rows of its readers, peers ascending, and an ``add`` adds them
in that order. (A read by the reader alone would need the owner's memory mapped, and a barrier on either side.)"""
CALLED_KINDS = GROUP_KINDS - {OpKind.PEER_READ}
"""Kinds that are a call of the whole group: each member pays for it, and ends it when others have begun it."""
