"""Request and reply: rows by id from the ranks that hold them, in numbered rounds that every rank takes part in."""

import torch

from executor.handlers.request import request_rows
from executor.handlers.wire import count_pairs, counts_of
from executor.state.buffers import Now
from executor.state.context import Handler, RankContext, Sent, policy_context
from simgnn.errors import BackendError
from simgnn.program.ops import Op
from simgnn.program.program import Template


def fetch(op: Op, template: Template, context: RankContext) -> Handler:
    """Rows of remote vertices. Reads (ids int64 [k], stored rows [n, F]); writes rows [k, F] in the order of the ids.

    The op's action finds ids: ``run(context, ids) -> (rank int64 [k], position int64 [k])``. One round is: counts (8
    bytes a pair, control), positions (int64, payload), rows (payload). A second buffer that is written takes what this
    rank was asked for: positions, and how many of them by each rank (int64). Ids are cut into rounds of at most
    ``options["round_rows"]`` (default: one); ranks agree on the number of rounds first; empty rounds are legal.

    Raises :class:`BackendError` for a second buffer and more than one round.
    """
    return _fetch(op, template, context, in_order=False)


def fetch_remote(op: Op, template: Template, context: RankContext) -> Handler:
    """Only rows that other hosts hold, which the op's action finds rank after rank. What is written has just these
    rows, in this order."""
    return _fetch(op, template, context, in_order="round_rows" not in op.options)


def _fetch(op: Op, template: Template, context: RankContext, in_order: bool) -> Handler:
    """``in_order``: rows are written as they arrive."""
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
        mine = -(-wanted // size)
        rounds, control = (mine, 0) if not limit else _most(mine, context, op)
        sent = messages = 0
        for number in range(rounds if limit else 1):
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


def _most(rounds: int, context: RankContext, op: Op) -> tuple[int, int]:
    """The largest number of rounds that any rank needs, and the bytes of agreeing."""
    group = context.group(op)
    told, header = counts_of(torch.full((len(group.members),), rounds), group)
    return max(told), header
