"""Starts the ranks of a run on this host, watches them, and tells the one reason when it fails."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from executor.environment import LAUNCHER, RENDEZVOUS, threads_per_rank
from executor.failure import clear_failures, read_failures
from executor.plan import RunPlan

POLL_S = 0.02
GRACE_S = 3.0
"""How long the other ranks get to say what happened to them, and then to end, before they are killed."""
PR_SET_PDEATHSIG = 1


def launch(root: Path, arguments: Sequence[str]) -> int:
    """Run DIR with one process a rank; the exit status. ``arguments`` are passed on to the ranks."""
    plan = RunPlan.open(root)
    if "--resume" not in arguments:
        plan.check_unfinished()
    plan.trace.mkdir(exist_ok=True)
    clear_failures(plan.trace)
    rendezvous = plan.trace / f".rendezvous-{os.getpid()}"
    rendezvous.unlink(missing_ok=True)
    command = [sys.executable, "-m", "executor", "run", str(root), *arguments]
    running: list[subprocess.Popen[bytes]] = []
    previous = signal.signal(signal.SIGTERM, _interrupted)
    try:
        for rank in range(plan.ranks):
            running.append(subprocess.Popen(command, env=_environment(plan, rank, rendezvous.resolve())))
        failed = _watch(running)
        if not failed:
            return 0
        _wait(running, GRACE_S)
        reason = _reason(plan, running)
        print(f"executor: error: {reason}", file=sys.stderr, flush=True)
        statuses = [process.poll() for process in running]
        _end(running)
        if 2 in statuses:  # what was given is wrong: nothing ran, there is nothing to report
            return 2
        from executor.report import write_report  # loads torch, which a run that goes well has no need of here

        write_report(plan, "failed", reason)
        return 1
    except KeyboardInterrupt:
        print("executor: interrupted; ending all ranks", file=sys.stderr, flush=True)
        return 130
    finally:
        _end(running)
        signal.signal(signal.SIGTERM, previous)
        rendezvous.unlink(missing_ok=True)


def _environment(plan: RunPlan, rank: int, rendezvous: Path) -> dict[str, str]:
    threads = str(threads_per_rank(plan.threads_per_rank, plan.ranks))
    environment = {
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(plan.ranks),
        "LOCAL_WORLD_SIZE": str(plan.ranks),
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "NUMBA_NUM_THREADS": threads,
        RENDEZVOUS: str(rendezvous),
        LAUNCHER: str(os.getpid()),
    }
    if sys.platform == "linux":
        # all ranks are here: a host name that resolves to an unreachable address must not matter
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    return environment


def _watch(running: Sequence[subprocess.Popen[bytes]]) -> bool:
    """Wait until all ranks have ended well, or one has not; whether one has failed."""
    while True:
        states = [process.poll() for process in running]
        if any(states):
            return True
        if all(state == 0 for state in states):
            return False
        time.sleep(POLL_S)


def _reason(plan: RunPlan, running: Sequence[subprocess.Popen[bytes]]) -> str:
    """Why the run ended: what a rank says is the cause, else which rank was killed, else who lost contact."""
    notes = read_failures(plan.trace)
    causes = [message for kind, message in notes if kind == "cause"]
    if causes:
        return causes[0]
    for rank, process in enumerate(running):
        code = process.poll()
        if code is not None and code < 0:
            return (
                f"rank {rank} was killed by {signal.Signals(-code).name}; the run has ended on all {plan.ranks} ranks. "
                f"{_remedy(plan)}"
            )
    silent = [rank for rank, process in enumerate(running) if process.poll() is None]
    if notes and silent:
        return f"{notes[0][1]}; rank {silent[0]} did not answer. {_remedy(plan)}"
    codes = {rank: process.poll() for rank, process in enumerate(running)}
    return notes[0][1] if notes else f"ranks ended with {codes}; the reason is in the lines above"


def _remedy(plan: RunPlan) -> str:
    if (plan.checkpoints / "latest.json").is_file():
        return "Go on from its last checkpoint with --resume."
    return "It has no checkpoint (train.checkpoint_every); start it again."


def _wait(running: Sequence[subprocess.Popen[bytes]], seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and any(process.poll() is None for process in running):
        time.sleep(POLL_S)


def _end(running: Sequence[subprocess.Popen[bytes]]) -> None:
    """End what still runs, by process id: politely, then not."""
    for process in running:
        if process.poll() is None:
            process.terminate()
    _wait(running, GRACE_S)
    for process in running:
        if process.poll() is None:
            process.kill()
        process.wait()


def follow_launcher(launcher: int) -> None:
    """Let the kernel end this rank when its launcher dies, however it dies (Linux; elsewhere nothing happens)."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != launcher:  # it died before the kernel was told
        os._exit(1)


def _interrupted(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
