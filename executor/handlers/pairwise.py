"""Point-to-point ops, counted as ``bytes_sent``: uneven all-to-all, reads of owners' rows, request and reply."""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from executor.handlers.wire import all_to_all, count_pairs, counts_of, request_rows, row_bytes
from executor.state.buffers import Now
from executor.state.context import GroupHandle, Handler, RankContext, Sent, policy_context
from simgnn.emit.caches.masks import WireMask
from simgnn.errors import BackendError
from simgnn.policy import derive
from simgnn.program.ops import Op
from simgnn.program.program import Template
from simgnn.program.sizes import Decision

Counts = Callable[[Now, torch.Tensor], tuple[list[int], list[int], int] | None]
"""Function of a turn and the rows to send. It returns the rows to and from each member, and the bytes spent on agreeing
on them; None if no rank sends anything, so that the exchange is skipped."""
Record = Callable[[Now, list[int], list[int]], None]
"""Function that records the rows sent to and received from each member in a turn."""


def exchange(op: Op, template: Template, context: RankContext) -> Handler:
    """Exchange rows with an uneven all-to-all of a packed buffer; rows are in ascending order of peers.

    The op's route states how many rows each pair of ranks exchanges; the number may differ by step. If instead a policy
    decides it (``transfer.decision``), the op's second input holds the counts (int64 [P]), which are sent first, as
    control bytes. With ``transfer.announced`` both ends know the counts from masks or lists that an earlier op sent.
    Nothing is sent in a step in which the route has no rows. A second written buffer (int64 [1, 1], changed in place)
    notes the epoch of the rows that arrived, plus one; what the first written buffer holds is then dropped beforehand.
    """
    group, op_id, transfer = context.group(op), context.program.op_ids[template.name, op.name], op.transfer
    read, put = context.store.getter(op.reads[0]), context.store.setter(op.writes[0])
    written = op.writes[0].buffer
    place, control = context.store.place(written), transfer is not None and transfer.control
    room: torch.Tensor | None = None
    record: Record | None = None
    counts: Counts
    if transfer is not None and transfer.decision is not None:
        counts = _counts_announced(op, context) if transfer.announced else _counts_sent_ahead(op, context, group)
        # what a control message decides, the exchange behind it decides again, and records
        record = None if control else _record_decision(op, transfer.decision.name, context, group)
    elif context.scheduled(op):
        counts = _counts_of_turn(op, context, group)
        room = context.store.room(written) if context.program.buffers[written].lasting else None

        def record(now: Now, send: list[int], receive: list[int]) -> None:
            context.arrived(op, now, group.members, receive)

    else:
        route = context.route(op)
        send_rows, receive_rows = ([rows[one] for one in group.members] for rows in (route.send, route.receive))

        def counts(now: Now, packed: torch.Tensor) -> tuple[list[int], list[int], int] | None:
            return None if route.empty else (send_rows, receive_rows, 0)

    version = context.store.changed_rows(op.writes[1]) if len(op.writes) > 1 else None

    def run(now: Now) -> Sent | None:
        packed = read(now)
        counted = counts(now, packed)
        if version is not None:
            version(now).fill_(now.epoch + 1)
            put(now, None)  # rows that are used late lie elsewhere by now: no third copy while these arrive
        if counted is None:
            put(now, packed.new_empty((0, *packed.shape[1:]), device=place))
            return None
        send, receive, header = counted
        received = all_to_all(packed, send, receive, group, room)
        put(now, received if received.device == place else received.to(place))
        if record is not None:
            record(now, send, receive)
        sent, messages = count_pairs(context, now, op_id, group, send, row_bytes(packed))
        return Sent(0, 0, header + sent, messages) if control else Sent(sent, 0, header, messages)

    return run


def _counts_of_turn(op: Op, context: RankContext, group: GroupHandle) -> Counts:
    """Return a function that reads from the program how many rows each rank sends in a step; no message is needed."""
    assert op.route is not None
    route, ranks, rank = context.program.sizes.routes[op.route], context.program.ranks, context.rank
    members = list(group.members)

    def counts(now: Now, packed: torch.Tensor) -> tuple[list[int], list[int], int] | None:
        rows = route.matrix(ranks, now.epoch, now.step)
        if not rows.any():
            return None
        send, receive = rows[rank, members].tolist(), rows[members, rank].tolist()
        if sum(send) != len(packed):
            raise BackendError(
                f"op '{op.name}', epoch {now.epoch + 1}, step {now.step + 1}: the program sends {sum(send)} rows, "
                f"'{op.reads[0].buffer}' holds {len(packed)}; prepare the run again"
            )
        return send, receive, 0

    return counts


def _record_decision(op: Op, name: str, context: RankContext, group: GroupHandle) -> Record:
    """Return a function that records how many rows a policy chose to send to each peer; and how many arrived, if the
    size of the written buffer is another decision."""
    size = context.program.buffers[op.writes[0].buffer].rows
    arrivals = size.name if isinstance(size, Decision) and size.name != name else None

    def record(now: Now, send: list[int], receive: list[int]) -> None:
        for member, rows in zip(group.members, send, strict=True):
            if member != context.rank:
                context.decide(now, name, rows, member)
        if arrivals is not None:
            context.decide(now, arrivals, sum(receive))

    return record


def _counts_sent_ahead(op: Op, context: RankContext, group: GroupHandle) -> Counts:
    decided = context.store.getter(op.reads[1])

    def counts(now: Now, packed: torch.Tensor) -> tuple[list[int], list[int], int]:
        send = decided(now)
        receive, header = counts_of(send, group)
        return send.tolist(), receive, header

    return counts


def _counts_announced(op: Op, context: RankContext) -> Counts:
    """Return a function that computes row counts from masks or lists of counts (int64) that were exchanged before."""
    leaving, arriving = (context.store.getter(access) for access in op.reads[1:3])
    route, members = context.route(op), context.group(op).members
    listed = context.program.buffers[op.reads[1].buffer].dtype == "int64"

    def of(most: tuple[int, ...], announced: torch.Tensor) -> list[int]:
        if listed:
            return _listed_rows(most, announced)
        return derive(context.memo, WireMask, most, like=announced).chosen_of_peers(announced)

    def counts(now: Now, packed: torch.Tensor) -> tuple[list[int], list[int], int]:
        send, receive = of(route.send, leaving(now)), of(route.receive, arriving(now))
        return [send[member] for member in members], [receive[member] for member in members], 0

    return counts


def _listed_rows(most: tuple[int, ...], counts: torch.Tensor) -> list[int]:
    """Return the number of rows for each rank, from ``counts`` that list only ranks that may have rows."""
    numbers = iter(counts.flatten().tolist())
    return [next(numbers) if rows else 0 for rows in most]


def peer_read(op: Op, template: Template, context: RankContext) -> Handler:
    """Copy the rows that a route names from their owners, with one message for each pair of ranks that has rows. Both
    ends take part (:data:`simgnn.program.kinds.GROUP_KINDS`); the backend copies directly between devices where these
    have peer access.

    The op's input holds the rows that this rank owns: those to send, peers ascending, or all of which the rank's graph
    lists these. Its output gets the rows that this rank needs, owners ascending. Both may be parts, of one buffer, too:
    what leaves is gathered before anything is put. The number of rows may differ by step."""
    group, op_id = context.group(op), context.program.op_ids[template.name, op.name]
    read, put = context.store.getter(op.reads[0]), context.store.setter(op.writes[0])
    packed = op.reads[0].part is not None or context.scheduled(op)
    gather = None if packed else context.route(op).gather
    place, counts = context.store.place(op.writes[0].buffer), _counts_of_peers(op, context)

    def run(now: Now) -> Sent:
        rows, (send, receive) = read(now), counts(now)
        wire = (rows if gather is None else rows.index_select(0, gather)).to(group.device).contiguous()
        if len(wire) != sum(send):
            raise BackendError(
                f"op '{op.name}', epoch {now.epoch + 1}, step {now.step + 1}: the program sends {sum(send)} rows, "
                f"'{op.reads[0].buffer}' gives {len(wire)}; prepare the run again"
            )
        out = torch.empty((sum(receive), *wire.shape[1:]), dtype=wire.dtype, device=wire.device)
        parts, slots = torch.split(wire, list(send)), torch.split(out, list(receive))
        requests = []
        for peer in group.members:
            if receive[peer]:
                requests.append(dist.P2POp(dist.irecv, slots[peer], peer, group.process_group))
            if send[peer]:
                requests.append(dist.P2POp(dist.isend, parts[peer], peer, group.process_group))
        for work in dist.batch_isend_irecv(requests) if requests else ():
            work.wait()
        put(now, out.to(place))
        leaving = [send[member] for member in group.members]
        sent, messages = count_pairs(context, now, op_id, group, leaving, row_bytes(wire))
        return Sent(sent, 0, 0, messages)

    return run


def _counts_of_peers(op: Op, context: RankContext) -> Callable[[Now], tuple[Sequence[int], Sequence[int]]]:
    """Return a function of the turn that gives the rows to each rank and from each rank along an op's route, [P]."""
    if not context.scheduled(op):
        known = context.route(op).send, context.route(op).receive
        return lambda now: known
    assert op.route is not None
    route, ranks, rank = context.program.sizes.routes[op.route], context.program.ranks, context.rank

    def counts(now: Now) -> tuple[Sequence[int], Sequence[int]]:
        rows = route.matrix(ranks, now.epoch, now.step)
        return rows[rank].tolist(), rows[:, rank].tolist()

    return counts


def fetch(op: Op, template: Template, context: RankContext, remote: bool = False) -> Handler:
    """Fetch rows of remote vertices. Reads (ids int64 [k], stored rows [n, F]); writes rows [k, F] in the order of ids.
    With ``remote``, only rows of other hosts are fetched, in the order that the op's action returns, by rank.

    The op's action locates ids: ``run(context, ids) -> (rank int64 [k], position int64 [k])``. One round sends counts
    (8 bytes per pair, control), positions (int64, payload) and rows (payload). A second written buffer receives the
    requests of other ranks: positions, and their number by rank (int64). Rounds have at most ``options["round_rows"]``
    ids (default: one round for all). Ranks agree on the number of rounds first, and a round may be empty.

    Raises :class:`BackendError` for a second buffer together with ``round_rows``.
    """
    in_order = remote and "round_rows" not in op.options  # rows are written as they arrive
    if len(op.writes) > 1 and "round_rows" in op.options:
        raise BackendError(f"op '{op.name}' stores requests, which needs one round: leave out options['round_rows']")
    group, op_id, action = context.group(op), context.program.op_ids[template.name, op.name], context.action(op)
    read_ids, read_rows = (context.store.getter(access) for access in op.reads[:2])
    put, place = context.store.setter(op.writes[0]), context.store.place(op.writes[0].buffer)
    keep = context.store.setter(op.writes[1]) if len(op.writes) > 1 else None
    limit, where = int(op.options.get("round_rows", 0)), policy_context(context, op)

    def run(now: Now) -> Sent:
        ids, stored = read_ids(now), read_rows(now)
        owner, position = action.run(where(now), ids)
        wanted = len(owner)
        result = stored.new_empty((0 if in_order else wanted, *stored.shape[1:]), device=place)
        size = limit or max(1, wanted)
        rounds, control = 1, 0
        if limit:  # as many as the rank with the most ids needs
            members_rounds, control = counts_of(torch.full((len(group.members),), -(-wanted // size)), group)
            rounds = max(members_rounds)
        sent = messages = 0
        for number in range(rounds):
            part = slice(min(number * size, wanted), min((number + 1) * size, wanted))
            reply = request_rows(stored, owner[part], position[part], group)
            context.arrived(op, now, group.members, reply.asked)
            if in_order:
                result = reply.rows.to(place)
            else:
                result[torch.arange(part.start, part.stop)[reply.places.cpu()].to(place)] = reply.rows.to(place)
            for counts, nbytes in ((reply.asked, row_bytes(reply.positions)), (reply.served, row_bytes(reply.rows))):
                more, count = count_pairs(context, now, op_id, group, counts, nbytes)
                sent, messages = sent + more, messages + count
            control += reply.control_bytes
            if keep is not None:
                keep(now, (reply.positions, torch.tensor(reply.served)))
        put(now, result)
        return Sent(sent, 0, control, messages)

    return run
