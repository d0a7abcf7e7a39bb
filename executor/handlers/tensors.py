"""Row-wise ops without a second rank: adding, scaling, clearing."""

from collections.abc import Callable

import torch

from executor.buffers import Now
from executor.handlers.context import Handler, RankContext
from executor.handlers.decisions import applied
from executor.handlers.dropout import dropout
from executor.handlers.segments import segment
from executor.kernels.rows import add_rows, max_rows
from simgnn.errors import BackendError
from simgnn.program.ops import Op
from simgnn.program.program import Template


def add(op: Op, template: Template, context: RankContext) -> Handler:
    """Add what the op reads first to what it writes, in place.

    With a route, the first are rows that arrived, peers ascending, and each is added to the local row that the route
    names; rows named several times take all their parts, in the order of the peers, so that sums are repeatable.
    ``options["function"] = "max"``: instead of sums the greater of each element is kept. ``options["rows"] = "first"``:
    what is read belongs to the first rows of what is written. Where the op names a policy, the face ``options["face"]``
    of that adds.
    """
    if op.module is not None:
        return applied(op, context)
    read, target = context.store.getter(op.reads[0]), context.store.getter(op.writes[0])
    if op.route is None:
        first = op.options.get("rows") == "first"

        def add_all(now: Now) -> None:
            part, total = read(now), target(now)
            (total[: len(part)] if first else total).add_(part)

        return add_all
    route = context.route(op)
    rows, counts = route.arriving, route.arriving_counts
    if rows is None:
        raise BackendError(f"op '{op.name}' adds along the route '{op.route}', which names no local rows")
    combine = max_rows if op.options.get("function") == "max" else add_rows
    return lambda now: _nothing(combine(target(now), rows, read(now), counts))


def _nothing(_: torch.Tensor) -> None:
    """Handlers that send nothing tell nothing."""


def elementwise(op: Op, template: Template, context: RankContext) -> Handler:
    """A module's segment where the op names one; else the function of ``options["function"]``, from reads to writes.

    Functions: "zero" (what is written becomes 0), "scale" (reads[0] times ``options["factor"]``), "relu", "sum"
    (of all that is read); "dropout" is :func:`executor.handlers.dropout.dropout`.
    """
    if op.options.get("function") == "dropout":
        return dropout(op, context)
    if op.module is not None or op.reverses is not None:
        return segment(op, template, context)
    name = str(op.options.get("function", ""))
    if name not in FUNCTIONS:
        raise BackendError(
            f"op '{op.name}' (elementwise) names the function '{name}'; expected one of: {', '.join(sorted(FUNCTIONS))}"
        )
    function, factor = FUNCTIONS[name], float(op.options.get("factor", 1.0))
    accesses = op.writes[:1] if name == "zero" else op.reads
    getters, put = [context.store.getter(access) for access in accesses], context.store.setter(op.writes[0])
    return lambda now: put(now, function([get(now) for get in getters], factor))


def _sum(values: list[torch.Tensor], _: float) -> torch.Tensor:
    total = values[0].clone()
    for value in values[1:]:
        total += value
    return total


FUNCTIONS: dict[str, Callable[[list[torch.Tensor], float], torch.Tensor]] = {
    "zero": lambda values, _: values[0].zero_(),
    "scale": lambda values, factor: values[0] * factor,
    "relu": lambda values, _: values[0].relu(),
    "sum": _sum,
}
