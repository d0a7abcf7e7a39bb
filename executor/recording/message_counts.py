"""What a run's ranks counted: messages and bytes per rank pair. Formulas over a trace: :mod:`simgnn.record.summary`."""

from collections.abc import Mapping

from simgnn.program.program import EVALUATE, Program

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


def mean_matrix(pairs: Pairs, program: Program, ranks: int, what: int, epochs: range) -> list[list[float]]:
    """The same of what was counted in several epochs, mean of an epoch; zeros without an epoch."""
    return [[total / max(len(epochs), 1) for total in row] for row in pair_matrix(pairs, program, ranks, what)]
