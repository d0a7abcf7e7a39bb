"""Logs that a run writes beside its records if the user asks for them (``--log``)."""

import importlib.util
from collections.abc import Mapping

from simgnn.errors import ConfigError
from simgnn.spelling import nearest

LOGS: Mapping[str, str] = {"tensorboard": "tensorboardX"}
"""Kind of log -> the package that writes it, which the extra of the same name installs."""


def check_log(kind: str | None) -> None:
    """Raise :class:`ConfigError` unless the log ``kind`` is known and its package is installed; None: no log."""
    if kind is None:
        return
    if kind not in LOGS:
        raise ConfigError(f"--log: got '{kind}', expected one of {', '.join(LOGS)}{nearest(kind, tuple(LOGS))}")
    if importlib.util.find_spec(LOGS[kind]) is None:
        raise ConfigError(
            f"--log: got '{kind}', which needs the package {LOGS[kind]}; install it: pip install 'simgnn[{kind}]'"
        )
