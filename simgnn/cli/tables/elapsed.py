"""Shows on a terminal how long a piece of work has been running, from a process of its own.

METIS and other native code hold Python's lock while they run, so that no thread of their process could. The process
ends with its standard input, hence also when whoever started it is killed. Run as ``python elapsed.py TEXT EXPECTED``.
"""

import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

EVERY_S = 0.5
CLEAR = "\r\x1b[K"


def line(text: str, elapsed_s: float, expected_s: float | None) -> str:
    """Format what is shown after ``elapsed_s`` seconds; ``expected_s`` is an estimate, or None."""
    told = f"{text}: {elapsed_s:.0f} s"
    if expected_s is None:
        return f"{told} (it does not tell how far it is)"
    if elapsed_s > expected_s:
        return f"{told}, longer than the estimate of {expected_s:.0f} s"
    return f"{told} of about {expected_s:.0f} s, by the last one here"


@contextmanager
def shown_elapsed(text: str, expected_s: float | None) -> Iterator[None]:
    """Show the seconds since the ``with`` block began on standard error, until it ends."""
    words = [sys.executable, "-I", __file__, text, "" if expected_s is None else str(expected_s)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()


def _show(text: str, expected_s: float | None) -> None:
    began = time.monotonic()
    while True:
        sys.stderr.write(CLEAR + line(text, time.monotonic() - began, expected_s))
        sys.stderr.flush()
        if select.select([sys.stdin], [], [], EVERY_S)[0]:
            break
    sys.stderr.write(CLEAR)
    sys.stderr.flush()


if __name__ == "__main__":
    _show(sys.argv[1], float(sys.argv[2]) if sys.argv[2] else None)
