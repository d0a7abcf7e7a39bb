"""Ops between pairs of ranks whose payload is counted as ``bytes_sent``: uneven all-to-all, point-to-point rows."""

from collections.abc import Callable

import torch
import torch.distributed as dist

from executor.handlers.wire import all_to_all, count_pairs, counts_of, row_bytes
from executor.state.buffers import Now
from executor.state.context import GroupHandle, Handler, LocalRoute, RankContext, Sent
from simgnn.emit.caches.masks import WireMask
from simgnn.errors import BackendError
from simgnn.policy import derive
from simgnn.program.ops import Op
from simgnn.program.program import Template
from simgnn.program.sizes import Decision


def exchange(op: Op, template: Template, context: RankContext) -> Handler:
    """Uneven all-to-all of a packed buffer (peers ascending); what arrives is written, peers ascending.

    Rows of each pair come from the route. With ``transfer.decision`` they are what the sender decided: the op reads the
    counts (int64 [P]) second, and sends them ahead as control bytes; with ``transfer.announced`` it reads the masks, or
    counts of the pairs that may have rows, that have gone ahead, its own and those that arrived. A route that is empty
    on every rank is skipped, in the turns in which it is where its rows differ by turn.
    """
    group, op_id = context.group(op), context.op_id(template, op)
    read, put = context.store.getter(op.reads[0]), context.store.setter(op.writes[0])
    place = context.store.place(op.writes[0].buffer)
    control = op.transfer is not None and op.transfer.control
    if op.transfer is not None and op.transfer.decision is not None:
        return _decided_exchange(op, context, group, op_id)
    if context.scheduled(op):
        return _scheduled_exchange(op, context, group, op_id)
    route = context.route(op)
    if route.empty:
        return lambda now: put(now, read(now).new_empty((0, *read(now).shape[1:]), device=place))
    send = [route.send[member] for member in group.members]
    receive = [route.receive[member] for member in group.members]
    _check_total(op, route, send)

    def run(now: Now) -> Sent:
        packed = read(now)
        received = all_to_all(packed, send, receive, group)
        put(now, received if received.device == place else received.to(place))
        sent, messages = count_pairs(context, now, op_id, group, send, row_bytes(packed))
        return Sent(0, 0, sent, messages) if control else Sent(sent, 0, 0, messages)

    return run


def _scheduled_exchange(op: Op, context: RankContext, group: GroupHandle, op_id: int) -> Handler:
    """An exchange whose rows the program tells for each turn, so that no rank tells another. What is noted as arrived
    are the sizes with which receives were posted, the program's; a sender checks that it holds as many as it tells."""
    assert op.route is not None
    read, put = context.store.getter(op.reads[0]), context.store.setter(op.writes[0])
    place, members = context.store.place(op.writes[0].buffer), list(group.members)
    route, ranks, rank = context.program.sizes.routes[op.route], context.program.ranks, context.rank
    room = context.store.room(op.writes[0].buffer)

    def run(now: Now) -> Sent | None:
        packed, rows = read(now), route.matrix(ranks, now.epoch, now.step)
        if not rows.any():
            put(now, packed.new_empty((0, *packed.shape[1:]), device=place))
            return None
        send, receive = rows[rank, members].tolist(), rows[members, rank].tolist()
        if sum(send) != len(packed):
            raise BackendError(
                f"op '{op.name}', epoch {now.epoch + 1}, step {now.step + 1}: the program sends {sum(send)} rows, "
                f"'{op.reads[0].buffer}' holds {len(packed)}; prepare the run again"
            )
        received = all_to_all(packed, send, receive, group, room)
        context.arrived(op, now, members, receive)
        put(now, received if received.device == place else received.to(place))
        sent, messages = count_pairs(context, now, op_id, group, send, row_bytes(packed))
        return Sent(sent, 0, 0, messages)

    return run


def _decided_exchange(op: Op, context: RankContext, group: GroupHandle, op_id: int) -> Handler:
    """An exchange whose rows were decided in this turn. What is sent to each peer is recorded, and where the rows of
    the written buffer are a decision too, how many arrived; what goes ahead of such an exchange (control) is not, since
    that one tells the same numbers."""
    assert op.transfer is not None
    assert op.transfer.decision is not None
    read, put = context.store.getter(op.reads[0]), context.store.setter(op.writes[0])
    written, control = context.program.buffers[op.writes[0].buffer], op.transfer.control
    place, name = context.store.place(written.name), op.transfer.decision.name
    arrivals = written.rows.name if isinstance(written.rows, Decision) and written.rows.name != name else None
    counts = _counts_announced(op, context) if op.transfer.announced else _counts_sent_ahead(op, context, group)

    def record(now: Now, send: list[int], receive: list[int]) -> None:
        for member, rows in zip(group.members, send, strict=True):
            if member != context.rank:
                context.decide(now, name, rows, member)
        if arrivals is not None:
            context.decide(now, arrivals, sum(receive))

    def run(now: Now) -> Sent:
        packed = read(now)
        send, receive, header = counts(now)
        put(now, all_to_all(packed, send, receive, group).to(place))
        if not control:
            record(now, send, receive)
        sent, messages = count_pairs(context, now, op_id, group, send, row_bytes(packed))
        return Sent(0, 0, header + sent, messages) if control else Sent(sent, 0, header, messages)

    return run


Counts = Callable[[Now], tuple[list[int], list[int], int]]
"""Rows to and from each member in a turn, and the bytes of agreeing on them."""


def _counts_sent_ahead(op: Op, context: RankContext, group: GroupHandle) -> Counts:
    decided = context.store.getter(op.reads[1])

    def counts(now: Now) -> tuple[list[int], list[int], int]:
        send = decided(now)
        receive, header = counts_of(send, group)
        return send.tolist(), receive, header

    return counts


def _counts_announced(op: Op, context: RankContext) -> Counts:
    """Both ends know the masks, or the numbers of rows (int64) of the pairs that have any, so no counts travel."""
    leaving, arriving = (context.store.getter(access) for access in op.reads[1:3])
    route, members = context.route(op), context.group(op).members
    listed = context.program.buffers[op.reads[1].buffer].dtype == "int64"

    def of(most: tuple[int, ...], told: torch.Tensor) -> list[int]:
        if listed:
            return _listed_rows(most, told)
        return derive(context.memo, WireMask, most, like=told).chosen_of_peers(told)

    def counts(now: Now) -> tuple[list[int], list[int], int]:
        send, receive = of(route.send, leaving(now)), of(route.receive, arriving(now))
        return [send[member] for member in members], [receive[member] for member in members], 0

    return counts


def _listed_rows(most: tuple[int, ...], counts: torch.Tensor) -> list[int]:
    """Rows of each rank, from a number for every rank that may have some."""
    told = iter(counts.flatten().tolist())
    return [next(told) if rows else 0 for rows in most]


def peer_read(op: Op, template: Template, context: RankContext) -> Handler:
    """Rows that a route names, read from their owners point to point: each pair with rows is one message.

    The op reads the owner's rows and writes those that it wanted, owners ascending. On a machine with peer access the
    backend moves them directly between devices; every rank that owns rows of the route takes part.
    """
    group, op_id, route = context.group(op), context.op_id(template, op), context.route(op)
    read, put = context.store.getter(op.reads[0]), context.store.setter(op.writes[0])
    place = context.store.place(op.writes[0].buffer)
    send, receive = list(route.send), list(route.receive)
    counts = [send[member] for member in group.members]
    _check_total(op, route, counts)

    def run(now: Now) -> Sent:
        rows = read(now)
        picked = rows if route.gather is None else rows.index_select(0, route.gather)
        wire = picked.to(group.device)
        out = torch.empty((sum(receive), *wire.shape[1:]), dtype=wire.dtype, device=wire.device)
        _points(wire, out, send, receive, group)
        put(now, out.to(place))
        return Sent(*_payload(count_pairs(context, now, op_id, group, counts, row_bytes(wire))))

    return run


def _points(wire: torch.Tensor, out: torch.Tensor, send: list[int], receive: list[int], group: GroupHandle) -> None:
    requests = []
    parts, slots = torch.split(wire, send), torch.split(out, receive)
    for peer in group.members:
        if receive[peer]:
            requests.append(dist.P2POp(dist.irecv, slots[peer], peer, group.process_group))
        if send[peer]:
            requests.append(dist.P2POp(dist.isend, parts[peer], peer, group.process_group))
    if requests:
        for work in dist.batch_isend_irecv(requests):
            work.wait()


def _payload(counted: tuple[int, int]) -> tuple[int, int, int, int]:
    return counted[0], 0, 0, counted[1]


def _check_total(op: Op, route: LocalRoute, send: list[int]) -> None:
    if sum(send) != sum(route.send):
        raise BackendError(f"op '{op.name}' sends along the route '{op.route}' to ranks outside its process group")
