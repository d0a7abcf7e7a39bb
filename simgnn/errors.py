"""The exception tree.

    SimgnnError
    ├── ConfigError      an experiment file or a command line
    ├── GraphError       a graph, its features, labels or masks
    ├── HardwareError    a hardware profile, or a price that it does not hold
    ├── ProgramError     a program that is not valid
    └── BackendError     a simulation or a run that could not be carried out

Every message says what was got, what was expected and what to do. The command line prints it without a traceback and
exits with status 2 (``BackendError``: 1). An ``assert`` is for a bug of simgnn itself.
"""

from collections.abc import Sequence


class SimgnnError(Exception):
    """An error that a user can cause and fix. ``problems`` holds every fault that was found, one line each."""

    exit_status = 2

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems: tuple[str, ...] = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__("\n".join(self.problems))


class ConfigError(SimgnnError):
    """An experiment file or a command line is wrong."""


class GraphError(SimgnnError):
    """A graph, its features, labels or masks cannot be used."""


class HardwareError(SimgnnError):
    """A hardware profile is wrong, or lacks a number that the question needs."""


class ProgramError(SimgnnError):
    """A program breaks a rule for its ops and buffers."""


class BackendError(SimgnnError):
    """A simulation or a run could not be carried out."""

    exit_status = 1
