"""A process that ends when the one that started it does, however that one ends.

Its standard input is a pipe that nobody writes to: the kernel closes the other end when the starter dies, also by
SIGKILL. Unlike Linux's signal of a dead parent this does not depend on which thread of the starter forked.
"""

import os
import signal
import threading
from collections.abc import Mapping

LIFELINE = "SIMGNN_LIFELINE"
"""Environment variable: whoever finds it ends when its standard input does."""


def with_lifeline(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """An environment (default: this process's) for a child that ends with this process: start it with
    ``stdin=subprocess.PIPE``, keep that open, and write nothing to it."""
    return {**(os.environ if environment is None else environment), LIFELINE: "1"}


def follow_starter() -> None:
    """Called by the main thread: send it SIGTERM once the starter has gone. Nothing happens where none said so."""
    # children of this process have other lifelines, or none
    if os.environ.pop(LIFELINE, None) is None:
        return
    threading.Thread(target=_follow, args=(threading.get_ident(),), name="lifeline", daemon=True).start()


def _follow(main: int) -> None:
    # signals stay with the main thread, which holds some back while it must not be disturbed
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    wait_for_end()
    signal.pthread_kill(main, signal.SIGTERM)


def wait_for_end() -> None:
    """Return when standard input has ended, whatever comes before."""
    while os.read(0, 4096):
        pass
