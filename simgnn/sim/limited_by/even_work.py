"""The same program with its work spread evenly over ranks: what a perfectly balanced partition would gain, if it sent
the same messages."""

from dataclasses import replace

import numpy as np

from simgnn.program.ops import Op, Work
from simgnn.program.program import Program
from simgnn.program.sizes import Column, IntArray, Size
from simgnn.sim.network.flow_table import Floats

EVEN = "even/{}"


def even_shares(seconds: Floats) -> Floats:
    """Return the share of all work that each rank gets so that all compute equally long, float64 [P], sum 1, if they
    compute for ``seconds`` [P] with equal shares. A rank that computes nothing gets none."""
    rates = np.divide(1.0, seconds, out=np.zeros_like(seconds), where=seconds > 0.0)
    return rates / rates.sum() if rates.any() else np.full(len(seconds), 1.0 / len(seconds))


def with_even_work(program: Program, shares: Floats) -> Program:
    """Return the program in which rank i does ``shares[i]`` (float64 [P], sum 1) of all rows, edges and elements that
    ops work on. Messages, buffers and decisions keep their sizes; so does the work of ops that some ranks lack."""
    columns = dict(program.sizes.columns)

    def even(size: Size) -> Size:
        if not isinstance(size, Column):
            return size
        name = EVEN.format(size.name)
        columns.setdefault(name, _even(program.sizes.columns[size.name], shares))
        return Column(name)

    def spread(op: Op) -> Op:
        if op.ranks is not None:
            return op
        work = (
            Work(one.primitive, {key: even(size) for key, size in one.sizes.items()}, one.locality) for one in op.work
        )
        return replace(op, work=tuple(work))

    templates = {
        name: replace(template, ops=tuple(map(spread, template.ops))) for name, template in program.templates.items()
    }
    return replace(program, templates=templates, sizes=replace(program.sizes, columns=columns))


def _even(column: IntArray, shares: Floats) -> IntArray:
    total = column.sum(axis=0, keepdims=True)
    even: IntArray = np.rint(total * shares.reshape(-1, *([1] * (column.ndim - 1)))).astype(np.int64)
    return even
