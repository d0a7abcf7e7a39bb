"""Ranks that stay alive: one process a rank, fed run directories, so that torch is imported once for many cases."""

import os
import time
import traceback
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from tests.equality.wiretap import tapped
from tests.executor.harness import forking
from tests.executor.runs import train_in_process

LIMIT_S = 600.0


class RankPool:
    """Processes that carry out one run after another, each run in a Gloo group of its own; there are as many as the
    largest run so far had ranks."""

    def __init__(self) -> None:
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []

    def run(self, folder: Path, ranks: int) -> list[dict[str, Any]]:
        """Carry out a prepared run; what each rank returned. A rank's exception fails the test with its traceback, and
        ends all ranks, since the others wait for it."""
        self._grow(ranks)
        waiting = self._pipes[:ranks]
        for rank, pipe in enumerate(waiting):
            pipe.send((rank, ranks, str(folder)))
        end = time.monotonic() + LIMIT_S
        while waiting:
            ready = wait(waiting, max(0.0, end - time.monotonic()))
            faults = [_answer(pipe) for pipe in waiting if pipe in ready]
            fault = "".join(faults) if ready else f"no answer within {LIMIT_S:.0f} s"
            if fault:
                self.close()
                raise AssertionError(f"{folder.name}: {fault}")
            waiting = [pipe for pipe in waiting if pipe not in ready]
        return [torch.load(folder / f"rank-{rank}.pt", weights_only=True) for rank in range(ranks)]

    def close(self) -> None:
        """End all processes; a later run starts new ones."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._pipes, self._processes = [], []

    def _grow(self, ranks: int) -> None:
        while len(self._processes) < ranks:
            ours, theirs = Pipe()
            process = forking().Process(target=_serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)


def _answer(pipe: Connection) -> str:
    try:
        return str(pipe.recv())
    except (EOFError, ConnectionResetError):
        return "a rank died without a word"


def _serve(pipe: Connection) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    rank = -1
    try:
        while True:
            rank, ranks, folder = pipe.recv()
            with tapped() as calls:
                [result] = train_in_process(rank, ranks, [folder])
            torch.save({**result, "calls": calls}, Path(folder) / f"rank-{rank}.pt")
            pipe.send("")
    except EOFError:  # the test process is gone
        os._exit(0)
    except BaseException:
        pipe.send(f"rank {rank}:\n{traceback.format_exc()}")
        os._exit(1)
