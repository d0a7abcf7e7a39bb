"""Listens between the executor and ``torch.distributed``: tensors handed over, whatever the executor counts."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

import executor.rank.session
from executor.state.context import GroupHandle

Call = tuple[str, int, int]
"""Name of the function, the member of the group that it concerns (-1: all of them), and bytes of its tensor."""


@contextmanager
def tapped() -> Iterator[list[Call]]:
    """Calls on groups that the program asked for, in order; the driver's own messages use the default group, or come
    before training, to wake the threads of groups."""
    calls: list[Call] = []
    wake = executor.rank.session.wake_groups
    originals = {name: getattr(dist, name) for name in ("isend", "irecv", "all_reduce", "broadcast", "all_gather")}

    def note(name: str) -> Callable[..., Any]:
        def tap(tensor: torch.Tensor, *arguments: Any, **options: Any) -> Any:
            if options.get("group") not in (None, dist.group.WORLD):
                peer = options.get("group_dst", options.get("group_src", options.get("src", -1)))
                handed = arguments[0] if name == "all_gather" else tensor
                calls.append((name, peer, handed.numel() * handed.element_size()))
            return originals[name](tensor, *arguments, **options)

        return tap

    def point(function: Callable[..., Any], tensor: torch.Tensor, peer: int, group: Any) -> Any:
        name = next(name for name in ("isend", "irecv") if function is getattr(dist, name))
        calls.append((name, peer, tensor.numel() * tensor.element_size()))
        return single(originals[name], tensor, peer, group)

    def wake_unheard(groups: Mapping[str, GroupHandle]) -> None:
        wake(groups)
        calls.clear()

    single = dist.P2POp
    for name in originals:
        setattr(dist, name, note(name))
    dist.P2POp = point  # type: ignore[assignment, misc]
    executor.rank.session.wake_groups = wake_unheard
    try:
        yield calls
    finally:
        executor.rank.session.wake_groups = wake
        dist.P2POp = single  # type: ignore[misc]
        for name, original in originals.items():
            setattr(dist, name, original)
