"""The experiment's policies as ops call them on a rank, by slot."""

from collections.abc import Mapping
from typing import Any

from executor.policies.accelerated import accelerated
from executor.replicas import AdaptiveReplicas
from simgnn.policies.freshness.adaptive_vertex import AdaptiveVertex
from simgnn.policy import Policy


def carried_out(policies: Mapping[str, Policy]) -> dict[str, Any]:
    """Policies by the name that ops have for them. ``policies``: slot -> policy."""
    found: dict[str, Any] = {slot: accelerated(policy) for slot, policy in policies.items()}
    freshness = policies.get("freshness")
    if isinstance(freshness, AdaptiveVertex):
        found["freshness"] = AdaptiveReplicas(freshness, found["codec"] if found["codec"].encodes else None)
    return found
