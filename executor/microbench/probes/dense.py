"""Probes of work on dense rows: choosing, encoding and decoding as policies do, matrix products as layers use them,
elementwise passes, copies, gathers, loss, optimizer."""

from collections.abc import Iterator

import torch

from executor.kernels.epilogue import activation_backward, bias_activation
from executor.kernels.rows import add_rows, gather_rows
from executor.layers.affine import transposed_product
from executor.microbench.probes.bench import Bench, float32, measures, shapes
from executor.microbench.timing import Probe, Run
from executor.microbench.world import World
from executor.policies.accelerated import measured_cache, measured_codec
from executor.state.optimizer import FlatOptimizer
from executor.state.task import Task
from simgnn.hardware.primitives import (
    COPY,
    DECODE,
    ELEMENTWISE,
    ENCODE,
    GATHER,
    LOSS,
    MATMUL,
    OPTIMIZER,
    SCATTER_ADD,
    SELECT,
)
from simgnn.policy import PolicyContext

DTYPE = "float32"
HERE = PolicyContext(0, 0, 0, 0, "forward", 0, 1)


@measures(
    SELECT,
    full=shapes("16x16 1_000x64 4_000x256 17_000x40 17_000x256 60_000x64 60_000x256"),
    quick=shapes("16x16 1_000x64 4_000x128 2_000x16 10_000x64 40_000x64 20_000x256"),
)
def select_probes(bench: Bench, rows: int, width: int) -> Iterator[Probe]:
    """Yield the probe of choosing the rows that have changed since they were last sent."""

    def make(world: World) -> Run:
        policy, table = measured_cache(), bench.pool.matrix(rows, width)
        cached, state = bench.pool.matrix(rows, width).clone(), policy.init(HERE)
        return lambda: policy.moved(HERE, table, cached, state)

    yield Probe(SELECT.name, "moved", float32(rows=rows, width=width), make)


@measures(
    ENCODE,
    DECODE,
    full=shapes(
        "16x16x8 1_000x64x8 4_000x256x8 4_000x256x2 17_000x40x8 17_000x256x4 17_000x256x8 20_000x128x16 40_000x256x8"
    ),
    quick=shapes("16x16x8 1_000x64x8 4_000x128x2 8_000x64x8 8_000x256x8 10_000x128x16"),
)
def coding_probes(bench: Bench, rows: int, width: int, bits: int) -> Iterator[Probe]:
    """Yield probes of encoding dense rows in linear codes and of decoding them."""
    policy = measured_codec(bits)

    def decode(world: World) -> Run:
        packed = policy.pack(bench.pool.matrix(rows, width))
        return lambda: policy.decode(HERE, packed, width, DTYPE)

    sizes = float32(rows=rows, width=width, row_bytes=policy.row_bytes(width, DTYPE))
    yield Probe(ENCODE.name, f"{bits}-bit", sizes, bench.calling(policy.pack, (rows, width)))
    yield Probe(DECODE.name, f"{bits}-bit", sizes, decode)


@measures(
    MATMUL,
    full=shapes(
        "16x16x16 64x256x256 700x1433x16 2_000x64x64 5_000x500x32 8_000x256x7 17_000x256x40 17_000x256x256 "
        "35_000x128x128 60_000x100x47 85_000x128x256 85_000x256x40 85_000x256x256"
    ),
    quick=shapes("16x16x16 64x256x256 2_000x128x64 10_000x256x16 10_000x256x128 40_000x64x64"),
)
def matmul_probes(bench: Bench, rows: int, inner: int, outer: int) -> Iterator[Probe]:
    """Yield probes of the matrix products of a linear layer of that shape: forward, input and weight gradient."""

    def input_gradient(gradient: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.mm(gradient, weight.t())

    x, weight, gradient = (rows, inner), (inner, outer), (rows, outer)
    for form, function, given, (m, k, n), crossed in (
        ("forward", torch.mm, (x, weight), (rows, inner, outer), 0),
        ("input-gradient", input_gradient, (gradient, weight), (rows, outer, inner), 0),
        ("weight-gradient", transposed_product, (x, gradient), (inner, rows, outer), 1),
    ):
        sizes = float32(rows=m, inner=k, outer=n, crossed=crossed)
        yield Probe(MATMUL.name, form, sizes, bench.calling(function, *given))


@measures(
    ELEMENTWISE,
    full=shapes("16x16 1_000x16 2_500x256 17_000x40 17_000x256 60_000x10 50_000x128 85_000x256"),
    quick=shapes("16x16 10_000x16 2_500x128 10_000x128 20_000x256"),
)
def elementwise_probes(bench: Bench, rows: int, width: int) -> Iterator[Probe]:
    """The passes that layers make: bias and ReLU in place (2) and into a new array (2), the backward of both (3), and
    the sums of a bias' gradient alone (1)."""
    table, row = (rows, width), (width,)

    def in_place(world: World) -> Run:
        x, bias = bench.pool.matrix(*table).clone(), bench.pool.matrix(*row)
        return lambda: bias_activation(x, bias, "relu", out=x)

    fresh = bench.calling(lambda x, bias: bias_activation(x, bias, "relu"), table, row)
    reverse = bench.calling(activation_backward, table, table)
    sums = bench.calling(lambda gradient: activation_backward(gradient, None), table)
    forms = (("in-place", 2, in_place), ("fresh", 2, fresh), ("backward", 3, reverse), ("sums", 1, sums))
    for form, passes, make in forms:
        yield Probe(ELEMENTWISE.name, form, float32(rows=rows, width=width, passes=passes), make)


@measures(
    COPY,
    full=shapes("16x64 1_000x64 3_000x128 8_000x128 25_000x256 50_000x256 85_000x256"),
    quick=shapes("16x64 1_000x64 4_000x64 8_000x128 16_000x256 40_000x256"),
)
def copy_probes(bench: Bench, rows: int, width: int) -> Iterator[Probe]:
    """Copies of float32 [rows, width] into a new array."""
    yield Probe(COPY.name, "clone", float32(rows=rows, width=width), bench.calling(torch.clone, (rows, width)))


@measures(
    GATHER,
    SCATTER_ADD,
    full=shapes(
        "100x256x1_000 1_000x128x10_000 2_000x40x17_000 8_000x256x17_000 15_000x64x40_000 30_000x256x85_000 "
        "60_000x64x85_000"
    ),
    quick=shapes("100x64x1_000 1_000x40x5_000 2_000x256x10_000 5_000x128x10_000 10_000x256x20_000 20_000x64x40_000"),
)
def gather_probes(bench: Bench, rows: int, width: int, sources: int) -> Iterator[Probe]:
    """Yield probes of gathering ascending rows of ``sources`` into a new array, and of adding them back (scatter)."""

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
    full=shapes("100x7 1_000x40 2_000x10 10_000x5 10_000x47 20_000x16 45_000x40"),
    quick=shapes("100x8 1_000x16 2_000x4 3_000x40 10_000x16"),
)
def loss_probes(bench: Bench, rows: int, classes: int) -> Iterator[Probe]:
    """Yield the probe of the loss as training computes it, with gradient and metrics; all rows are training rows."""

    def make(world: World) -> Run:
        every = torch.arange(rows, device=world.device)
        none = every[:0]
        scores = bench.pool.matrix(rows, classes)
        task = Task(scores, every % classes, (every, none, none), rows, classes, multilabel=False)
        return lambda: task.loss(scores)

    yield Probe(LOSS.name, "cross-entropy", float32(rows=rows, width=classes), make)


@measures(
    OPTIMIZER,
    full=shapes("256 10_000 60_000 200_000 600_000 1_500_000 3_000_000"),
    quick=shapes("256 10_000 100_000 400_000 1_500_000"),
)
def optimizer_probes(bench: Bench, elements: int) -> Iterator[Probe]:
    """Yield the probe of an Adam step on one flat vector of parameters, as training does it."""

    def make(world: World) -> Run:
        layer = torch.nn.Linear(elements, 1, bias=False, device=world.device)
        settings = {"optimizer": "adam", "learning_rate": 1e-3, "weight_decay": 0.0}
        optimizer = FlatOptimizer([layer], settings)
        optimizer.step()  # the first step allocates its state
        return optimizer.step

    yield Probe(OPTIMIZER.name, "adam", float32(elements=elements), make)
