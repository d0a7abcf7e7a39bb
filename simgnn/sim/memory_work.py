"""Memory beside a program's buffers: what ops hold only while they run, and what the executor derives once and keeps.

Read off the program, so it scales with it; each rule was found by measuring runs (allocated bytes of the first epoch
against the sum of live buffers). What does not scale (threads, the library's own buffers) is not in here.
"""

from itertools import pairwise

import numpy as np

from simgnn.emit.row_cache import EncodeMoved
from simgnn.policies.minibatch import EMBEDDINGS
from simgnn.program.kinds import Form, OpKind, Segment
from simgnn.program.ops import ITEM_BYTES, Op, Work
from simgnn.program.program import EVALUATE, Program
from simgnn.program.sizes import Column, IntArray
from simgnn.sim.decided import Sizes

ORDER_BYTES = 24
"""Of a row that is put in order by its id: the id, its place before and its place after, as int64."""
POINTER_BYTES = 8
LOSS_COPIES, LOSS_COPIES_MULTILABEL = 1, 4
"""Tensors of [rows, classes] while a loss is computed, beside scores and gradient: their softmax (or its logarithm,
when that has gone); of several labels a vertex these, and three that torch's binary cross entropy makes on a CPU."""


def work_space(program: Program, sizes: Sizes, op: Op, epoch: int, step: int) -> IntArray:
    """Bytes that an op holds on every rank while it runs, beside the buffers that it names; int64 [P].

    - A backward op that multiplies by the incoming gradient of an activation (every layer's update but the last's)
      holds that gradient, masked; where one of the gradients that it writes is just that, it is no more. A gradient
      that is scaled down to a limit is held beside the one before it, before anything is made of it.
    - A backward op holds the gradients of its parameters before they are added to theirs: of all its products at once,
      or of the larger, where one is reversed after the other: own and halo rows that are prepared apart, and products
      of products, between which there are rows inside the module.
    - A sum over a block of edges that adds to sums so far makes new ones beside them; attention to a block holds
      scores, and backward what arrived, taken apart (:func:`_block_attention`).
    - A sum over the edges of a batch holds their pointers, and reversed the edges by source (:func:`_turned_edges`).
    - Ops of caches, and those of vectors that are learned, hold rows that they pick (:func:`_picked_rows`).
    - A forward op that multiplies rows less their mean holds a copy of the weights with one more row, of one product
      after the other.
    - A loss holds LOSS_COPIES tensors of its rows, a label of each and its number; on a full graph their scores too,
      which lie among others, and the largest of an evaluation's splits on the rank.
    - Where rows are asked for, a rank holds those that it sends beside those that it gets, which lie twice where they
      come in another order than they are written in.
    """
    total = np.zeros(program.ranks, dtype=np.int64)
    if op.kind is OpKind.FETCH and op.route is not None and op.transfer is not None:
        route = program.sizes.routes[op.route]
        for ends in (route.source,) if op.form is Form.REMOTE_ROWS else (route.source, route.target):
            rows = np.bincount(ends, route.at(epoch, step), minlength=program.ranks)
            total += rows.astype(np.int64) * op.transfer.row_bytes
    if op.kind is OpKind.LOSS and len(op.reads) > 1:  # an op timed alone reads no buffer
        total += _loss(program, sizes, op, epoch, step)
    if op.kind is OpKind.AGGREGATE:
        if "block" in op.options and op.segment is not None:
            return _block_attention(program, sizes, op, epoch, step)
        for name in {access.buffer for access in op.reads} & {access.buffer for access in op.writes}:
            total += _bytes(program, sizes, name, epoch, step)
        total += _turned_edges(program, sizes, op, epoch, step)
    if op.kind is not OpKind.TRANSFORM:
        return total + _picked_rows(sizes, op, epoch, step)
    if op.reverses is None:
        copies = _extended_weights(sizes, op, epoch, step)
        return np.max(copies, axis=0) if copies else total
    outgoing = set(op.gradients) & {access.buffer for access in op.writes}
    learned = _parameter_gradients(sizes, op, epoch, step)
    in_turn = op.segment is Segment.PREPARE or any(program.buffers[name].inner for name in outgoing)
    if in_turn and learned:
        total += np.max(learned, axis=0)
    elif learned:
        total += np.sum(learned, axis=0)
    else:
        for access in op.writes:
            if access.buffer not in outgoing:
                total += _bytes(program, sizes, access.buffer, epoch, step)
    if op.segment is not Segment.UPDATE:
        return total
    masks = op.layer < max((other.layer for _, other in program.ops), default=0)
    limits = bool(op.options.get("gradient_limit"))
    products = _products(op)
    multiplies = any(piece.primitive.endswith("matmul") for piece in op.work)
    incoming, written = (
        sum((_bytes(program, sizes, name, epoch, step) for name in names), np.zeros(program.ranks, dtype=np.int64))
        for names in ({access.buffer for access in op.reads} & set(op.gradients), outgoing)
    )
    if copied := copied_last(program, op):
        each = {name: _bytes(program, sizes, name, epoch, step) for name in outgoing - copied}
        inside = np.sum([nbytes for name, nbytes in each.items() if program.buffers[name].inner], axis=0)
        rows = np.sum(list(each.values()), axis=0) - inside
        return np.asarray(total + np.maximum((masks + limits) * incoming - rows, inside))
    if (masks or limits) and multiplies and len(products) >= len(outgoing):
        total += incoming
    return np.maximum(total, (masks + limits) * incoming - written) if limits else total


def _loss(program: Program, sizes: Sizes, op: Op, epoch: int, step: int) -> IntArray:
    """What a loss holds, see LOSS_COPIES; its last read are the labels."""
    scores, labels = (program.buffers[op.reads[place].buffer] for place in (0, -1))
    several = labels.dtype == scores.dtype
    trained = [piece.sizes["rows"] for piece in op.work if piece.primitive == "loss"]
    split = op.options.get("split")
    counted = trained[0] if trained else scores.rows if split is None else Column(str(split))
    rows = sizes.at_most(counted, epoch, step, op.name)
    copies = (LOSS_COPIES_MULTILABEL if several else LOSS_COPIES) + (len(op.writes) < 3)
    numbers = 0 if several else 2 * 8
    return np.asarray(rows * (copies * scores.width * ITEM_BYTES[scores.dtype] + numbers))


def copied_last(program: Program, op: Op) -> frozenset[str]:
    """Gradients that a backward op writes as copies of another, after all else: where products follow on products, the
    rows that these begin with may be a sum, whose parts have one gradient."""
    gradients = sorted(set(op.gradients) & {access.buffer for access in op.writes})
    inside = [name for name in gradients if program.buffers[name].inner]
    rows = [name for name in gradients if name not in inside]
    products = _products(op)
    return frozenset(rows[len(products) - len(inside) :]) if inside and len(products) > len(inside) else frozenset()


def _products(op: Op) -> list[Work]:
    """Products of a backward op that give gradients of rows."""
    return [piece for piece in op.work if piece.primitive == "matmul" and "crossed" not in piece.sizes]


def _turned_edges(program: Program, sizes: Sizes, op: Op, epoch: int, step: int) -> IntArray:
    """What a sum over the edges of a batch makes of them, whose pointers lie there as int32: pointers as int64; where
    it is reversed the edges by source too, int32, with pointers of their own."""
    total = np.zeros(program.ranks, dtype=np.int64)
    if not _of_batch(program, op):
        return total
    for piece in op.work:
        if "edges" in piece.sizes and "sources" in piece.sizes:
            rows, sources, edges = (
                sizes.at_most(piece.sizes[name], epoch, step, op.name) for name in ("rows", "sources", "edges")
            )
            total += POINTER_BYTES * rows
            if op.reverses is not None:
                total += POINTER_BYTES * sources + ITEM_BYTES["int32"] * edges
    return total


def _of_batch(program: Program, op: Op) -> bool:
    """Whether an op sums over edges that were drawn."""
    return any(program.buffers[access.buffer].dtype == "int32" for access in op.reads)


def _block_attention(program: Program, sizes: Sizes, op: Op, epoch: int, step: int) -> IntArray:
    """What attention to a block of rows holds beside what it writes.

    Forward scores of both ends, and where there are maxima and sums so far, new ones beside them and the factor by
    which weights shrink, made in two steps. Backward the parts of the block's rows, which do not lie together in them,
    scores and gradients of scores; and gradients that are added to those so far.
    """
    of_rows, *narrow = (_bytes(program, sizes, access.buffer, epoch, step) for access in op.writes)
    adds = any(access in op.writes for access in op.reads)
    if not op.options.get("transposed", 0):
        maxima, sums = of_rows, narrow[0]
        return np.asarray(5 * maxima + sums if adds else 2 * maxima)
    scores, block = narrow[0], _bytes(program, sizes, str(op.options["own"]), epoch, step)
    return np.asarray(block + (of_rows + 3 * scores if adds else scores))


def _picked_rows(sizes: Sizes, op: Op, epoch: int, step: int) -> IntArray:
    """Copies of rows that ops of caches, codecs and learned vectors make, as many as are held at once.

    Differences of rows are made of two such copies, and decoded beside one; so is a master's part that moved. One is
    enough where they are added up, or all rows given as a copy, made afterwards. Rounding at random makes one more.
    Without a codec a copy is sent, or put in the order of the wire. A sum over all that was pushed has it in order,
    with its places; Adagrad makes two tensors of what it changes.
    """
    none = np.zeros(sizes.program.ranks, dtype=np.int64)
    if not op.work or (op.module not in ("freshness", "codec") and op.stream != EMBEDDINGS):
        return none
    at = {name: sizes.at_most(size, epoch, step, op.name) for name, size in op.work[0].sizes.items()}
    if op.stream == EMBEDDINGS:
        if op.kind is OpKind.OPTIMIZE:
            return 2 * _bytes(sizes.program, sizes, op.reads[1].buffer, epoch, step)
        in_order = at["rows"] * (at["width"] * at["item_bytes"] + ORDER_BYTES)
        return np.asarray(in_order) if op.kind is OpKind.ADD else none
    primitives = [piece.primitive for piece in op.work]
    copies = int(("encode", "elementwise") in pairwise(primitives))
    if op.module == "freshness":
        if "elementwise" in primitives and len(set(primitives)) > 1:  # alone: states are cleared where they lie
            copies += 1 if {"scatter_add", "copy"} & set(primitives) else 2
        elif op.kind is OpKind.ENCODE and op.action != EncodeMoved.label:
            copies = 1
    return np.asarray(copies * at["rows"] * at["width"] * at["item_bytes"]) if copies else none


def _parameter_gradients(sizes: Sizes, op: Op, epoch: int, step: int) -> list[IntArray]:
    """Bytes of the gradient of each weight matrix that a backward op multiplies out, int64 [P] each."""
    found = []
    for piece in op.work:
        width = {"matmul": "outer", "sparse_matmul": "width"}.get(piece.primitive)
        if width is not None and (piece.primitive == "sparse_matmul" or "crossed" in piece.sizes):
            shape = [sizes.at_most(piece.sizes[name], epoch, step, op.name) for name in ("rows", width, "item_bytes")]
            found.append(np.asarray(shape[0] * shape[1] * shape[2], dtype=np.int64))
    return found


def _extended_weights(sizes: Sizes, op: Op, epoch: int, step: int) -> list[IntArray]:
    """Bytes of each copy of a weight matrix that is made for a product with sparse rows, int64 [P] each."""
    found = []
    for copied, product in pairwise(op.work):
        if (copied.primitive, product.primitive) == ("copy", "sparse_matmul"):
            rows, width, item = (
                sizes.at_most(copied.sizes[name], epoch, step, op.name) for name in ("rows", "width", "item_bytes")
            )
            found.append(rows * width * item)
    return found


def kept_beside(program: Program, sizes: Sizes) -> dict[str, IntArray]:
    """Bytes that the executor keeps beside the buffers, by name, int64 [P] each.

    - Of every local adjacency that is trained on: in-degrees (int64) of all sources, and the scalings that stand for
      edge weights: at most one a source and three a row. Of every block of edges: in-degrees of its sources, and, in
      either direction, a scaling of its sources, which lie behind the sums so far, and one of rows.
    - Of every route along which rows are packed or added: the local rows that it names, int64.
    - Positions (int64) of training, validation and test rows: at most one a row of the loss.
    - Of sparse input rows that are multiplied: their transpose, and the row pointers (int32) of both. Where a module
      adds up what it reads, that is its sum.
    """
    kept: dict[str, IntArray] = {}
    for template, op in program.ops:
        for piece in op.work:
            at = {name: sizes.at_most(size, 0, 0, op.name) for name, size in piece.sizes.items()}
            sums = piece.primitive in ("spmm", "attention_sums") and template != EVALUATE and not _of_batch(program, op)
            if sums and "block" in op.options:
                block, turned = op.options["block"], op.options.get("transposed", 0)
                behind = at["rows"] if any(access in op.writes for access in op.reads) else 0
                kept[f"degrees of block {block}"] = np.full_like(at["rows"], 8 * at["sources"])
                if op.segment is None:  # attention scales nothing
                    scaled = behind + at["sources"] + at["rows"]
                    kept[f"scalings of block {block}/{turned}"] = at["item_bytes"] * scaled
            elif sums and op.reverses is None:
                degrees, scalings = 8 * at["sources"], at["item_bytes"] * (at["sources"] + 3 * at["rows"])
                kept[f"adjacency of {piece.sizes['sources']}"] = degrees + scalings
            if piece.primitive == "loss" and op.reads:  # an op timed alone reads no buffer
                kept["rows of the splits"] = 8 * sizes.at_most(program.buffers[op.reads[0].buffer].rows, 0, 0, op.name)
            if piece.primitive == "sparse_matmul":
                named = {a.buffer: program.buffers[a.buffer] for a in op.reads + op.writes}
                sparse = [buffer for buffer in named.values() if buffer.dtype == "uint8"]
                for name in (b.name for b in sparse if b.inner or not any(other.inner for other in sparse)):
                    pointers = 4 * (at["rows"] + at["sources"])
                    kept[f"{name} transposed"] = _bytes(program, sizes, name, 0, 0) + pointers
        if op.route is not None and op.kind in (OpKind.COPY, OpKind.ADD):
            route = program.sizes.routes[op.route]
            listed = np.bincount(route.source, route.at(0, 0), minlength=program.ranks)
            kept[f"rows of route {op.route}"] = 8 * listed.astype(np.int64)
    return kept


def _bytes(program: Program, sizes: Sizes, name: str, epoch: int, step: int) -> IntArray:
    buffer = program.buffers[name]
    return sizes.at_most(buffer.rows, epoch, step, f"buffer {name}") * (buffer.width * ITEM_BYTES[buffer.dtype])
