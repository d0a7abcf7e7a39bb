"""Request and reply: rows by id from the ranks that hold them, in rounds that every rank takes part in."""

import torch

from executor.handlers.wire import count_pairs, counts_of, request_rows
from executor.state.buffers import Now
from executor.state.context import Handler, RankContext, Sent, policy_context
from simgnn.errors import BackendError
from simgnn.program.ops import Op
from simgnn.program.program import Template


def fetch(op: Op, template: Template, context: RankContext) -> Handler:
    """Fetch rows of remote vertices. Reads (ids int64 [k], stored rows [n, F]); writes rows [k, F] in the order of ids.

    The op's action locates ids: ``run(context, ids) -> (rank int64 [k], position int64 [k])``. One round sends counts
    (8 bytes a pair, control), positions (int64, payload) and rows (payload). A second written buffer takes what other
    ranks asked for: positions, and their number by rank (int64). Rounds have at most ``options["round_rows"]`` ids
    (default: one round for all); ranks agree on the number of rounds first, and a round may be empty.

    Raises :class:`BackendError` for a second buffer together with ``round_rows``.
    """
    return _fetch(op, template, context, in_order=False)


def fetch_remote(op: Op, template: Template, context: RankContext) -> Handler:
    """Fetch rows that other hosts hold, which the op's action locates rank after rank; write them in that order."""
    return _fetch(op, template, context, in_order="round_rows" not in op.options)


def _fetch(op: Op, template: Template, context: RankContext, in_order: bool) -> Handler:
    if len(op.writes) > 1 and "round_rows" in op.options:
        raise BackendError(f"op '{op.name}' keeps what it is asked for in one round; it has options['round_rows'], too")
    group, op_id, action = context.group(op), context.op_id(template, op), context.action(op)
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
            told, control = counts_of(torch.full((len(group.members),), -(-wanted // size)), group)
            rounds = max(told)
        sent = messages = 0
        for number in range(rounds):
            part = slice(min(number * size, wanted), min((number + 1) * size, wanted))
            reply = request_rows(stored, owner[part], position[part], group)
            context.arrived(op, now, group.members, reply.asked)
            if in_order:
                result = reply.rows.to(place)
            else:
                result[torch.arange(part.start, part.stop)[reply.places.cpu()].to(place)] = reply.rows.to(place)
            for counts, nbytes in ((reply.asked, reply.position_bytes), (reply.served, reply.row_bytes)):
                more, count = count_pairs(context, now, op_id, group, counts, nbytes)
                sent, messages = sent + more, messages + count
            control += reply.control_bytes
            if keep is not None:
                keep(now, (reply.positions, torch.tensor(reply.served)))
        put(now, result)
        return Sent(sent, 0, control, messages)

    return run
