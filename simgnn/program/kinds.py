"""The op kinds: all that a program can say, that the simulator can price and that the executor can run and time."""

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


COMPUTE_KINDS = frozenset(
    {
        OpKind.AGGREGATE,
        OpKind.TRANSFORM,
        OpKind.ELEMENTWISE,
        OpKind.LOSS,
        OpKind.SELECT,
        OpKind.ENCODE,
        OpKind.DECODE,
        OpKind.ADD,
        OpKind.SAMPLE,
        OpKind.OPTIMIZE,
    }
)
PAIRWISE_KINDS = frozenset({OpKind.EXCHANGE, OpKind.FETCH, OpKind.PEER_READ})
"""Kinds whose payload is counted per rank pair, as ``bytes_sent``."""
COLLECTIVE_KINDS = frozenset({OpKind.BROADCAST, OpKind.ALLREDUCE, OpKind.ALLGATHER, OpKind.BARRIER})
"""Kinds whose payload is counted per rank, as ``collective_bytes``."""
LOCAL_COPY_KINDS = frozenset({OpKind.H2D, OpKind.D2H, OpKind.COPY})
"""Kinds that move rows without a second rank."""
GROUP_KINDS = frozenset({OpKind.EXCHANGE, OpKind.FETCH}) | COLLECTIVE_KINDS
"""Kinds that need a process group, which every member must call in one order."""
