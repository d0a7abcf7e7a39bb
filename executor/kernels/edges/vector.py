"""Intrinsics for Numba: add up the rows that a row's edges point at, with the sums held in vector registers; multiply
two rows element by element and add that up.

Numba writes the running sum of ``out[i] += x[j]`` to memory for every edge and checks at run time whether the arrays
overlap. Both vanish when the loop over edges is emitted as LLVM vector code: the sums of a block of columns live in
registers from the first edge of a row to its last.
"""

from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_FEATURES = llvm.get_host_cpu_features()


def _registers() -> tuple[int, int]:
    """Return the bytes of a vector register of this processor, and how many registers a block of sums may use."""
    if _FEATURES.get("avx512f"):
        return 64, 16
    if _FEATURES.get("avx"):
        return 32, 8
    return 16, 8


VECTOR_BYTES, BLOCK_VECTORS = _registers()
_I64 = ir.IntType(64)
_I32 = ir.IntType(32)


def _lanes(vectors_of: Any, split: int) -> int:
    return max(1, VECTOR_BYTES // (int(vectors_of.bitwidth) // 8) >> split)


@intrinsic(prefer_literal=True)
def accumulate(  # type: ignore[no-untyped-def]
    typingctx, vectors, split, inner, halo, indices, values, source_scale, start, own, begin, end, column, factor, out
):
    """out[own, c] = factor * (start * inner[own, c] + sum over edges k in begin..end of weight(k) * x[indices[k], c]).

    Columns c run from ``column`` over ``vectors`` registers, each holding 1 / 2**split of a full register. ``x[j]`` is
    ``inner[j]`` for j below the rows of ``inner``, else ``halo[j - rows]``; both C-contiguous of one width and dtype.
    ``weight(k)`` is values[k] * source_scale[indices[k]]; None in the place of either array stands for ones.
    ``start`` = 0 reads nothing of ``inner[own]``.
    """
    count, parts = vectors.literal_value, split.literal_value
    signature = types.void(
        vectors,
        split,
        inner,
        halo,
        indices,
        values,
        source_scale,
        inner.dtype,
        types.intp,
        types.intp,
        types.intp,
        types.intp,
        inner.dtype,
        out,
    )

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        _Emitter(context, builder, signature.args, args, count, _lanes(inner.dtype, parts)).emit()
        return context.get_dummy_value()

    return signature, codegen


class _Emitter:
    """Writes the loop of :func:`accumulate` for one number of registers and lanes."""

    def __init__(self, context: Any, builder: Any, kinds: Any, args: Any, count: int, lanes: int) -> None:
        self.builder, self.count, self.lanes = builder, count, lanes
        self.kinds = kinds
        self.item = kinds[2].dtype.bitwidth // 8
        self.element = context.get_value_type(kinds[2].dtype)
        self.vector = ir.VectorType(self.element, lanes)

        def array(position: int) -> Any:
            kind = kinds[position]
            return (
                None if isinstance(kind, types.NoneType) else context.make_array(kind)(context, builder, args[position])
            )

        self.inner, self.halo, self.indices = array(2), array(3), array(4)
        self.values, self.source_scale, self.out = array(5), array(6), array(13)
        self.start, self.own, self.begin, self.end, self.column, self.factor = args[7:13]

    def emit(self) -> None:
        builder = self.builder
        stride = builder.extract_value(self.inner.strides, 0)
        offset = builder.mul(self.column, ir.Constant(_I64, self.item))
        inner_base = builder.add(builder.ptrtoint(self.inner.data, _I64), offset)
        rows = builder.extract_value(self.inner.shape, 0)
        halo_base = builder.add(builder.ptrtoint(self.halo.data, _I64), offset)
        halo_base = builder.sub(halo_base, builder.mul(rows, stride))
        zero = ir.Constant(self.vector, [0.0] * self.lanes)

        # the row's own term, where there is one, is what the sums start from
        entry = builder.block
        with_own = builder.append_basic_block("own")
        head = builder.append_basic_block("edges")
        body = builder.append_basic_block("edge")
        done = builder.append_basic_block("done")
        builder.cbranch(builder.fcmp_unordered("!=", self.start, ir.Constant(self.element, 0.0)), with_own, head)
        builder.position_at_end(with_own)
        address = builder.add(inner_base, builder.mul(self.own, stride))
        weight = self._splat(self.start)
        first = [builder.fmul(row, weight) for row in self._load(address)]
        builder.branch(head)

        builder.position_at_end(head)
        edge = builder.phi(_I64)
        edge.add_incoming(self.begin, entry)
        edge.add_incoming(self.begin, with_own)
        sums = [builder.phi(self.vector) for _ in range(self.count)]
        for total, own in zip(sums, first, strict=True):
            total.add_incoming(zero, entry)
            total.add_incoming(own, with_own)
        builder.cbranch(builder.icmp_signed("<", edge, self.end), body, done)

        builder.position_at_end(body)
        source = builder.load(builder.gep(self.indices.data, [edge]))
        if source.type.width < 64:
            source = builder.sext(source, _I64)
        base = builder.select(builder.icmp_signed("<", source, rows), inner_base, halo_base)
        loaded = self._load(builder.add(base, builder.mul(source, stride)))
        factor = self._weight(edge, source)
        if factor is not None:
            splat = self._splat(factor)
            loaded = [builder.fmul(row, splat, flags=("contract",)) for row in loaded]
        added = [builder.fadd(total, row, flags=("contract",)) for total, row in zip(sums, loaded, strict=True)]
        edge.add_incoming(builder.add(edge, ir.Constant(_I64, 1)), body)
        for total, new in zip(sums, added, strict=True):
            total.add_incoming(new, body)
        builder.branch(head)

        builder.position_at_end(done)
        target = builder.add(builder.ptrtoint(self.out.data, _I64), offset)
        target = builder.add(target, builder.mul(self.own, builder.extract_value(self.out.strides, 0)))
        splat = self._splat(self.factor)
        for number, total in enumerate(sums):
            store = builder.store(builder.fmul(total, splat), self._pointer(target, number))
            store.align = self.item

    def _weight(self, edge: Any, source: Any) -> Any:
        """The weight of an edge, or None where all weights are one."""
        builder = self.builder
        weight = None if self.values is None else builder.load(builder.gep(self.values.data, [edge]))
        if self.source_scale is None:
            return weight
        scale = builder.load(builder.gep(self.source_scale.data, [source]))
        return scale if weight is None else builder.fmul(weight, scale)

    def _pointer(self, address: Any, number: int) -> Any:
        moved = self.builder.add(address, ir.Constant(_I64, number * self.lanes * self.item))
        return self.builder.inttoptr(moved, self.vector.as_pointer())

    def _load(self, address: Any) -> list[Any]:
        rows = [self.builder.load(self._pointer(address, number)) for number in range(self.count)]
        for row in rows:
            row.align = self.item
        return rows

    def _splat(self, value: Any) -> Any:
        undefined = ir.Constant(self.vector, ir.Undefined)
        first = self.builder.insert_element(undefined, value, ir.Constant(_I32, 0))
        return self.builder.shuffle_vector(
            first, undefined, ir.Constant(ir.VectorType(_I32, self.lanes), [0] * self.lanes)
        )


@intrinsic
def products(typingctx, one, i, other, j, column, width):  # type: ignore[no-untyped-def]
    """Sum over ``width`` columns c from ``column`` of one[i, c] * other[j, c]: both [n, F], C-contiguous, of one dtype.

    It uses full vector registers, then halves, quarters, ... for the remaining columns; the loop that Numba itself
    compiles adds one product at a time. The order of the sum depends on width and processor alone.
    """
    signature = one.dtype(one, types.intp, other, types.intp, types.intp, types.intp)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return _Products(context, builder, signature.args, args).emit()

    return signature, codegen


class _Products:
    def __init__(self, context: Any, builder: Any, kinds: Any, args: Any) -> None:
        self.builder = builder
        self.item = kinds[0].dtype.bitwidth // 8
        self.element = context.get_value_type(kinds[0].dtype)
        self.width = args[5]
        offset = builder.mul(args[4], ir.Constant(_I64, self.item))

        def base(position: int) -> Any:
            array = context.make_array(kinds[position])(context, builder, args[position])
            row = builder.mul(args[position + 1], builder.extract_value(array.strides, 0))
            return builder.add(builder.ptrtoint(array.data, _I64), builder.add(row, offset))

        self.rows = base(0), base(2)

    def emit(self) -> Any:
        done, total = ir.Constant(_I64, 0), ir.Constant(self.element, 0.0)
        lanes = VECTOR_BYTES // self.item
        while lanes:
            done, total = self._stretch(lanes, done, total)
            lanes //= 2
        return total

    def _stretch(self, lanes: int, done: Any, total: Any) -> tuple[Any, Any]:
        """Emit the loop over columns from ``done`` on, ``lanes`` at a time; return the columns done, and the total."""
        builder, size = self.builder, ir.Constant(_I64, lanes)
        vector = ir.VectorType(self.element, lanes)
        before = builder.block
        body, reduced, after = (builder.append_basic_block(name) for name in ("columns", "reduced", "after"))

        def more(column: Any) -> Any:
            return builder.icmp_signed("<=", builder.add(column, size), self.width)

        builder.cbranch(more(done), body, after)
        builder.position_at_end(body)
        column, sums = builder.phi(_I64), builder.phi(vector)
        column.add_incoming(done, before)
        sums.add_incoming(ir.Constant(vector, [0.0] * lanes), before)
        one, other = (self._load(row, column, vector) for row in self.rows)
        added = builder.fadd(sums, builder.fmul(one, other, flags=("contract",)), flags=("contract",))
        next_column = builder.add(column, size)
        column.add_incoming(next_column, body)
        sums.add_incoming(added, body)
        builder.cbranch(more(next_column), body, reduced)

        builder.position_at_end(reduced)
        larger = builder.fadd(total, self._total(added, lanes))
        builder.branch(after)

        builder.position_at_end(after)
        found = builder.phi(_I64), builder.phi(self.element)
        for value, old, new in zip(found, (done, total), (next_column, larger), strict=True):
            value.add_incoming(old, before)
            value.add_incoming(new, reduced)
        return found

    def _load(self, row: Any, column: Any, vector: Any) -> Any:
        address = self.builder.add(row, self.builder.mul(column, ir.Constant(_I64, self.item)))
        loaded = self.builder.load(self.builder.inttoptr(address, vector.as_pointer()))
        loaded.align = self.item
        return loaded

    def _total(self, sums: Any, lanes: int) -> Any:
        """Emit the sum of a register's lanes: add its upper to its lower half until one lane is left."""
        builder = self.builder
        while lanes > 1:
            lanes //= 2
            halves = []
            for first in (0, lanes):
                mask = ir.Constant(ir.VectorType(_I32, lanes), list(range(first, first + lanes)))
                halves.append(builder.shuffle_vector(sums, ir.Constant(sums.type, ir.Undefined), mask))
            sums = builder.fadd(*halves)
        return builder.extract_element(sums, ir.Constant(_I32, 0))
