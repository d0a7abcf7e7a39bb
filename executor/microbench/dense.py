"""Probes of dense device work: matrix products as layers use them, elementwise passes, copies, gathers, optimizer."""

from collections.abc import Sequence

import torch

from executor.kernels.epilogue import activation_backward, bias_activation
from executor.kernels.rows import add_rows, gather_rows
from executor.layers.affine import transposed_product
from executor.microbench.pool import Pool
from executor.microbench.timing import Probe, Run, Who
from executor.microbench.world import World
from executor.optimizer import FlatOptimizer
from executor.task import Task

Shape = tuple[int, int, int]
ITEM_BYTES = 4


def _sizes(**sizes: int) -> dict[str, int]:
    """Sizes as programs state them for float32 arrays."""
    return {**sizes, "item_bytes": ITEM_BYTES}


def matmul_probes(pool: Pool, shapes: Sequence[Shape], who: Who = "all") -> list[Probe]:
    """For each layer shape (rows, inner, outer): forward, input gradient and weight gradient, as autograd runs them."""
    return [
        probe
        for rows, inner, outer in shapes
        for probe in (
            _forward(pool, rows, inner, outer, who),
            _input_gradient(pool, rows, inner, outer, who),
            _weight_gradient(pool, rows, inner, outer, who),
        )
    ]


def _forward(pool: Pool, rows: int, inner: int, outer: int, who: Who) -> Probe:
    def make(world: World) -> Run:
        x, weight = pool.matrix(rows, inner), pool.matrix(inner, outer)
        return lambda: torch.mm(x, weight)

    return Probe("matmul", "forward", _sizes(rows=rows, inner=inner, outer=outer, crossed=0), make, who)


def _input_gradient(pool: Pool, rows: int, inner: int, outer: int, who: Who) -> Probe:
    def make(world: World) -> Run:
        gradient, weight = pool.matrix(rows, outer), pool.matrix(inner, outer)
        return lambda: torch.mm(gradient, weight.t())

    return Probe("matmul", "input-gradient", _sizes(rows=rows, inner=outer, outer=inner, crossed=0), make, who)


def _weight_gradient(pool: Pool, rows: int, inner: int, outer: int, who: Who) -> Probe:
    def make(world: World) -> Run:
        x, gradient = pool.matrix(rows, inner), pool.matrix(rows, outer)
        return lambda: transposed_product(x, gradient)

    return Probe("matmul", "weight-gradient", _sizes(rows=inner, inner=rows, outer=outer, crossed=1), make, who)


def elementwise_probes(pool: Pool, shapes: Sequence[tuple[int, int]], who: Who = "all") -> list[Probe]:
    """For each (rows, width) the passes that layers make: bias and ReLU in place (2) and into a new array (2), the
    backward of both (3), and the sums of a bias' gradient alone (1)."""
    probes = []
    for rows, width in shapes:

        def in_place(world: World, rows: int = rows, width: int = width) -> Run:
            x, bias = pool.matrix(rows, width).clone(), pool.matrix(1, width)[0]
            return lambda: bias_activation(x, bias, "relu", out=x)

        def fresh(world: World, rows: int = rows, width: int = width) -> Run:
            x, bias = pool.matrix(rows, width), pool.matrix(1, width)[0]
            return lambda: bias_activation(x, bias, "relu")

        def reverse(world: World, rows: int = rows, width: int = width) -> Run:
            gradient, output = pool.matrix(rows, width), pool.matrix(rows, width)
            return lambda: activation_backward(gradient, output)

        def sums(world: World, rows: int = rows, width: int = width) -> Run:
            gradient = pool.matrix(rows, width)
            return lambda: activation_backward(gradient, None)

        forms = (("in-place", 2, in_place), ("fresh", 2, fresh), ("backward", 3, reverse), ("sums", 1, sums))
        for form, passes, make in forms:
            probes.append(Probe("elementwise", form, _sizes(rows=rows, width=width, passes=passes), make, who))
    return probes


def copy_probes(pool: Pool, shapes: Sequence[tuple[int, int]], who: Who = "all") -> list[Probe]:
    """Copies of float32 [rows, width] into a new array."""

    def build(rows: int, width: int) -> Probe:
        def make(world: World) -> Run:
            x = pool.matrix(rows, width)
            return lambda: x.clone()

        return Probe("copy", "clone", _sizes(rows=rows, width=width), make, who)

    return [build(*shape) for shape in shapes]


def gather_probes(pool: Pool, shapes: Sequence[Shape], who: Who = "all") -> list[Probe]:
    """For each (rows, width, sources): picking ascending rows into a new array, and adding them back (scatter)."""

    def build(rows: int, width: int, sources: int, form: str) -> Probe:
        def make(world: World) -> Run:
            index = torch.randperm(sources, generator=torch.Generator().manual_seed(rows))[:rows].sort().values
            index = index.to(world.device)
            if form == "gather":
                table = pool.matrix(sources, width)
                return lambda: gather_rows(table, index)
            target, update = torch.zeros(sources, width, device=world.device), pool.matrix(rows, width)
            return lambda: add_rows(target, index, update, [rows])

        return Probe(form, form, _sizes(rows=rows, width=width), make, who)

    return [build(*shape, form) for shape in shapes for form in ("gather", "scatter_add")]


def loss_probes(pool: Pool, shapes: Sequence[tuple[int, int]], who: Who = "all") -> list[Probe]:
    """For each (rows, classes), all of them training rows: the loss as training takes it, with gradient and counts."""

    def build(rows: int, classes: int) -> Probe:
        def make(world: World) -> Run:
            every = torch.arange(rows, device=world.device)
            none = every[:0]
            scores = pool.matrix(rows, classes)
            task = Task(scores, every % classes, (every, none, none), rows, classes, multilabel=False)
            return lambda: task.loss(scores)

        return Probe("loss", "cross-entropy", _sizes(rows=rows, width=classes), make, who)

    return [build(*shape) for shape in shapes]


def optimizer_probes(sizes: Sequence[int], who: Who = "all") -> list[Probe]:
    """Adam over one flat vector of parameters, as training keeps them."""

    def build(elements: int) -> Probe:
        def make(world: World) -> Run:
            layer = torch.nn.Linear(elements, 1, bias=False, device=world.device)
            settings = {"optimizer": "adam", "learning_rate": 1e-3, "weight_decay": 0.0}
            optimizer = FlatOptimizer([layer], settings)
            optimizer.step()  # the first step allocates its state
            return optimizer.step

        return Probe("optimizer", "adam", _sizes(elements=elements), make, who)

    return [build(size) for size in sizes]
