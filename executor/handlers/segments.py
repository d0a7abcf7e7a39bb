"""Autograd segments: a forward op keeps its graph, the op that reverses it feeds the incoming gradient in."""

from collections.abc import Callable, Sequence

import torch

from executor.buffers import Now
from executor.handlers.context import Handler, Kept, RankContext
from simgnn.errors import BackendError
from simgnn.program.ops import Op
from simgnn.program.program import Template


def segment(op: Op, template: Template, context: RankContext) -> Handler:
    """Run a module's segment on what the op reads, forward, or backward where the op reverses another.

    Inputs that get a gradient enter as detached leaves; outputs leave detached, so that no graph reaches beyond its op.
    Without an op that reverses this one in the same template (an evaluation), no graph is built.
    """
    if op.reverses is not None:
        return _backward(op, template, context)
    if op.module is None or context.network is None:
        raise BackendError(f"op '{op.name}' ({op.kind}) names no module, or this run has no model")
    function = context.network.segment(op.module)
    getters, setters = context.reads(op), context.writes(op)
    check = _width_check(op, context)
    names = [access.buffer for access in op.reads if access.buffer not in context.left_out]
    reverse = next((other for other in template.ops if other.reverses == op.name), None)
    if reverse is None:

        def evaluate(now: Now) -> None:
            outputs = _listed(function(*[get(now) for get in getters]))
            check(outputs)
            for put, output in zip(setters, outputs, strict=True):
                put(now, output)

        return evaluate
    learned = {reverse.gradients[a.buffer] for a in reverse.writes if a.buffer in reverse.gradients}
    wanted = [name in learned for name in names]
    kept = context.segment_of(template, op.name)

    def forward(now: Now) -> None:
        leaves = [
            get(now).detach().requires_grad_() if want else get(now) for get, want in zip(getters, wanted, strict=True)
        ]
        with torch.enable_grad():
            outputs = _listed(function(*leaves))
        check(outputs)
        kept.put(now, leaves, outputs)
        for put, output in zip(setters, outputs, strict=True):
            put(now, output.detach())

    return forward


def _backward(op: Op, template: Template, context: RankContext) -> Handler:
    """Feed the gradients that the op reads into the kept graph; the leaves' gradients are what it writes.

    Parameters' gradients add up in their ``.grad``.
    """
    position = template.index.get(op.reverses or "")
    if position is None:
        raise BackendError(f"op '{op.name}' reverses '{op.reverses}', which the template '{template.name}' lacks")
    source = template.ops[position]
    kept: Kept = context.segment_of(template, source.name)
    inputs = [access.buffer for access in source.reads if access.buffer not in context.left_out]
    outputs = [access.buffer for access in source.writes if access.buffer not in context.left_out]
    incoming = {op.gradients[a.buffer]: context.store.getter(a) for a in op.reads if a.buffer in op.gradients}
    outgoing = [
        (inputs.index(op.gradients[a.buffer]), context.store.setter(a)) for a in op.writes if a.buffer in op.gradients
    ]
    chosen = [position for position, name in enumerate(outputs) if name in incoming]
    getters = [incoming[outputs[position]] for position in chosen]

    def backward(now: Now) -> None:
        leaves, found = kept.take(now)
        pairs = [(found[k], get(now)) for k, get in zip(chosen, getters, strict=True) if found[k].requires_grad]
        if pairs:
            torch.autograd.backward([pair[0] for pair in pairs], [pair[1] for pair in pairs])
        for position, put in outgoing:
            gradient = leaves[position].grad
            put(now, torch.zeros_like(leaves[position]) if gradient is None else gradient)

    return backward


def _width_check(op: Op, context: RankContext) -> Callable[[Sequence[torch.Tensor]], None]:
    """Refuse rows of another width than the program planned, priced and sends."""
    planned = [context.program.buffers[access.buffer] for access in op.writes]

    def check(outputs: Sequence[torch.Tensor]) -> None:
        for buffer, output in zip(planned, outputs, strict=True):
            if output.layout is torch.strided and output.shape[-1] != buffer.width:
                raise BackendError(
                    f"op '{op.name}' ({op.module}) gave rows of width {output.shape[-1]}, the program planned "
                    f"{buffer.width} for buffer '{buffer.name}': a layer whose prepare does not give width_out "
                    "declares it in a static method prepared_width(width_in, width_out)"
                )

    return check


def _listed(outputs: torch.Tensor | tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)
