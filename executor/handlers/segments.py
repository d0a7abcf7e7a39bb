"""Runs the parts of layers (segments): a forward op stores what its backward op needs to compute gradients."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from executor.layers.tape import Tape
from executor.state.buffers import Now
from executor.state.context import Handler, RankContext, Reversible
from simgnn.errors import BackendError
from simgnn.policy import PolicyError
from simgnn.program.ops import Op
from simgnn.program.program import Template


def segment(op: Op, template: Template, context: RankContext) -> Handler:
    """Run a part of a layer forward on the rows that the op reads; or run the part of another op backward.

    Built-in layers run on a :class:`~executor.layers.tape.Tape` and a user's layer under autograd, each op separately.
    If no backward op belongs to this one (as in an evaluation), nothing is stored.
    """
    if op.reverses is not None:
        return _backward(op, template, context)
    if op.segment is None or context.network is None:
        raise BackendError(f"op '{op.name}' ({op.kind}) names no segment of a layer, or this run has no model")
    own = not context.network.on_tape(op.layer)
    function = context.network.segment(op.layer, op.segment, kept="edges" in op.options)
    function = _guarded(function, op) if own else function
    getters, setters = context.reads(op), context.writes(op)
    check = _shape_check(op, context, own)
    names = [access.buffer for access in context.handed_over(op.inputs)]
    reverse = next((other for other in template.ops if other.reverses == op.name), None)
    gradients = {} if reverse is None else {a.buffer: reverse.gradients.get(a.buffer) for a in reverse.writes}
    wanted = [name in gradients.values() for name in names]
    kept = None if reverse is None else context.segment_of(template, op.name)
    remember = _under_autograd if own else run_on_tape

    def forward(now: Now) -> None:
        inputs = [get(now) for get in getters]
        if kept is None:
            outputs = _listed(function(*inputs))
        else:
            outputs, reversible = remember(function, inputs, wanted)
            kept[now.count] = reversible
        check(outputs, now)
        for put, output in zip(setters, outputs, strict=True):
            put(now, output)

    return forward


Outputs = tuple[torch.Tensor, ...]


def run_on_tape(
    function: Callable[..., Any], inputs: list[torch.Tensor], wanted: list[bool]
) -> tuple[Outputs, Reversible]:
    """Run a part of a built-in layer; return outputs, and a tape that computes gradients of the ``wanted`` inputs."""
    tape = Tape([rows for rows, want in zip(inputs, wanted, strict=True) if want])
    outputs = _listed(function(*inputs, call=tape))
    tape.end(outputs)
    return outputs, tape


def _under_autograd(
    function: Callable[..., Any], inputs: list[torch.Tensor], wanted: list[bool]
) -> tuple[Outputs, Reversible]:
    leaves = [rows.detach().requires_grad_() if want else rows for rows, want in zip(inputs, wanted, strict=True)]
    with torch.enable_grad():
        outputs = _listed(function(*leaves))
    learning = [leaf for leaf, want in zip(leaves, wanted, strict=True) if want]
    return tuple(output.detach() for output in outputs), _Graph(learning, outputs)


COPY_FIRST = "use operations that make new rows (torch.relu(x), x * 2), or x = x.clone() first"


def _guarded(function: Callable[..., Any], op: Op) -> Callable[..., Any]:
    """Wrap a user's segment so that it raises an error if it changes its input rows, which other ops read again."""
    named = f"{op.segment} of layer {op.layer}"

    def run(*rows: torch.Tensor) -> Any:
        tensors = [one for one in rows if isinstance(one, torch.Tensor)]
        before = [one._version for one in tensors]
        try:
            found = function(*rows)
        except RuntimeError as error:
            if "in-place operation" not in str(error):
                raise
            raise PolicyError(f"{named} changes its input rows ({error}); {COPY_FIRST}") from error
        if [one._version for one in tensors] != before:
            raise PolicyError(f"{named} changes its input in place; {COPY_FIRST}")
        return found

    return run


@dataclass(frozen=True, slots=True)
class _Graph:
    """The autograd graph of one segment: its inputs are detached leaves, so that gradients end there."""

    leaves: list[torch.Tensor]
    outputs: Outputs

    def backward(self, gradients: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """Return gradients of the inputs, as :class:`executor.state.context.Reversible` describes."""
        pairs = [
            (output, gradient)
            for output, gradient in zip(self.outputs, gradients, strict=True)
            if gradient is not None and output.requires_grad
        ]
        if pairs:
            torch.autograd.backward([pair[0] for pair in pairs], [pair[1] for pair in pairs])
        return [leaf.grad for leaf in self.leaves]


def _backward(op: Op, template: Template, context: RankContext) -> Handler:
    """Run the backward pass of one forward op: read the gradients of its outputs, and write those of its inputs.
    Gradients of parameters are added to their ``.grad``."""
    position = template.index.get(op.reverses or "")
    if position is None:
        raise BackendError(f"op '{op.name}' reverses '{op.reverses}', which the template '{template.name}' lacks")
    source, store = template.ops[position], context.store
    kept = context.segment_of(template, source.name)
    outputs = [access.buffer for access in context.handed_over(source.writes)]
    incoming = {op.gradients[a.buffer]: store.getter(a) for a in op.reads if a.buffer in op.gradients}
    getters = [incoming.get(name) for name in outputs]
    outgoing = {op.gradients[a.buffer]: a for a in op.writes if a.buffer in op.gradients}
    learning = [outgoing[access.buffer] for access in source.reads if access.buffer in outgoing]
    setters = [(store.setter(access), access) for access in learning]

    def backward(now: Now) -> None:
        gradients = kept.pop(now.count).backward([None if get is None else get(now) for get in getters])
        for (put, access), gradient in zip(setters, gradients, strict=True):
            put(now, store.zeros(access, now) if gradient is None else gradient)

    return backward


def _shape_check(op: Op, context: RankContext, own: bool) -> Callable[[Sequence[torch.Tensor], Now], None]:
    """Check that a layer's output has the planned width and, in a user's ``own`` layer, the planned number of rows."""
    planned = [(access, context.program.buffers[access.buffer]) for access in context.handed_over(op.writes)]
    named = f"{op.segment} of layer {op.layer}"

    def check(outputs: Sequence[torch.Tensor], now: Now) -> None:
        for (access, buffer), output in zip(planned, outputs, strict=True):
            if own and len(output) != context.store.rows_of(access, now):
                raise PolicyError(
                    f"{named} gave {len(output)} rows, expected {context.store.rows_of(access, now)} for buffer "
                    f"'{buffer.name}': aggregate and update must give one row for each of the rank's own vertices, "
                    "prepare one for each row of its input"
                )
            if output.layout is torch.strided and output.shape[-1] != buffer.width:
                raise PolicyError(
                    f"{named} gave rows of width {output.shape[-1]}, expected {buffer.width} for buffer "
                    f"'{buffer.name}': if prepare returns another width than width_out, declare it in a static method "
                    "prepared_width(width_in, width_out)"
                )

    return check


def _listed(outputs: torch.Tensor | tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)
