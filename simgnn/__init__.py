"""simgnn: predict and run distributed training of graph neural networks, from a notebook or the command line.

The functions below are loaded when they are first used, so that importing simgnn takes no time; their types are in
``__init__.pyi``.
"""

from importlib import import_module
from types import MappingProxyType
from typing import Any

__version__ = "0.1.0"

MODULES = MappingProxyType(
    {
        "calibrate": "simgnn.api.calibrate",
        "compare": "simgnn.api.compare",
        "explain": "simgnn.api.reports.explain",
        "list_hardware": "simgnn.api.listings",
        "list_systems": "simgnn.api.listings",
        "load_experiment": "simgnn.api.experiments",
        "make_partition": "simgnn.api.partition",
        "run": "simgnn.api.train",
        "simulate": "simgnn.api.simulate",
        "write_report": "simgnn.api.reports.write_report",
    }
)
"""Module of each function that simgnn offers."""

__all__ = ["__version__", *MODULES]


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module 'simgnn' has no attribute '{name}'; it offers {', '.join(MODULES)}")
    return getattr(import_module(MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
