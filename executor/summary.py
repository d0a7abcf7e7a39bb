"""What a run's ranks counted: messages and bytes per rank pair. Formulas over a trace: :mod:`simgnn.record.summary`."""

from collections.abc import Mapping

from simgnn.program.program import EVALUATE, Program
from simgnn.record.summary import Columns, buffer_bytes, epoch_windows, per_rank, rank_times

__all__ = ["Columns", "Pairs", "buffer_bytes", "epoch_windows", "pair_matrix", "per_rank", "rank_times"]

Pairs = Mapping[int, Mapping[tuple[int, int], list[int]]]
"""rank -> (op id, target) -> [messages, bytes]."""


def pair_matrix(pairs: Pairs, program: Program, ranks: int, what: int) -> list[list[int]]:
    """[P][P] messages (``what`` = 0) or payload bytes (1) of training ops, from rank to rank; control ops left out."""
    matrix = [[0] * ranks for _ in range(ranks)]
    for source, counted in pairs.items():
        for (op_id, target), numbers in counted.items():
            template, op = program.ops[op_id]
            control = op.transfer is not None and op.transfer.control
            if template != EVALUATE and not control:
                matrix[source][target] += numbers[what]
    return matrix
