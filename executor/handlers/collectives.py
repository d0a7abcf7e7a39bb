"""Collective ops, counted as ``collective_bytes``: all-reduce, broadcast, all-gather, barrier."""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from executor.state.buffers import TORCH_TYPES, Now
from executor.state.context import Handler, RankContext, Sent
from simgnn.emit.guarded_blocks import check_ages
from simgnn.program.ops import Op
from simgnn.program.program import Template, same_as_constants


def _sent(op: Op, nbytes: int) -> Sent:
    return Sent(0, 0, nbytes, 0) if op.transfer is not None and op.transfer.control else Sent(0, nbytes, 0, 0)


def allreduce(op: Op, template: Template, context: RankContext) -> Handler:
    """Sum all buffers that the op reads over the group, in place, as one message. Buffers that are not adjacent in
    memory (the flat gradients are) are copied into one tensor first."""
    group = context.group(op)
    getters = [context.store.changed_rows(access) for access in op.inputs]

    def run(now: Now) -> Sent:
        values = [get(now) for get in getters]
        joined = values[0] if len(values) == 1 else side_by_side(values)
        flat = torch.cat([value.reshape(-1) for value in values]) if joined is None else joined
        wire = flat if flat.device == group.device and flat.is_contiguous() else flat.to(group.device).contiguous()
        if group.process_group is not None:
            dist.all_reduce(wire, group=group.process_group)
        if wire is not flat:
            flat.copy_(wire)
        if joined is None:
            for value, part in zip(values, torch.split(flat, [value.numel() for value in values]), strict=True):
                value.copy_(part.view_as(value))
        return _sent(op, wire.numel() * wire.element_size())

    return run


def side_by_side(values: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Return a flat view of tensors that follow each other in one storage, or None if they do not."""
    first, place = values[0], values[0].storage_offset()
    for value in values:
        same = value.untyped_storage().data_ptr() == first.untyped_storage().data_ptr() and value.dtype == first.dtype
        if not same or value.storage_offset() != place or not value.is_contiguous():
            return None
        place += value.numel()
    return first.as_strided((place - first.storage_offset(),), (1,), first.storage_offset())


def broadcast(op: Op, template: Template, context: RankContext) -> Handler:
    """Send rows of the op's ``root`` to every member of the group. The root reads them; all members write them.

    The number of rows is the root's entry of ``transfer.rows``, which every rank reads from the program. The root keeps
    no copy if the written buffer has no rows there. A second written buffer holds versions (int64 [P, 1], changed in
    place): the root's entry becomes the epoch plus one. A third holds, on the root, a copy of the rows that it sent
    last.

    If a guard may skip the op (:class:`simgnn.program.ops.Guard`), later steps use the rows that arrived last. Their
    memory is allocated before the first step, so that peak memory does not depend on when rows first arrive.
    """
    group = context.group(op)
    assert op.root is not None
    root, buffer = op.root, context.program.buffers[op.writes[0].buffer]
    read, put = context.store.getter((op.reads or op.writes)[0]), context.store.setter(op.writes[0])
    place, dtype = context.store.place(buffer.name), TORCH_TYPES[buffer.dtype]
    none = torch.empty((0, buffer.width), dtype=dtype, device=place)
    transfer, sizes = op.transfer, context.program.sizes
    versions = context.store.getter(op.writes[1]) if len(op.writes) > 1 else None
    stays = op.guard is not None and buffer.persistent and context.rank != root
    room = context.store.room(buffer.name) if stays else None
    keep = _keeper(op, context) if len(op.writes) > 2 and context.rank == root else None

    def run(now: Now) -> Sent:
        if context.rank == root:
            wire = read(now).to(group.device).contiguous()
        elif room is not None and room.device == group.device:
            wire = room
        else:
            put(now, none)  # the block that it takes the place of goes first
            rows = 1 if transfer is None else int(sizes.per_rank(transfer.rows, now.epoch, now.step)[root])
            wire = torch.empty((rows, buffer.width), dtype=dtype, device=group.device)
        if group.process_group is not None:
            dist.broadcast(wire, src=root, group=group.process_group)
        keeps = context.rank != root or context.store.rows(buffer.rows, now) > 0
        if room is not None and wire is not room:
            wire = room.copy_(wire)
        put(now, wire.to(place) if keeps else none)  # no view of the rows, which would keep them all
        if versions is not None:
            versions(now)[root] = now.epoch + 1
        if keep is not None:
            keep(now, read(now))
        return _sent(op, wire.numel() * wire.element_size() if context.rank == root else 0)

    return run


def _keeper(op: Op, context: RankContext) -> Callable[[Now, torch.Tensor], None]:
    """Return a function that stores the rows that a broadcast's root sent in the third buffer that the op writes. Rows
    that never change are stored without a copy."""
    name, put = op.writes[2].buffer, context.store.setter(op.writes[2])
    if name in same_as_constants(context.program):
        return put
    room = context.store.room(name)
    return lambda now, rows: put(now, room.copy_(rows))


def age_check(op: Op, context: RankContext, rows: Sequence[int]) -> Handler:
    """Return a handler that checks with :func:`simgnn.emit.guarded_blocks.check_ages` that no block that an op sums is
    older than ``options["oldest_epochs"]``, if the op has this option. ``rows`` [P]: rows of each rank's block.
    ``options["versions"]``: the buffer of versions that broadcasts write."""
    if "oldest_epochs" not in op.options:
        return lambda now: None
    name, oldest = str(op.options["versions"]), int(op.options["oldest_epochs"])
    read = context.store.getter(next(access for access in op.reads if access.buffer == name))
    others = [root for root, count in enumerate(rows) if count and root != context.rank]
    return lambda now: check_ages(context.rank, now.epoch, read(now), others, oldest)


def allgather(op: Op, template: Template, context: RankContext) -> Handler:
    """Gather the rows of every member on every member, in rank order. The number of rows may differ between members."""
    group = context.group(op)
    read, put = context.store.getter(op.reads[0]), context.store.setter(op.writes[0])
    place, transfer, sizes = context.store.place(op.writes[0].buffer), op.transfer, context.program.sizes

    def run(now: Now) -> Sent:
        wire = read(now).to(group.device).contiguous()
        size = None if transfer is None else sizes.per_rank(transfer.rows, now.epoch, now.step)
        rows = [len(wire) if size is None else int(size[member]) for member in group.members]
        out = [torch.empty((count, *wire.shape[1:]), dtype=wire.dtype, device=wire.device) for count in rows]
        if group.process_group is None:
            out = [wire]
        elif len(set(rows)) == 1:
            dist.all_gather(out, wire, group=group.process_group)
        else:
            # gloo gathers equal shapes only: shorter ones are padded, and the padding is counted, since it travels
            wire = torch.cat((wire, wire.new_zeros((max(rows) - len(wire), *wire.shape[1:]))))
            padded = [torch.empty_like(wire) for _ in rows]
            dist.all_gather(padded, wire, group=group.process_group)
            out = [part[:count] for part, count in zip(padded, rows, strict=True)]
        put(now, torch.cat(out).to(place))
        return _sent(op, wire.numel() * wire.element_size())

    return run


def barrier(op: Op, template: Template, context: RankContext) -> Handler:
    group = context.group(op).process_group
    return lambda now: None if group is None else dist.barrier(group=group)
