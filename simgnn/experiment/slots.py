"""The slots of an experiment, and what it has in each when it names nothing: vanilla's choices."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from simgnn import policy

DEFAULT_KIND: Mapping[str, str] = MappingProxyType(
    {
        "partition": "metis",
        "communication": "halo",
        "batching": "full",
        "freshness": "always",
        "codec": "none",
        "placement": "device",
        "schedule": "bsp",
    }
)

SLOTS: tuple[str, ...] = tuple(policy.SLOTS)


def kinds_in(table: Mapping[str, Any]) -> dict[str, Any]:
    """Slot -> the kind that an experiment's table names."""
    slots = {slot: table.get(slot) for slot in SLOTS}
    return {slot: found["kind"] for slot, found in slots.items() if isinstance(found, Mapping) and "kind" in found}
