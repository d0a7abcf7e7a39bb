"""Probes of dense device work: matrix products as layers use them, elementwise passes, copies, gathers, optimizer."""

from collections.abc import Sequence

import torch
from torch.nn import functional

from executor.microbench.pool import Pool
from executor.microbench.timing import Probe, Run, Who
from executor.microbench.world import World

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

    return Probe("matmul", "forward", _sizes(rows=rows, inner=inner, outer=outer), make, who)


def _input_gradient(pool: Pool, rows: int, inner: int, outer: int, who: Who) -> Probe:
    def make(world: World) -> Run:
        gradient, weight = pool.matrix(rows, outer), pool.matrix(inner, outer)
        return lambda: torch.mm(gradient, weight.t())

    return Probe("matmul", "input-gradient", _sizes(rows=rows, inner=outer, outer=inner), make, who)


def _weight_gradient(pool: Pool, rows: int, inner: int, outer: int, who: Who) -> Probe:
    def make(world: World) -> Run:
        x, gradient = pool.matrix(rows, inner), pool.matrix(rows, outer)
        return lambda: torch.mm(x.t(), gradient)

    return Probe("matmul", "weight-gradient", _sizes(rows=inner, inner=rows, outer=outer), make, who)


def elementwise_probes(pool: Pool, shapes: Sequence[tuple[int, int]], who: Who = "all") -> list[Probe]:
    """For each (rows, width): ReLU (2 passes), a sum of two arrays (3), bias and ReLU (4), ReLU's backward (3)."""
    probes = []
    for rows, width in shapes:

        def relu(world: World, rows: int = rows, width: int = width) -> Run:
            x = pool.matrix(rows, width)
            return lambda: torch.relu(x)

        def add(world: World, rows: int = rows, width: int = width) -> Run:
            x, y = pool.matrix(rows, width), pool.matrix(rows, width)
            return lambda: torch.add(x, y)

        def bias_relu(world: World, rows: int = rows, width: int = width) -> Run:
            x, bias = pool.matrix(rows, width), pool.matrix(1, width)
            return lambda: torch.relu_(torch.add(x, bias))

        def relu_backward(world: World, rows: int = rows, width: int = width) -> Run:
            x, gradient = pool.matrix(rows, width), pool.matrix(rows, width)
            return lambda: torch.ops.aten.threshold_backward(gradient, x, 0.0)

        for form, passes, make in (
            ("relu", 2, relu),
            ("add", 3, add),
            ("bias-relu", 4, bias_relu),
            ("relu-backward", 3, relu_backward),
        ):
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
                return lambda: table.index_select(0, index)
            target, update = torch.zeros(sources, width, device=world.device), pool.matrix(rows, width)
            return lambda: target.index_add_(0, index, update)

        return Probe(form, form, _sizes(rows=rows, width=width), make, who)

    return [build(*shape, form) for shape in shapes for form in ("gather", "scatter_add")]


def loss_probes(pool: Pool, shapes: Sequence[tuple[int, int]], who: Who = "all") -> list[Probe]:
    """For each (rows, classes): cross entropy with softmax, forward and backward."""

    def build(rows: int, classes: int) -> Probe:
        def make(world: World) -> Run:
            logits = pool.matrix(rows, classes).detach().requires_grad_()
            labels = (torch.arange(rows) % classes).to(world.device)

            def run() -> None:
                functional.cross_entropy(logits, labels, reduction="sum").backward()
                logits.grad = None

            return run

        return Probe("loss", "cross-entropy", {"elements": rows * classes, "rows": rows}, make, who)

    return [build(*shape) for shape in shapes]


def optimizer_probes(widths: Sequence[int], who: Who = "all") -> list[Probe]:
    """Adam over one weight matrix [width, width] and one bias."""

    def build(width: int) -> Probe:
        def make(world: World) -> Run:
            parameters = [torch.zeros(width, width, device=world.device), torch.zeros(width, device=world.device)]
            for parameter in parameters:
                parameter.requires_grad_()
                parameter.grad = torch.ones_like(parameter)
            optimizer = torch.optim.Adam(parameters, lr=1e-3)
            optimizer.step()  # the first step allocates its state
            return lambda: optimizer.step()

        return Probe("optimizer", "adam", {"elements": width * width + width}, make, who)

    return [build(width) for width in widths]
