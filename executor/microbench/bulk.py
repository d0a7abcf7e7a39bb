"""Large messages that fill a link in the background: each way has a thread at both ends and a connection of its own."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType

import torch
import torch.distributed as dist

from simgnn.errors import BackendError

ITEM_BYTES = 4  # payload is float32, as in training
PATIENCE = timedelta(seconds=60)
"""For one message, and for the end of all."""


@dataclass(frozen=True)
class Way:
    """From one rank to another. ``group``: of these two alone, so with TCP connections of its own; None on others."""

    source: int
    target: int
    group: dist.ProcessGroup | None


def connect(pairs: Sequence[tuple[int, int]], rank: int) -> list[Way]:
    """A way for each (source, target); all ranks ask for the same ones in the same order."""
    ways = []
    for source, target in pairs:
        group = dist.new_group([source, target], timeout=PATIENCE)
        ways.append(Way(source, target, group if rank in (source, target) else None))
    return ways


class Bulk:
    """While entered, message follows message on every way that this rank is an end of, each by a thread.

    The first item of a message tells its receiver whether it is the last.
    """

    def __init__(self, ways: Sequence[Way], rank: int, nbytes: int) -> None:
        self._stop = threading.Event()
        self._flows = [_Flow(way, rank, nbytes, self._stop) for way in ways if way.group is not None]

    def __enter__(self) -> "Bulk":
        for flow in self._flows:
            flow.start()
        return self

    def flowing(self) -> None:
        """Wait until the first message of every way has passed; :class:`BackendError` where one does not."""
        for flow in self._flows:
            flow.check(flow.passed.wait(PATIENCE.total_seconds()))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        if kind is not None:
            return  # the threads end with the process
        for flow in self._flows:
            flow.join(PATIENCE.total_seconds())
            flow.check(not flow.is_alive())

    @property
    def received_bytes(self) -> int:
        """Bytes that have arrived at this rank, all of them once the block is left; what was sent may still wait."""
        return sum(flow.received_bytes for flow in self._flows)


class _Flow(threading.Thread):
    """One end of a way. ``passed``: set when a message has gone through, or nothing ever will."""

    def __init__(self, way: Way, rank: int, nbytes: int, stop: threading.Event) -> None:
        super().__init__(name=f"bulk {way.source} to {way.target}", daemon=True)
        self._way, self._stop_asked, self._nbytes = way, stop, nbytes
        self._sends = rank == way.source
        self._failure: Exception | None = None
        self._messages = 0
        self.passed = threading.Event()

    @property
    def received_bytes(self) -> int:
        return 0 if self._sends else self._messages * self._nbytes

    def run(self) -> None:
        message, way = torch.zeros(self._nbytes // ITEM_BYTES), self._way
        try:
            while not message[0]:
                if self._sends:
                    message[0] = float(self._stop_asked.is_set())
                    dist.send(message, dst=way.target, group=way.group)
                else:
                    dist.recv(message, src=way.source, group=way.group)
                self._messages += 1
                self.passed.set()
        except (RuntimeError, ValueError) as error:  # told by the thread that waits for this one
            self._failure = error
            self.passed.set()

    def check(self, in_time: bool) -> None:
        """Raise :class:`BackendError` where the way failed or did not come to its end in time."""
        if self._failure is not None or not in_time:
            reason = self._failure or f"nothing passed in {PATIENCE.total_seconds():.0f} s"
            raise BackendError(f"load of the link: {self.name}: {reason}")
