"""The seven slots and their choices. A policy joins by being a file in its slot's folder of ``simgnn.policies``."""

import importlib
import inspect
import pkgutil
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from pydantic import BaseModel

from simgnn.partition.kinds import PARTITION_KINDS
from simgnn.policy import Policy

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
"""Slot -> the choice that an experiment has when it names none: vanilla's."""

SLOTS: tuple[str, ...] = tuple(DEFAULT_KIND)

DESIGNED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "partition": (
            "random",
            "metis",
            "block-row",
            "ebv",
            "hdrf",
            "dbh",
            "random-edges",
            "rapa",
            "metis-chunks",
            "khop-blocks",
        ),
        "communication": ("halo", "master-mirror", "block-broadcast", "transition", "store"),
        "batching": ("full", "sampled", "seeded"),
        "freshness": (
            "always",
            "adaptive-vertex",
            "skip-broadcast",
            "refresh-interval",
            "one-epoch-stale",
            "boundary-sampling",
        ),
        "codec": ("none", "float32", "bfloat16", "linear", "stochastic"),
        "placement": ("device", "host-offload", "store"),
        "schedule": ("bsp", "pipelined", "prefetch", "task-graph"),
    }
)
"""Slot -> every kind that the design names, so that one which is not built yet is told from a misspelt one."""


@cache
def kinds(slot: str) -> Mapping[str, type[BaseModel]]:
    """The available choices of a slot: ``kind`` in TOML -> policy class."""
    if slot == "partition":
        return MappingProxyType(dict(PARTITION_KINDS))
    package = importlib.import_module(f"simgnn.policies.{slot}")
    found: dict[str, type[BaseModel]] = {}
    for module in pkgutil.iter_modules(package.__path__):
        loaded = importlib.import_module(f"{package.__name__}.{module.name}")
        for member in vars(loaded).values():
            if inspect.isclass(member) and issubclass(member, Policy) and member.__module__ == loaded.__name__:
                kind = member.model_fields.get("kind")
                if kind is not None:
                    found[str(kind.default)] = member
    order = {kind: place for place, kind in enumerate(DESIGNED[slot])}
    return MappingProxyType(dict(sorted(found.items(), key=lambda item: (order.get(item[0], len(order)), item[0]))))
