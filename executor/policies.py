"""The experiment's policies as ops call them on a rank, by the names that programs use: "codec", "freshness"."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from executor.codecs import Codec, Place, codec_of
from executor.replicas import AdaptiveReplicas
from simgnn.policies.base import Policy
from simgnn.policies.freshness.adaptive_vertex import AdaptiveVertex
from simgnn.policies.freshness.skip_broadcast import SkipBroadcast

if TYPE_CHECKING:
    from executor.handlers.context import PolicyContext


class EncodedRows:
    """A codec on rows of which nobody keeps a copy."""

    def __init__(self, codec: Codec) -> None:
        self.codec = codec

    def warm_up(self, rows: torch.Tensor) -> None:
        """Run every kernel once on these rows."""
        self.codec.warm_up(rows)

    def encode(self, context: "PolicyContext", rows: torch.Tensor) -> torch.Tensor:
        """Rows as bytes."""
        return self.codec.encode(rows, Place(context, context.gathered))

    def decode(self, context: "PolicyContext", packed: torch.Tensor) -> torch.Tensor:
        """Bytes as rows of the buffer that the op writes."""
        return self.codec.decode(packed, context.width, context.dtype)


FRESHNESS: Mapping[type[Policy], Callable[[Any, Codec | None], Any]] = {
    AdaptiveVertex: AdaptiveReplicas,
    SkipBroadcast: lambda policy, codec: policy,  # its own decisions are all that it does
}
"""Freshness policy class -> what carries it out, with the codec of what it sends. Others need nothing at run time."""


def carried_out(policies: Mapping[str, Policy]) -> dict[str, Any]:
    """Policies by the name that ops have for them. ``policies``: slot -> policy."""
    found: dict[str, Any] = {}
    codec = codec_of(policies["codec"]) if getattr(policies.get("codec"), "encodes", False) else None
    if codec is not None:
        found["codec"] = EncodedRows(codec)
    freshness = policies.get("freshness")
    if type(freshness) in FRESHNESS:
        found["freshness"] = FRESHNESS[type(freshness)](freshness, codec)  # type: ignore[index]
    return found


def warm_up_policies(policies: Mapping[str, Policy], dtype: torch.dtype, device: torch.device) -> None:
    """Run every kernel of the policies once, on one element."""
    for found in carried_out(policies).values():
        if isinstance(found, EncodedRows | AdaptiveReplicas):
            found.warm_up(torch.ones(1, 1, dtype=dtype, device=device))
