"""Probes of dense device work: matrix products as layers use them, elementwise passes, copies, gathers, optimizer."""

from collections.abc import Iterator

import torch

from executor.kernels.epilogue import activation_backward, bias_activation
from executor.kernels.rows import add_rows, gather_rows
from executor.layers.affine import transposed_product
from executor.microbench.probes.bench import Bench, float32, measures
from executor.microbench.timing import Probe, Run
from executor.microbench.world import World
from executor.state.optimizer import FlatOptimizer
from executor.state.task import Task
from simgnn.hardware.primitives import COPY, ELEMENTWISE, GATHER, LOSS, MATMUL, OPTIMIZER, SCATTER_ADD


@measures(
    MATMUL,
    full=(
        (16, 16, 16),
        (64, 256, 256),
        (700, 1433, 16),
        (2_000, 64, 64),
        (5_000, 500, 32),
        (8_000, 256, 7),
        (17_000, 256, 40),
        (17_000, 256, 256),
        (35_000, 128, 128),
        (60_000, 100, 47),
        (85_000, 128, 256),
        (85_000, 256, 40),
        (85_000, 256, 256),
    ),
    quick=((16, 16, 16), (64, 256, 256), (2_000, 128, 64), (10_000, 256, 16), (10_000, 256, 128), (40_000, 64, 64)),
)
def matmul_probes(bench: Bench, rows: int, inner: int, outer: int) -> Iterator[Probe]:
    """Of a layer of that shape: forward, input gradient and weight gradient, as autograd runs them."""
    matrix = bench.pool.matrix

    def forward(world: World) -> Run:
        x, weight = matrix(rows, inner), matrix(inner, outer)
        return lambda: torch.mm(x, weight)

    def input_gradient(world: World) -> Run:
        gradient, weight = matrix(rows, outer), matrix(inner, outer)
        return lambda: torch.mm(gradient, weight.t())

    def weight_gradient(world: World) -> Run:
        x, gradient = matrix(rows, inner), matrix(rows, outer)
        return lambda: transposed_product(x, gradient)

    for form, make, sizes in (
        ("forward", forward, float32(rows=rows, inner=inner, outer=outer, crossed=0)),
        ("input-gradient", input_gradient, float32(rows=rows, inner=outer, outer=inner, crossed=0)),
        ("weight-gradient", weight_gradient, float32(rows=inner, inner=rows, outer=outer, crossed=1)),
    ):
        yield Probe(MATMUL.name, form, sizes, make)


@measures(
    ELEMENTWISE,
    full=(
        (16, 16),
        (1_000, 16),
        (2_500, 256),
        (17_000, 40),
        (17_000, 256),
        (60_000, 10),
        (50_000, 128),
        (85_000, 256),
    ),
    quick=((16, 16), (10_000, 16), (2_500, 128), (10_000, 128), (20_000, 256)),
)
def elementwise_probes(bench: Bench, rows: int, width: int) -> Iterator[Probe]:
    """The passes that layers make: bias and ReLU in place (2) and into a new array (2), the backward of both (3), and
    the sums of a bias' gradient alone (1)."""
    matrix = bench.pool.matrix

    def in_place(world: World) -> Run:
        x, bias = matrix(rows, width).clone(), matrix(1, width)[0]
        return lambda: bias_activation(x, bias, "relu", out=x)

    def fresh(world: World) -> Run:
        x, bias = matrix(rows, width), matrix(1, width)[0]
        return lambda: bias_activation(x, bias, "relu")

    def reverse(world: World) -> Run:
        gradient, output = matrix(rows, width), matrix(rows, width)
        return lambda: activation_backward(gradient, output)

    def sums(world: World) -> Run:
        gradient = matrix(rows, width)
        return lambda: activation_backward(gradient, None)

    for form, passes, make in (
        ("in-place", 2, in_place),
        ("fresh", 2, fresh),
        ("backward", 3, reverse),
        ("sums", 1, sums),
    ):
        yield Probe(ELEMENTWISE.name, form, float32(rows=rows, width=width, passes=passes), make)


@measures(
    COPY,
    full=((16, 64), (1_000, 64), (3_000, 128), (8_000, 128), (25_000, 256), (50_000, 256), (85_000, 256)),
    quick=((16, 64), (1_000, 64), (4_000, 64), (8_000, 128), (16_000, 256), (40_000, 256)),
)
def copy_probes(bench: Bench, rows: int, width: int) -> Iterator[Probe]:
    """Copies of float32 [rows, width] into a new array."""

    def make(world: World) -> Run:
        x = bench.pool.matrix(rows, width)
        return lambda: x.clone()

    yield Probe(COPY.name, "clone", float32(rows=rows, width=width), make)


@measures(
    GATHER,
    SCATTER_ADD,
    full=(
        (100, 256, 1_000),
        (1_000, 128, 10_000),
        (2_000, 40, 17_000),
        (8_000, 256, 17_000),
        (15_000, 64, 40_000),
        (30_000, 256, 85_000),
        (60_000, 64, 85_000),
    ),
    quick=(
        (100, 64, 1_000),
        (1_000, 40, 5_000),
        (2_000, 256, 10_000),
        (5_000, 128, 10_000),
        (10_000, 256, 20_000),
        (20_000, 64, 40_000),
    ),
)
def gather_probes(bench: Bench, rows: int, width: int, sources: int) -> Iterator[Probe]:
    """Picking ascending rows of ``sources`` into a new array, and adding them back (scatter)."""

    def index(world: World) -> torch.Tensor:
        drawn = torch.randperm(sources, generator=torch.Generator().manual_seed(rows))[:rows]
        return drawn.sort().values.to(world.device)

    def gather(world: World) -> Run:
        picked, table = index(world), bench.pool.matrix(sources, width)
        return lambda: gather_rows(table, picked)

    def scatter(world: World) -> Run:
        picked, target = index(world), torch.zeros(sources, width, device=world.device)
        update = bench.pool.matrix(rows, width)
        return lambda: add_rows(target, picked, update, [rows])

    for primitive, make in ((GATHER, gather), (SCATTER_ADD, scatter)):
        yield Probe(primitive.name, primitive.name, float32(rows=rows, width=width), make)


@measures(
    LOSS,
    full=((100, 7), (1_000, 40), (2_000, 10), (10_000, 5), (10_000, 47), (20_000, 16), (45_000, 40)),
    quick=((100, 8), (1_000, 16), (2_000, 4), (3_000, 40), (10_000, 16)),
)
def loss_probes(bench: Bench, rows: int, classes: int) -> Iterator[Probe]:
    """The loss as training takes it, with gradient and counts, where all rows are training rows."""

    def make(world: World) -> Run:
        every = torch.arange(rows, device=world.device)
        none = every[:0]
        scores = bench.pool.matrix(rows, classes)
        task = Task(scores, every % classes, (every, none, none), rows, classes, multilabel=False)
        return lambda: task.loss(scores)

    yield Probe(LOSS.name, "cross-entropy", float32(rows=rows, width=classes), make)


@measures(
    OPTIMIZER,
    full=[(256,), (10_000,), (60_000,), (200_000,), (600_000,), (1_500_000,), (3_000_000,)],
    quick=[(256,), (10_000,), (100_000,), (400_000,), (1_500_000,)],
)
def optimizer_probes(bench: Bench, elements: int) -> Iterator[Probe]:
    """Adam over one flat vector of parameters, as training keeps them."""

    def make(world: World) -> Run:
        layer = torch.nn.Linear(elements, 1, bias=False, device=world.device)
        settings = {"optimizer": "adam", "learning_rate": 1e-3, "weight_decay": 0.0}
        optimizer = FlatOptimizer([layer], settings)
        optimizer.step()  # the first step allocates its state
        return optimizer.step

    yield Probe(OPTIMIZER.name, "adam", float32(elements=elements), make)
