"""Attention over one block of edges at a time: a running softmax as blocks arrive, and its gradients."""

from executor.handlers.collectives import age_check
from executor.layers.blocks import BlockAdjacency
from executor.state.buffers import Now
from executor.state.context import Handler, RankContext
from simgnn.errors import BackendError
from simgnn.program.ops import Access, Op
from simgnn.program.program import Template


def attend(op: Op, template: Template, context: RankContext) -> Handler:
    """Add one block of source rows, those of rank ``options["block"]``, to the attention that an op computes.

    ``options["rows"]`` names the buffer of this rank's own transformed rows. The rows of the block are in the buffer
    ``options["own"]`` on the rank that owns them, elsewhere in ``options["arrived"]``. The op reads the maxima and sums
    of previous blocks (except for the first block) and writes those that include this block. For
    ``options["transposed"]`` = 1 see :func:`_gradients`; for ``options["oldest_epochs"]`` see
    :func:`executor.handlers.blocks.add_block`.
    """
    if context.blocks is None or context.network is None or op.segment is None:
        raise BackendError(f"op '{op.name}' computes attention block by block, but this run has no blocks of edges")
    if op.options.get("transposed", 0):
        return _gradients(op, context, context.blocks)
    root = int(op.options["block"])
    kernel = context.blocks.attention(root, transposed=False)
    function = context.network.segment(op.layer, op.segment)
    rows, block = (context.store.getter(_access(op, name)) for name in ("rows", _holder(context, root)))
    writes = [access.buffer for access in op.writes]
    so_far = [context.store.getter(access) for access in op.reads if access.buffer in writes]
    setters = context.writes(op)
    check = age_check(op, context, [len(degrees) for degrees in context.blocks.degrees])

    def run(now: Now) -> None:
        check(now)
        found = function(kernel, rows(now), block(now), *[get(now) for get in so_far])
        for put, value in zip(setters, found, strict=True):
            put(now, value)

    return run


def _gradients(op: Op, context: RankContext, blocks: BlockAdjacency) -> Handler:
    """Compute, for one block, the gradients of own rows, of their scores, and of the scores of the block's rows. The
    op adds up the first two over all blocks, in the first two buffers that it writes. The third is this rank's part
    of a sum over ranks: the third buffer holds that for this rank's own block, the fourth those for the blocks of
    other ranks, in ascending order."""
    assert context.network is not None
    assert op.segment is not None
    root, ranks = int(op.options["block"]), context.program.ranks
    kernel = blocks.attention(root, transposed=True)
    function = context.network.segment(op.layer, op.segment)
    rows, block = (context.store.getter(_access(op, name)) for name in ("rows", _holder(context, root)))
    writes = [access.buffer for access in op.writes]
    so_far = [context.store.getter(access) for access in op.reads if access.buffer in writes]
    setters = context.writes(op)
    mine = len(blocks.degrees[context.rank])
    # a rank without rows has no parts of others' sums
    lengths = [len(blocks.degrees[rank]) if mine and rank != context.rank else 0 for rank in range(ranks)]
    place = slice(sum(lengths[:root]), sum(lengths[: root + 1]))

    def run(now: Now) -> None:
        of_rows, of_source, of_block = function(kernel, rows(now), block(now))
        found = [get(now) for get in so_far]
        if not found:
            empty = of_block.new_zeros((sum(lengths), of_block.shape[1]))
            found = [of_rows, of_source, of_block.new_empty((0, of_block.shape[1])), empty][: len(setters)]
        else:
            found[0], found[1] = found[0].add_(of_rows), found[1].add_(of_source)
        if root == context.rank:
            found[2] = of_block
        else:
            found[3][place] = of_block[: lengths[root]]
        for put, value in zip(setters, found, strict=True):
            put(now, value)

    return run


def _holder(context: RankContext, root: int) -> str:
    return "own" if context.rank == root else "arrived"


def _access(op: Op, option: str) -> Access:
    return next(access for access in op.reads if access.buffer == op.options[option])
