"""What pairwise ops send: rounds of messages between pairs of ranks, from routes and decisions.

An exchange is one round. With decided counts a header round goes ahead, unless masks have announced them; a fetch is
counts, positions, rows, as often as its rounds say. These are the messages that the executor hands to its library, and
the bytes that it counts.
"""

from typing import NamedTuple

import numpy as np

from simgnn.errors import ProgramError
from simgnn.program.kinds import OpKind
from simgnn.program.ops import Op, Transfer
from simgnn.program.program import Turn
from simgnn.program.sizes import IntArray
from simgnn.sim.engine.compiled import CompiledOp
from simgnn.sim.engine.turn_sizes import Sizes

WORD_BYTES = 8
"""Counts and positions travel as int64."""


class Round(NamedTuple):
    """Messages of one call: int64 [n] sender, receiver, bytes (each pair at most once, none empty), whether they
    are control instead of payload, and whether they are the counts that go ahead of rows (no message of anybody's)."""

    source: IntArray
    target: IntArray
    nbytes: IntArray
    control: bool
    header: bool = False


def pairwise_rounds(compiled: CompiledOp, sizes: Sizes, turn: Turn) -> tuple[Round, ...]:
    """The rounds of an exchange, fetch or peer read in one turn. Empty: no rank has anything to send."""
    op = compiled.op
    matrix = _rows(compiled, sizes, turn)
    transfer = _transfer(op)
    if op.kind is OpKind.FETCH:
        return _fetch_rounds(compiled, matrix, transfer)
    rows = _round(matrix * transfer.row_bytes, transfer.control)
    if transfer.decision is not None and not transfer.announced:
        return (_header(compiled), rows)
    return (rows,) if len(rows.source) else ()


def _transfer(op: Op) -> Transfer:
    if op.transfer is None:
        raise ProgramError(f"op '{op.name}' of kind {op.kind} has no transfer, so nobody knows what it sends")
    return op.transfer


def _rows(compiled: CompiledOp, sizes: Sizes, turn: Turn) -> IntArray:
    """Rows of each (sender, receiver), int64 [P, P]; pairs outside a team send nothing."""
    op = compiled.op
    if op.route is None:
        raise ProgramError(f"op '{op.name}' of kind {op.kind} has no route, so nobody knows who sends to whom")
    transfer = _transfer(op)
    if transfer.decision is not None:
        matrix = sizes.pairs(transfer.decision, turn.epoch, turn.step, op.name).copy()
    else:
        route = sizes.program.sizes.routes[op.route]
        matrix = route.matrix(sizes.program.ranks, turn.epoch, max(turn.step, 0))
    np.fill_diagonal(matrix, 0)
    if op.kind is not OpKind.PEER_READ:
        together = (compiled.team[:, None] == compiled.team) & compiled.runs[:, None] & compiled.runs
        if np.any(matrix[~together]):
            raise ProgramError(f"op '{op.name}' sends along the route '{op.route}' to ranks outside its process group")
    return matrix


def _fetch_rounds(compiled: CompiledOp, matrix: IntArray, transfer: Transfer) -> tuple[Round, ...]:
    """Counts, positions to the owners, rows back; cut into rounds of at most ``round_rows`` ids of a rank."""
    limit = int(compiled.op.options.get("round_rows", 0))
    wanted = matrix.sum(axis=0)
    count = max(1, -(-int(wanted.max(initial=0)) // limit)) if limit else 1
    header = _header(compiled)
    rounds = [header] if limit else []
    sent = np.zeros_like(matrix)
    for number in range(1, count + 1):
        # Ids of a rank lie with their owners in any order: each owner's share of a round is its share of all.
        share = np.minimum(number * limit, wanted) / np.maximum(wanted, 1) if limit else np.ones(len(wanted))
        until = matrix if number == count else np.floor(matrix * share).astype(np.int64)
        rows = until - sent
        sent = until
        rounds += [header, _round(rows.T * WORD_BYTES, False), _round(rows * transfer.row_bytes, False)]
    return tuple(rounds)


def _header(compiled: CompiledOp) -> Round:
    """What every member of a team tells every other before it sends: one count."""
    together = (compiled.team[:, None] == compiled.team) & compiled.runs[:, None] & compiled.runs
    np.fill_diagonal(together, False)
    return _round(together.astype(np.int64) * WORD_BYTES, True)._replace(header=True)


def _round(nbytes: IntArray, control: bool) -> Round:
    source, target = np.nonzero(nbytes)
    return Round(source.astype(np.int64), target.astype(np.int64), nbytes[source, target].astype(np.int64), control)
