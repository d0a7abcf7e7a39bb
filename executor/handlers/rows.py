"""Ops that move or add rows within a rank: packing rows to send, adding rows that arrived, host and device copies."""

from collections.abc import Callable, Sequence

import torch

from executor.kernels.rows import add_rows, gather_rows, move_rows
from executor.state.buffers import Now, moved, picked
from executor.state.context import Handler, LocalRoute, RankContext
from simgnn.errors import BackendError
from simgnn.program.kinds import Form
from simgnn.program.ops import Op, Part
from simgnn.program.program import Template

Combine = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Sequence[int]], object]
"""Function that adds rows: (rows to change, their indices [k], the rows [k, F] that arrived, rows from each rank)."""


def copy(op: Op, template: Template, context: RankContext) -> Handler:
    """Gather the rows of the op's route into a send buffer, peers ascending; without a route, copy the whole buffer, or
    the parts that the op names."""
    if touches_parts(op):
        return move_parts(op, context)
    read, put_whole = context.store.getter(op.reads[0]), context.store.setter(op.writes[0])
    if op.route is None:
        return lambda now: put_whole(now, read(now).clone())
    rows = context.rows_of_turn(op, arriving=False)
    return lambda now: put_whole(now, gather_rows(read(now), rows(now)))


def put(op: Op, template: Template, context: RankContext) -> Handler:
    """Replace the rows that the route names by the rows that arrived, in place."""
    read, target = context.store.getter(op.reads[0]), context.store.changed_rows(op.writes[0])
    rows = context.rows_of_turn(op, arriving=True)

    def replace(now: Now) -> None:
        target(now).index_copy_(0, rows(now), read(now))

    return replace


def add(op: Op, template: Template, context: RankContext, combine: Combine = add_rows) -> Handler:
    """Add the first buffer that the op reads to the one that it writes, in place (with ``Form.FIRST_ROWS``, to as many
    of its first rows). With a route, arrived rows (peers ascending) are added to the local rows that the route names.
    A row named several times receives its parts in the order of the peers, so that sums are repeatable. ``combine``:
    :func:`~executor.kernels.rows.max_rows` takes the maximum of each element instead of the sum. If the op writes
    listed rows, the list takes the place of the rows that the route names."""
    read, part = context.store.getter(op.reads[0]), op.writes[0].part
    if part is not None and part.places:
        return _add_to_list(op, context, part, combine)
    target = context.store.changed_rows(op.writes[0])
    first = op.form is Form.FIRST_ROWS

    def add_all(now: Now) -> None:
        part = read(now)
        (target(now)[: len(part)] if first else target(now)).add_(part)

    if op.route is None:
        return add_all
    rows, counts = context.rows_of_turn(op, arriving=True), context.arriving_counts(op)

    def add_arrived(now: Now) -> None:
        combine(target(now), rows(now), read(now), counts(now))

    return add_arrived


def _add_to_list(op: Op, context: RankContext, part: Part, combine: Combine) -> Handler:
    read, target = context.store.getter(op.reads[0]), context.store.memory(op.writes[0])
    rows = context.store.selection(part)
    senders = None if op.route is None else context.arriving_counts(op)

    def add_listed(now: Now) -> None:
        places = rows(now)
        assert isinstance(places, torch.Tensor), "the part is listed"
        combine(target(now), places, read(now), (len(places),) if senders is None else senders(now))

    return add_listed


def zeros(op: Op, template: Template, context: RankContext) -> Handler:
    """Write zeros to the rows that the op names, or to a whole buffer."""
    access = op.writes[0]
    whole = context.store.memory(access)
    chosen = None if access.part is None else context.store.selection(access.part)

    def clear(now: Now) -> None:
        memory, rows = whole(now), None if chosen is None else chosen(now)
        if isinstance(rows, torch.Tensor):
            memory.index_fill_(0, rows, 0)
        else:
            (memory if rows is None else memory[rows]).zero_()

    return clear


def touches_parts(op: Op) -> bool:
    """Whether an op that moves rows, without a route, touches parts of buffers."""
    return op.route is None and any(access.part is not None for access in (op.reads[0], op.writes[0]))


def move_parts(op: Op, context: RankContext) -> Handler:
    """Move rows from one part of a buffer to another, on the same device or not, without a copy between the two."""
    (source, target), store = (op.reads[0], op.writes[0]), context.store
    if source.part is None or not source.part.places:
        read, put_rows = store.getter(source), store.setter(target)
        if target.part is None:
            return _copy_to(op, context, store.place(target.buffer))
        return lambda now: put_rows(now, read(now))
    whole, chosen = store.memory(source), store.selection(source.part)
    if target.part is None:
        put_new, place = store.setter(target), store.place(target.buffer)
        return lambda now: put_new(now, picked(whole(now), chosen(now)).to(place))
    into, places = store.memory(target), store.selection(target.part)

    def move(now: Now) -> None:
        rows, index, there = whole(now), chosen(now), places(now)
        assert isinstance(index, torch.Tensor), "the part is listed"
        target_rows = into(now)
        if isinstance(there, slice):
            out = target_rows[there]
            if out.device == rows.device:
                gather_rows(rows, index, out)
            else:
                out.copy_(gather_rows(rows, index))
        else:
            move_rows(rows, index.cpu().numpy(), target_rows, there.cpu().numpy())

    return move


def to_device(op: Op, template: Template, context: RankContext) -> Handler:
    """Copy host rows to the device; the copy of pinned rows does not block the host. Several buffers are copied one by
    one. If the device is the host, nothing is copied. With a route, only the rows are copied that its slots name."""
    if op.route is not None:
        return _from_slots(op, context)
    if touches_parts(op):
        return move_parts(op, context)
    getters = [context.store.getter(access) for access in op.reads]
    setters = [context.store.setter(access) for access in op.writes]
    device = context.device

    def run(now: Now) -> None:
        for get, put_moved in zip(getters, setters, strict=True):
            put_moved(now, moved(get(now), device))

    return run if len(getters) > 1 else _copy_to(op, context, device)


def to_host(op: Op, template: Template, context: RankContext) -> Handler:
    """Copy device rows to the host, and wait until they have arrived. With a route, only those that leave along it."""
    if touches_parts(op):
        return move_parts(op, context)
    if op.route is None:
        return _copy_to(op, context, torch.device("cpu"))
    read, put_rows = context.store.getter(op.reads[0]), context.store.setter(op.writes[0])
    rows = _leaving(op, context)
    return lambda now: put_rows(now, gather_rows(read(now), rows).cpu())


def to_shared(op: Op, template: Template, context: RankContext) -> Handler:
    """Copy the device rows that leave along the op's route to its slots in memory that the ranks of a host share; the
    second written buffer notes their epoch, plus one."""
    rows = _leaving(op, context)

    def copy_rows(source: torch.Tensor, place: torch.Tensor) -> None:
        if source.device.type == "cpu":
            gather_rows(source, rows, place)
        else:
            place.copy_(gather_rows(source, rows))

    return _into_slots(op, context, copy_rows)


def merge(op: Op, template: Template, context: RankContext) -> Handler:
    """Copy rows in the memory of this rank to the slots of the op's route, as :func:`to_shared` does from a device."""
    return _into_slots(op, context, lambda source, place: place.copy_(source))


def _leaving(op: Op, context: RankContext) -> torch.Tensor:
    rows = context.route(op).leaving
    assert rows is not None, "the route names local rows"
    return rows


def _into_slots(op: Op, context: RankContext, copy_rows: Callable[[torch.Tensor, torch.Tensor], object]) -> Handler:
    read, (shared, versions) = context.store.getter(op.reads[0]), [context.store.changed_rows(to) for to in op.writes]
    block = slot_block(context.route(op))

    def run(now: Now) -> None:
        copy_rows(read(now), shared(now)[block])
        versions(now)[block] = now.epoch + 1

    return run


def slot_block(route: LocalRoute) -> slice:
    """Return the slots of the rows that a rank sends along a route, which lie one after the other."""
    slots = route.sent_slots
    assert slots is not None, "the route has slots"
    first = int(slots[0]) if len(slots) else 0
    if not torch.equal(slots, torch.arange(first, first + len(slots))):
        raise BackendError("slots of shared rows do not lie one after the other; prepare the run again")
    return slice(first, first + len(slots))


def _from_slots(op: Op, context: RankContext) -> Handler:
    getters = [context.store.getter(access) for access in op.reads]
    setters, places = context.writes(op), [context.store.place(access.buffer) for access in op.writes]
    slots = context.route(op).received_slots
    assert slots is not None, "the route has slots"

    def run(now: Now) -> None:
        for get, put_rows, place in zip(getters, setters, places, strict=True):
            put_rows(now, moved(gather_rows(get(now), slots), place))

    return run


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
    """Pack the rows of a sparse matrix that the route names, one block of bytes per peer; or unpack received blocks."""
    read, put_whole = context.store.getter(op.reads[0]), context.store.setter(op.writes[0])
    features = context.store.values[context.store.slot("features")]
    assert isinstance(features, torch.Tensor)
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
    """Pack rows of a CSR matrix as bytes (uint8), ``counts[p]`` rows for peer p, peers ascending. Each peer's block
    holds row lengths (int32), column ids (int32) and values."""
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
    """Unpack the blocks that peers packed with :func:`pack_rows` into a CSR matrix [sum(counts), width]."""
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
