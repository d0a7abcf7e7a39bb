"""Ops that move or add rows within a rank: packing and adding along a route, and copies between host and device."""

from collections.abc import Callable, Sequence

import torch

from executor.kernels.rows import add_rows, gather_rows
from executor.state.buffers import Now, moved
from executor.state.context import Handler, RankContext
from simgnn.program.kinds import Form
from simgnn.program.ops import Op
from simgnn.program.program import Template

Combine = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Sequence[int]], object]
"""Called with the rows to change, which of them [k], the rows [k, F] that arrived, and how many came from each rank."""


def copy(op: Op, template: Template, context: RankContext) -> Handler:
    """Gather the rows of the op's route into a send buffer, peers ascending; without a route, copy what is read."""
    read, put_whole = context.store.getter(op.reads[0]), context.store.setter(op.writes[0])
    if op.route is None:
        return lambda now: put_whole(now, read(now).clone())
    rows = context.route(op).leaving
    assert rows is not None, "the route names local rows"
    return lambda now: put_whole(now, gather_rows(read(now), rows))


def put(op: Op, template: Template, context: RankContext) -> Handler:
    """Replace the rows that the route names by those that arrived, in place."""
    read, target = context.store.getter(op.reads[0]), context.store.getter(op.writes[0])
    rows = context.route(op).arriving
    assert rows is not None, "the route names local rows"

    def replace(now: Now) -> None:
        target(now).index_copy_(0, rows, read(now))

    return replace


def add(op: Op, template: Template, context: RankContext, combine: Combine = add_rows) -> Handler:
    """Add what the op reads first to what it writes, in place; with the form ``FIRST_ROWS``, to its first rows. With a
    route, the rows that arrived (peers ascending) are added to the local rows that the route names. A row named several
    times takes all its parts in the order of the peers, so that sums are repeatable. ``combine``:
    :func:`~executor.kernels.rows.max_rows` keeps the greater of each element in place of the sum."""
    read, target = context.store.getter(op.reads[0]), context.store.getter(op.writes[0])
    first = op.form is Form.FIRST_ROWS

    def add_all(now: Now) -> None:
        part = read(now)
        (target(now)[: len(part)] if first else target(now)).add_(part)

    if op.route is None:
        return add_all
    rows, counts = context.route(op).arriving, context.route(op).arriving_counts
    assert rows is not None, "the route names local rows"

    def add_arrived(now: Now) -> None:
        combine(target(now), rows, read(now), counts)

    return add_arrived


def to_device(op: Op, template: Template, context: RankContext) -> Handler:
    """Copy host rows to the device, without blocking the host where they are pinned. Several buffers are moved one by
    one, and are not copied where the device is the host."""
    getters = [context.store.getter(access) for access in op.reads]
    setters = [context.store.setter(access) for access in op.writes]
    device = context.device

    def run(now: Now) -> None:
        for get, put_moved in zip(getters, setters, strict=True):
            put_moved(now, moved(get(now), device))

    return run if len(getters) > 1 else _copy_to(op, context, device)


def to_host(op: Op, template: Template, context: RankContext) -> Handler:
    """Copy device rows to the host; they have arrived when the op ends."""
    return _copy_to(op, context, torch.device("cpu"))


def _copy_to(op: Op, context: RankContext, device: torch.device) -> Handler:
    read, put_copy = context.store.getter(op.reads[0]), context.store.setter(op.writes[0])

    def run(now: Now) -> None:
        value = read(now)
        if value.device == device:
            put_copy(now, value.clone())
        else:
            put_copy(now, value.to(device, non_blocking=value.device.type == "cpu" and value.is_pinned()))

    return run


def sparse(op: Op, template: Template, context: RankContext) -> Handler:
    """Pack the rows of a sparse matrix that the route names, a block of bytes a peer; or unpack blocks that arrived."""
    read, put_whole = context.store.getter(op.reads[0]), context.store.setter(op.writes[0])
    assert context.task is not None
    features = context.task.features
    assert features.layout == torch.sparse_csr
    width, dtype, route = int(features.shape[1]), features.dtype, context.route(op)

    def run(now: Now) -> None:
        value = read(now)
        if value.layout == torch.sparse_csr:
            assert route.gather is not None
            put_whole(now, pack_rows(value, route.gather, route.send))
        else:
            put_whole(now, unpack_rows(value, route.receive, width, dtype))

    return run


def pack_rows(matrix: torch.Tensor, rows: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
    """Bytes (uint8) of rows of a CSR matrix, ``counts[p]`` of them for peer p, peers ascending. Each peer's block holds
    row lengths (int32), column ids (int32) and values."""
    pointers, columns, values = matrix.crow_indices(), matrix.col_indices(), matrix.values()
    blocks = []
    for part in torch.split(rows, list(counts)):
        starts = pointers[part]
        lengths = pointers[part + 1] - starts
        ends = torch.cumsum(lengths, 0)
        total = int(ends[-1]) if len(ends) else 0
        picked = torch.arange(total, device=rows.device) + torch.repeat_interleave(starts - ends + lengths, lengths)
        block = lengths.int(), columns[picked].int(), values[picked]
        blocks += [array.contiguous().view(torch.uint8) for array in block]
    return torch.cat(blocks)


def unpack_rows(packed: torch.Tensor, counts: Sequence[int], width: int, dtype: torch.dtype) -> torch.Tensor:
    """The CSR matrix [sum(counts), width] from the blocks that the peers packed with :func:`pack_rows`."""
    lengths, columns, values, begin = [], [], [], 0

    def following(count: int, kind: torch.dtype) -> torch.Tensor:
        nonlocal begin
        raw = packed[begin : begin + kind.itemsize * count]
        begin += len(raw)
        return raw.clone().view(kind)  # a copy is aligned, a part behind parts of other types need not be

    for count in counts:
        lengths.append(following(count, torch.int32))
        total = int(lengths[-1].sum())
        columns.append(following(total, torch.int32))
        values.append(following(total, dtype))
    assert begin == len(packed), "packed sparse rows do not fill their blocks"
    ends = torch.cumsum(torch.cat(lengths).long(), 0) if lengths else torch.zeros(0, dtype=torch.int64)
    pointers = torch.cat((torch.zeros(1, dtype=torch.int64, device=packed.device), ends))
    shape = (len(pointers) - 1, width)
    return torch.sparse_csr_tensor(pointers.int(), torch.cat(columns), torch.cat(values), size=shape)
