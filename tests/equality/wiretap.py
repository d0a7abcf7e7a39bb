"""Listens between the executor and ``torch.distributed``: tensors handed over, whatever the executor counts."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

Call = tuple[str, list[int]]
"""Name of the function, and bytes: of an all-to-all by member (its own among them), else those of the one tensor."""


@contextmanager
def tapped() -> Iterator[list[Call]]:
    """Calls on groups that the program asked for, in order; the driver's own messages use the default group."""
    calls: list[Call] = []
    originals = {name: getattr(dist, name) for name in ("all_to_all_single", "all_reduce")}

    def all_to_all_single(
        output: torch.Tensor, inputs: torch.Tensor, receive: Sequence[int], send: Sequence[int], **options: Any
    ) -> Any:
        assert sum(send) == len(inputs)
        assert sum(receive) == len(output)
        _note("all_to_all_single", [_bytes(part) for part in torch.split(inputs, list(send))], options)
        return originals["all_to_all_single"](output, inputs, receive, send, **options)

    def all_reduce(tensor: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        _note("all_reduce", [_bytes(tensor)], options)
        return originals["all_reduce"](tensor, *arguments, **options)

    def _note(name: str, nbytes: list[int], options: dict[str, Any]) -> None:
        if options["group"] is not dist.group.WORLD:
            calls.append((name, nbytes))

    taps: dict[str, Callable[..., Any]] = {"all_to_all_single": all_to_all_single, "all_reduce": all_reduce}
    for name, tap in taps.items():
        setattr(dist, name, tap)
    try:
        yield calls
    finally:
        for name, original in originals.items():
            setattr(dist, name, original)


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
