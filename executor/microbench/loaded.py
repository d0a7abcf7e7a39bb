"""``python -m executor.microbench.loaded --out FILE``, once a rank on several hosts (torchrun's variables, Gloo).

Measures the link between the first two hosts while messages fill it: how much longer a small message takes beside 1, 2,
4... bulk messages each way (up to the number of pairs of ranks; exchanges of training go both ways too), and the
processor time of a byte across it. Repeats are interleaved; it takes half a minute on a link of 200 Mbit/s.
"""

import argparse
import os
import random
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist

from executor.microbench.load_samples import LoadSamples, Waiting, Work, write_load
from executor.microbench.world import World, join
from executor.world.environment import LAUNCHER, follow_launcher
from simgnn.errors import BackendError

ITEM_BYTES = 4  # payload is float32, as in training
PATIENCE = timedelta(seconds=60)
"""Timeout of one message, and of the end of all messages."""
BULK_BYTES = 1_000_000
SMALL_BYTES = 1024
LEVELS = (1, 2, 4, 8)
"""Numbers of simultaneous bulk messages each way, as far as there are pairs of ranks for them."""
ROUNDS = 5
TRIPS = 12
"""Round trips of each level in a round."""
RAMP_S = 0.2
"""Seconds to wait after the first bulk messages, while TCP's windows open."""
GAP_S = (0.001, 0.01)
"""Range of the random pause before a round trip, which thus begins anywhere in a bulk message."""
WORK_ROUNDS = 3
IDLE_S, BUSY_S = 1.0, 2.0
CPU_TIMES = Path("/proc/stat")
IDLE_COLUMNS = (4, 5, 8)
"""Columns of a core's line: idle, waiting for disks, stolen by other machines (proc(5)), in ticks. A kernel that stops
its tick on idle cores counts these by the clock, but busy time only by samples at ticks."""


@dataclass(frozen=True)
class Way:
    """A connection from rank ``source`` to ``target``. ``group``: their own process group; None on other ranks."""

    source: int
    target: int
    group: dist.ProcessGroup | None


def connect(pairs: Sequence[tuple[int, int]], rank: int) -> list[Way]:
    """Make a connection (:class:`Way`) for each (source, target); all ranks must call this with the same pairs."""
    ways = []
    for source, target in pairs:
        group = dist.new_group([source, target], timeout=PATIENCE)
        ways.append(Way(source, target, group if rank in (source, target) else None))
    return ways


@dataclass(frozen=True)
class Link:
    """The measured connections between two hosts: ``ways`` from the first to the second host, ``back`` in reverse."""

    small: Way
    ways: tuple[Way, ...]
    back: tuple[Way, ...]

    @property
    def levels(self) -> tuple[int, ...]:
        """Numbers of bulk messages at once: 0, and those :data:`LEVELS` for which there are enough ``ways``."""
        return (0, *(level for level in LEVELS if level <= len(self.ways)))


def pairs_of(sources: Sequence[int], targets: Sequence[int]) -> list[tuple[int, int]]:
    """Return all pairs, ordered so that every source comes once before any comes again."""
    return [
        (source, targets[(place + turn) % len(targets)])
        for turn in range(len(targets))
        for place, source in enumerate(sources)
    ]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m executor.microbench.loaded", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="JSON file of samples, written by rank 0")
    options = parser.parse_args(arguments)
    if LAUNCHER in os.environ:
        follow_launcher(int(os.environ[LAUNCHER]))
    if "RANK" not in os.environ:
        print("executor: error: expected torchrun's variables: one process a rank, on two hosts", file=sys.stderr)
        return 2
    started = datetime.now(UTC)
    world = join("gloo")
    try:
        if len(world.members) < 2:
            world.say("executor: error: got ranks of one host, expected two hosts or more: no link joins one")
            return 2
        found = measure(world)
        if world.rank == 0:
            waiting, work = found
            told = started.isoformat(timespec="seconds")
            write_load(options.out, LoadSamples(told, BULK_BYTES, SMALL_BYTES, waiting, work))
        world.barrier()
    except BackendError as error:
        print(f"executor: error: rank {world.rank}: {error}", file=sys.stderr)
        return error.exit_status
    dist.destroy_process_group()
    return 0


def measure(world: World) -> tuple[tuple[Waiting, ...], tuple[Work, ...]]:
    """Measure all rounds on all ranks; return the samples of all ranks on every rank."""
    sources, targets = world.members[:2]
    pairs = pairs_of(sources, targets)[: LEVELS[-1]]
    back = [(target, source) for source, target in pairs]
    # the ranks of the small message carry bulk messages last, where there are others
    small, *ways = connect([(sources[-1], targets[-1]), *pairs, *back], world.rank)
    link = Link(small, tuple(ways[: len(pairs)]), tuple(ways[len(pairs) :]))
    visits: dict[int, list[Any]] = {level: [] for level in link.levels}
    work: list[Work] = []
    gaps = random.Random(0)
    for turn in range(ROUNDS):
        world.say(f"load of the link: round {turn + 1} of {ROUNDS}, {', '.join(map(str, link.levels[1:]))} at once")
        for level in link.levels if turn % 2 == 0 else reversed(link.levels):
            visits[level].append(world.gather(_visit(world, link, level, gaps)))
        if turn < WORK_ROUNDS:
            work.append(_work(world, link))
    waiting = []
    for level, told in visits.items():
        trips = tuple(tuple(ranks[sources[-1]][0]) for ranks in told)
        rates = tuple(sum(rate for _, rate in ranks) for ranks in told) if level else ()
        waiting.append(Waiting(level, trips, rates))
    return tuple(waiting), tuple(work)


def _visit(world: World, link: Link, level: int, gaps: random.Random) -> tuple[list[float], float]:
    """Measure round trips while ``level`` messages fill the link each way, and bulk bytes per second that arrive."""
    trips: list[float] = []
    world.barrier()
    start = time.perf_counter()
    with Bulk((*link.ways[:level], *link.back[:level]), world.rank, BULK_BYTES) as bulk:
        bulk.flowing()
        time.sleep(RAMP_S)
        world.barrier()
        for _ in range(TRIPS):
            trips += _round_trip(link.small, world.rank, gaps.uniform(*GAP_S))
        world.barrier()
    return trips, bulk.received_bytes / (time.perf_counter() - start)


def _round_trip(way: Way, rank: int, gap_s: float) -> list[float]:
    """Send a small message after a pause; return the seconds until its answer on its source, elsewhere nothing."""
    message, answer = (torch.zeros(SMALL_BYTES // ITEM_BYTES) for _ in range(2))
    if rank == way.target:
        dist.recv(answer, src=way.source, group=way.group)
        dist.send(message, dst=way.source, group=way.group)
    if rank != way.source:
        return []
    time.sleep(gap_s)
    start = time.perf_counter()
    # posted before the message, so that Gloo's announcement of the receive is not part of the wait
    awaited = dist.irecv(answer, src=way.target, group=way.group)
    dist.send(message, dst=way.target, group=way.group)
    assert awaited is not None  # a member of the group has its handle
    awaited.wait()
    return [time.perf_counter() - start]


def _work(world: World, link: Link) -> Work:
    """Measure processor time while messages fill the link both ways, and while it is idle just before."""
    takes_part = world.host < 2
    world.barrier()
    start, from_s = time.perf_counter(), _idle_s()
    time.sleep(IDLE_S)
    before_s, busy_before = _since(start, from_s)
    world.barrier()
    start, from_s = time.perf_counter(), _idle_s()
    count = min(len(members) for members in world.members[:2])  # one for every rank, as far as they go
    with Bulk((*link.ways[:count], *link.back[:count]), world.rank, BULK_BYTES) as bulk:
        bulk.flowing()
        time.sleep(BUSY_S)
    world.barrier()  # all that was sent has arrived
    seconds, busy = _since(start, from_s)
    cores = [(core, (busy_before[core] / before_s, busy[core])) for core in busy] if takes_part else []
    told = world.gather((cores, bulk.received_bytes))
    # hosts of a testbed may share cores, and ranks of a host do: each core counts once
    every = {(world.kernels[rank], core): found for rank, (listed, _) in enumerate(told) for core, found in listed}
    before, busy_s = (sum(each) for each in zip(*every.values(), strict=True))
    return Work(seconds, len(every), busy_s, before, float(sum(arrived for _, arrived in told)))


def _since(start: float, idle_s: Mapping[int, float]) -> tuple[float, dict[int, float]]:
    """Return the seconds since ``start``, and for how many of them each core was busy with anything."""
    now_s, seconds = _idle_s(), time.perf_counter() - start
    return seconds, {core: max(0.0, seconds - (now_s[core] - before)) for core, before in idle_s.items()}


def _idle_s() -> dict[int, float]:
    """Return the idle seconds, since the machine started, of each core that this rank may use."""
    tick = os.sysconf("SC_CLK_TCK")
    lines = (line.split() for line in CPU_TIMES.read_text().splitlines() if line.startswith("cpu"))
    cores = {line[0]: sum(int(line[column]) for column in IDLE_COLUMNS) / tick for line in lines}
    return {core: cores[f"cpu{core}"] for core in sorted(os.sched_getaffinity(0))}


class Bulk:
    """Large messages that fill a link in the background. While entered, one thread for each way that ends at this rank
    or begins here sends or receives message after message. The first item of a message says whether it is the last."""

    def __init__(self, ways: Sequence[Way], rank: int, nbytes: int) -> None:
        self._stop = threading.Event()
        self._flows = [_Flow(way, rank, nbytes, self._stop) for way in ways if way.group is not None]

    def __enter__(self) -> "Bulk":
        for flow in self._flows:
            flow.start()
        return self

    def flowing(self) -> None:
        """Wait for the first message on every connection. Raises :class:`BackendError` if one does not come."""
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
        """Bytes that have arrived at this rank so far; after the block, all of them."""
        return sum(flow.received_bytes for flow in self._flows)


class _Flow(threading.Thread):
    """Thread that sends or receives bulk messages on one connection. ``passed``: set after the first, or on failure."""

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
        except (RuntimeError, ValueError) as error:  # raised by the thread that waits for this one
            self._failure = error
            self.passed.set()

    def check(self, in_time: bool) -> None:
        """Raise :class:`BackendError` if the connection failed or ``in_time`` is false."""
        if self._failure is not None or not in_time:
            reason = self._failure or f"nothing passed in {PATIENCE.total_seconds():.0f} s"
            raise BackendError(f"bulk messages from rank {self._way.source} to {self._way.target} failed: {reason}")


if __name__ == "__main__":
    sys.exit(main())
