"""What handlers hand to ``torch.distributed``, and how they count it."""

from collections.abc import Sequence

import torch
import torch.distributed as dist

from executor.state.buffers import Now
from executor.state.context import GroupHandle, RankContext


def row_bytes(rows: torch.Tensor) -> int:
    """Bytes of one row of a dense tensor."""
    count = rows.element_size()
    for extent in rows.shape[1:]:
        count *= extent
    return count


def all_to_all(
    packed: torch.Tensor,
    send: Sequence[int],
    receive: Sequence[int],
    group: GroupHandle,
    room: torch.Tensor | None = None,
) -> torch.Tensor:
    """Rows to and from every member of the group; what arrives, on the group's device: in the first rows of ``room``,
    where there is any."""
    wire = packed if packed.device == group.device else packed.to(group.device)
    if room is None or room.device != wire.device:
        room = torch.empty((sum(receive), *wire.shape[1:]), dtype=wire.dtype, device=wire.device)
    out = room[: sum(receive)]
    if group.process_group is None:
        out.copy_(wire)
    elif wire.device.type == "cpu":
        _pairwise(out, wire.contiguous(), send, receive, group)
    else:
        dist.all_to_all_single(out, wire.contiguous(), list(receive), list(send), group=group.process_group)
    return out


def _pairwise(
    out: torch.Tensor, wire: torch.Tensor, send: Sequence[int], receive: Sequence[int], group: GroupHandle
) -> None:
    """One message a pair, every receive posted before any send.

    Gloo's own all-to-all posts a pair's send first: on a slow link both ends then write before either reads, and the
    two directions take turns where a full-duplex link carries both at once.
    """
    mine = group.members.index(dist.get_rank())
    arriving, leaving = torch.split(out, list(receive)), torch.split(wire, list(send))
    works = [
        dist.irecv(part, group=group.process_group, group_src=peer)
        for peer, part in enumerate(arriving)
        if part.numel() and peer != mine
    ]
    works += [
        dist.isend(part, group=group.process_group, group_dst=peer)
        for peer, part in enumerate(leaving)
        if part.numel() and peer != mine
    ]
    arriving[mine].copy_(leaving[mine])
    for work in works:
        assert work is not None  # every member of the group has its handle
        work.wait()


def counts_of(send: torch.Tensor, group: GroupHandle) -> tuple[list[int], int]:
    """How many rows each member will send, from what each member told (int64), and the bytes of telling."""
    wire = send.to(group.device)
    out = torch.empty_like(wire)
    if group.process_group is None:
        out.copy_(wire)
    else:
        dist.all_to_all_single(out, wire.contiguous(), group=group.process_group)
    return out.tolist(), wire.element_size() * (len(group.members) - 1)


def count_pairs(
    context: RankContext, now: Now, op_id: int, group: GroupHandle, send: Sequence[int], size: int
) -> tuple[int, int]:
    """Book rows of ``size`` bytes sent to each member in a turn; (bytes, messages) that left this rank."""
    total = messages = 0
    for member, rows in zip(group.members, send, strict=True):
        if rows and member != context.rank:
            for counter in context.pair_counters(now, op_id, member):
                counter[0] += 1
                counter[1] += rows * size
            total += rows * size
            messages += 1
    return total, messages
