"""What the links of a testbed do to others while messages fill them: measured inside it."""

import sys
import tempfile
from pathlib import Path

from executor.launch.launcher import INTERRUPTED
from executor.microbench.load_samples import load_of, read_load
from executor.testbed.declaration import Declaration
from executor.testbed.network import require_tools
from executor.testbed.runs import execute
from simgnn.errors import BackendError, ConfigError
from simgnn.hardware.profile.links import Load

LEAST_RATE = 1e6
"""Bytes per second: of a slower link, the messages that fill it would take minutes."""


def check_measurable(declared: Declaration) -> None:
    """:class:`ConfigError` where no load can be measured: a single host, a link too slow, no root."""
    if declared.link is None:
        raise ConfigError(
            "--measure-load: got a testbed of one host, which has no link, expected hosts = 2 or more; leave it out"
        )
    if declared.link < LEAST_RATE:
        raise ConfigError(
            f"--measure-load: got link = {declared.link * 8 / 1e6:g} Mbit/s, expected at least "
            f"{LEAST_RATE * 8 / 1e6:g} Mbit/s: messages of 1 MB fill it, again and again; leave it out"
        )
    require_tools()


def measure_load(declared: Declaration, bytes_per_s: float) -> Load:
    """The load of the link from the first host to the second, which passes so much payload; half a minute or more.

    The testbed is brought up for it if it is not up. Raises :class:`BackendError` where the ranks fail.
    """
    check_measurable(declared)
    with tempfile.TemporaryDirectory(prefix="simgnn-load-") as folder:
        out = Path(folder) / "load.json"
        status = execute(declared, [sys.executable, "-m", "executor.microbench.loaded", "--out", str(out)])
        if status == INTERRUPTED:
            raise KeyboardInterrupt
        if status:
            raise BackendError(
                f"--measure-load: the ranks ended with status {status}; what they said stands above. "
                "Without it the profile tells no load"
            )
        return load_of(read_load(out), bytes_per_s)
