"""Exceptions of simgnn: one class for each kind of input that can be wrong.

    SimgnnError
    ├── ConfigError      an experiment file or a command line
    │   └── ShortMemoryError  an experiment that does not fit into memory
    ├── GraphError       a graph, its features, labels or masks
    ├── HardwareError    a hardware profile, or a price that it does not hold
    ├── ProgramError     a program that is not valid
    └── BackendError     a simulation or a run that could not be carried out
        └── PolicyError  a policy that cannot go on

Every message states what was found, what was expected and what to do. The command line prints it without a traceback
and exits with status 2 (``BackendError``: 1, ``ShortMemoryError``: 3). Bugs of simgnn itself raise ``AssertionError``
instead.
"""

import sys
from collections.abc import Sequence
from typing import Self


class SimgnnError(Exception):
    """Base of all errors that a user can cause and fix. ``problems`` holds one line for each fault that was found."""

    exit_status = 2

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems: tuple[str, ...] = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__("\n".join(self.problems))


class ConfigError(SimgnnError):
    """Raised for a wrong experiment file or command line."""


class ShortMemoryError(ConfigError):
    """Raised for an experiment whose ranks do not fit into the memory of their devices, whatever else is chosen."""

    exit_status = 3


class GraphError(SimgnnError):
    """Raised for a graph, features, labels or masks that cannot be used."""


class HardwareError(SimgnnError):
    """Raised for a wrong hardware profile, or for a profile that lacks a needed number."""


class ProgramError(SimgnnError):
    """Raised for a program that breaks a rule for ops and buffers."""


class BackendError(SimgnnError):
    """Raised for a simulation or a run that could not be carried out."""

    exit_status = 1


class PolicyError(BackendError):
    """Raised where a policy cannot go on; the executor adds rank, epoch and op. Before the run the exit status is 2,
    and in it for rows that have no code."""

    @classmethod
    def returned(cls, policy: object, method: str, got: str, expected: str) -> Self:
        """The error of a method that returned ``got``; names class, method and file."""
        kind = type(policy)
        file = sys.modules[kind.__module__].__file__
        return cls(f"{kind.__module__}.{kind.__qualname__}.{method} returned {got}, expected {expected} ({file})")
