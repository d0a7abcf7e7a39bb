"""The policies that micro-benchmarks measure: their functions stand for the primitives select, encode and decode."""

from executor.policies.accelerated import accelerated
from simgnn.policies.codec.linear import Linear
from simgnn.policies.freshness.adaptive_vertex import AdaptiveVertex


def measured_cache() -> AdaptiveVertex:
    """A cache of rows, whose test of which rows moved is the primitive select."""
    return accelerated(AdaptiveVertex())


def measured_codec(bits: int) -> Linear:
    """A codec of so many bits, whose two ways are the primitives encode and decode."""
    return accelerated(Linear.model_validate({"bits": bits}))
