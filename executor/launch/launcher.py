"""Starts the ranks of a run on this host, watches them, and reports one reason when the run fails."""

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from executor.recording.disk import remedy, storage_fault, writing
from executor.recording.failure import BadRowsError, ShortOfMemoryError, clear_failures, read_failures
from executor.state.plan import RunPlan
from executor.world.environment import LAUNCHER, NO_STORAGE, RENDEZVOUS, threads_per_rank
from simgnn.record.rundir import RunDirectory

POLL_S = 0.02
GRACE_S = 3.0
"""Seconds that the other ranks have to report a failure, and then to end, before they are killed."""
MEETING = ".rendezvous-"
"""How the name of the file begins through which the ranks find each other; the launcher's process id follows."""
INTERRUPTED = 130
"""Exit status of a process after Ctrl-C, as shells report it."""


@dataclass(frozen=True)
class Seat:
    """How to start a rank elsewhere, such as in a testbed. ``prefix``: words before the rank's command; ``cores``:
    number of the host's cores; ``interface``: network interface; ``variables``: more environment variables."""

    prefix: tuple[str, ...]
    local_rank: int
    local_ranks: int
    cores: int
    interface: str
    variables: Mapping[str, str] = field(default_factory=dict)


def launch(root: Path, arguments: Sequence[str], seats: Sequence[Seat] | None = None) -> int:
    """Train a prepared run directory with one process per rank; return the exit status. ``arguments`` go to the ranks.

    ``seats`` [P]: where each rank runs; None: all on this host.
    """
    plan = RunPlan.open(root)
    plan.check_unfinished()
    if seats is None and "--resume" in arguments:
        RunDirectory(root).check_outside_testbeds()
    status, reason = run_plan(plan, [sys.executable, "-P", "-m", "executor", "run", str(root), *arguments], seats)
    if status == 1 or _noted_status(plan):
        _report_failure(plan, reason)
    return status


def run_plan(plan: RunPlan, command: Sequence[str], seats: Sequence[Seat] | None = None) -> tuple[int, str]:
    """Run ``command`` once for each rank of a plan; return the exit status and, if ranks failed, the reason, which is
    printed. The status is 2 for wrong input, with which nothing ran, and for rows that a policy cannot work on; 3 where
    memory does not suffice."""
    with writing(plan.trace):
        plan.trace.mkdir(exist_ok=True)
        clear_failures(plan.trace)
        for old in plan.trace.glob(f"{MEETING}*"):  # of a launcher that was killed
            old.unlink(missing_ok=True)
    rendezvous = plan.trace / f"{MEETING}{os.getpid()}"
    try:
        with ended_together() as running:
            for rank in range(plan.ranks):
                seat = None if seats is None else seats[rank]
                environment = environment_of(rank, plan.ranks, plan.threads_per_rank, seat)
                environment[RENDEZVOUS] = str(rendezvous.resolve())
                running.append(subprocess.Popen([*(seat.prefix if seat else ()), *command], env=environment))
            if not watch(running, plan.timeout):
                return 0, ""
            first = {rank for rank, process in enumerate(running) if process.returncode}  # as watch saw it
            _wait(running)
            reason = _reason(plan, running, first)
            print(f"executor: error: {reason}", file=sys.stderr, flush=True)
            statuses = [process.poll() for process in running]
            told = _noted_status(plan) or next((status for status in (2, 3) if status in statuses), 0)
        return (told if told and not _gone(plan) else 1), reason
    except KeyboardInterrupt:
        return INTERRUPTED, ""
    finally:
        rendezvous.unlink(missing_ok=True)


def _report_failure(plan: RunPlan, reason: str) -> None:
    """Write the result of a run that failed, as far as its disk has room; nothing if the run directory is gone."""
    if _gone(plan):
        return
    # loads torch, which a run that goes well has no need of here
    from executor.recording.report import write_failed, write_report

    try:
        write_report(plan, "failed", reason)
    except OSError:  # no room for its tables
        with suppress(OSError):
            write_failed(plan, reason)


@contextmanager
def ended_together() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Yield an empty list, and end all processes that the block has put into it when the block ends or raises. SIGTERM
    acts like Ctrl-C: a message, and :class:`KeyboardInterrupt`."""

    def interrupted(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    running: list[subprocess.Popen[bytes]] = []
    previous = signal.signal(signal.SIGTERM, interrupted)
    try:
        yield running
    except KeyboardInterrupt:
        with suppress(BrokenPipeError):  # the reader of the message may be gone
            print("executor: interrupted; ending all ranks", file=sys.stderr, flush=True)
        raise
    finally:
        for process in running:
            if process.poll() is None:
                process.terminate()
        _wait(running)
        for process in running:
            if process.poll() is None:
                process.kill()
            process.wait()
        signal.signal(signal.SIGTERM, previous)


def run_together(commands: Sequence[Sequence[str]], environments: Sequence[Mapping[str, str]]) -> int:
    """Run one process per rank; return the first exit status other than 0, or 0. When one fails, end the others."""
    try:
        with ended_together() as running:
            for command, environment in zip(commands, environments, strict=True):
                running.append(subprocess.Popen(command, env=environment))
            watch(running)
            status = next((status for process in running if (status := process.poll())), 0)
    except KeyboardInterrupt:
        return INTERRUPTED
    return 128 - status if status < 0 else status


def environment_of(rank: int, ranks: int, wanted_threads: int | None, seat: Seat | None = None) -> dict[str, str]:
    """Return one rank's environment variables: rank and world size, threads, network interface, launcher."""
    local_rank, local_ranks = (rank, ranks) if seat is None else (seat.local_rank, seat.local_ranks)
    threads = str(threads_per_rank(wanted_threads, local_ranks, None if seat is None else seat.cores))
    environment = {
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(local_ranks),
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "NUMBA_NUM_THREADS": threads,
        LAUNCHER: str(os.getpid()),
    }
    if seat is not None:
        environment |= {"GLOO_SOCKET_IFNAME": seat.interface, **seat.variables}
    elif sys.platform == "linux":
        # all ranks are on this host: a host name that resolves to an unreachable address must not matter
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            environment.setdefault(name, "lo")
    return environment


def watch(running: Sequence[subprocess.Popen[bytes]], limit_s: float = math.inf) -> bool:
    """Wait until all ranks have succeeded, or one has failed or is still there ``limit_s`` after the first has
    succeeded; return whether one has failed. Ranks end together: one that stays is stopped, and no other waits for
    it."""
    end_s = math.inf
    while True:
        states = [process.poll() for process in running]
        if any(states):
            return True
        if all(state == 0 for state in states):
            return False
        if 0 in states:
            end_s = min(end_s, time.monotonic() + limit_s)
        if time.monotonic() > end_s:
            return True
        time.sleep(POLL_S)


def _reason(plan: RunPlan, running: Sequence[subprocess.Popen[bytes]], first: Set[int]) -> str:
    """Return why the run ended: the cause that a rank reports, else which rank was killed or ended without a report,
    else which rank lost contact. ``first``: ranks that failed before all others."""
    notes = read_failures(plan.trace)
    causes = [note.message for note in notes if note.kind != "lost-peer"]
    codes = [process.poll() for process in running]
    if NO_STORAGE in codes or _gone(plan):
        cause = causes[0] if causes else storage_fault(plan.root)
        if not cause:
            cause = f"rank {codes.index(NO_STORAGE)} could not write the run directory {plan.root}"
        return f"{cause}. {remedy(plan.checkpoints)}"
    if causes:
        return causes[0]
    reporting = {note.rank for note in notes}
    lost = [
        (rank not in first, code > 0, rank, code)
        for rank, code in enumerate(codes)
        if code is not None and (code < 0 or (code > 0 and rank not in reporting))
    ]
    if lost:
        *_, rank, code = min(lost)
        end = f"ended with exit status {code} and reported no reason (see what it printed, if anything)"
        if code < 0:
            end = f"was killed by {signal.Signals(-code).name}"
        return f"rank {rank} {end}; the run has ended on all {plan.ranks} ranks. {remedy(plan.checkpoints)}"
    silent = [rank for rank, code in enumerate(codes) if code is None]
    if silent and not notes:
        sign = f"other ranks ended more than {plan.timeout:g} s (train.timeout) ago"
        return f"{sign}; rank {silent[0]} did not answer. {remedy(plan.checkpoints)}"
    if silent:
        return f"{notes[0].message}; rank {silent[0]} did not answer. {remedy(plan.checkpoints)}"
    return notes[0].message


def _noted_status(plan: RunPlan) -> int:
    """Return the exit status of a run in which a rank met rows that a policy cannot work on, or ran out of its memory;
    0: none reports such a cause."""
    kinds = [note.kind for note in read_failures(plan.trace)]
    causes = ("bad-rows", BadRowsError), ("short-memory", ShortOfMemoryError)
    return next((error.exit_status for kind, error in causes if kind in kinds), 0)


def _gone(plan: RunPlan) -> bool:
    """Return whether the run directory was deleted since the plan was read."""
    return not RunDirectory(plan.root).plan.is_dir()


def _wait(running: Sequence[subprocess.Popen[bytes]]) -> None:
    limit = time.monotonic() + GRACE_S
    while time.monotonic() < limit and any(process.poll() is None for process in running):
        time.sleep(POLL_S)
