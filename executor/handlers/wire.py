"""Functions that send tensors with ``torch.distributed`` and count them, and one round of request and reply."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from executor.state.buffers import Now
from executor.state.context import GroupHandle, RankContext


def row_bytes(rows: torch.Tensor) -> int:
    return rows.element_size() * rows.shape[1:].numel()


def all_to_all(
    packed: torch.Tensor,
    send: Sequence[int],
    receive: Sequence[int],
    group: GroupHandle,
    room: torch.Tensor | None = None,
) -> torch.Tensor:
    """Exchange rows with every member of the group; return what arrived. ``room``: the buffer to receive into."""
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
    """Send one message per pair, posting every receive before any send. Gloo's own all-to-all posts the send of a pair
    first. On a slow link both ends then write before either reads, so that the two directions of a full-duplex link
    take turns."""
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
    """Exchange counts: ``send`` int64 [members] has one for each member. Return the received counts, and the bytes."""
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
    """Count rows of ``size`` bytes that an op sent to each member. Return the (bytes, messages) that left this rank."""
    total = messages = 0
    for member, rows in zip(group.members, send, strict=True):
        if rows and member != context.rank:
            for counter in context.pair_counters(now, op_id, member):
                counter[0] += 1
                counter[1] += rows * size
            total += rows * size
            messages += 1
    return total, messages


@dataclass(frozen=True)
class Reply:
    """The result of one round of request and reply. ``rows`` [k, F] on the group's device: row i answers request
    ``places[i]`` (int64 [k]). ``positions`` int64: which rows other members requested, member after member. ``asked``,
    ``served``: how many rows were requested from, and sent to, each member. ``control_bytes``: of counts sent first."""

    positions: torch.Tensor
    rows: torch.Tensor
    places: torch.Tensor
    asked: list[int]
    served: list[int]
    control_bytes: int


def request_rows(stored: torch.Tensor, owner: torch.Tensor, position: torch.Tensor, group: GroupHandle) -> Reply:
    """Request rows ``position`` int64 [k] from the ranks ``owner`` int64 [k]; this rank holds ``stored`` [n, F]. Every
    member of the group calls it, with or without requests. Counts (8 bytes per pair), positions and rows travel."""
    places = torch.argsort(owner, stable=True)
    wanted = position[places]
    ask = member_counts(owner, group)
    asked = ask.tolist()
    served, header = counts_of(ask, group)
    positions = all_to_all(wanted, asked, served, group)
    reply = stored.index_select(0, positions.to(stored.device))
    rows = all_to_all(reply, served, asked, group)
    return Reply(positions, rows, places, asked, served, header)


def member_counts(ranks: torch.Tensor, group: GroupHandle) -> torch.Tensor:
    """Count how often each member of the group occurs in ``ranks`` int64 [k]: int64 [members]."""
    members = torch.tensor(group.members)
    return torch.bincount(torch.searchsorted(members, ranks.cpu()), minlength=len(members))
