"""Runs a function on P real ranks over Gloo, and builds tiny programs by hand."""

import os
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import cache
from multiprocessing import forkserver
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

from executor.state.buffers import BufferStore, Now, Value
from executor.state.context import GroupHandle, LocalRoute, RankContext, Sent
from simgnn.policies.codec.none import Plain
from simgnn.policy import Action
from simgnn.program.calendar import Calendar
from simgnn.program.dependencies import derive_dependencies
from simgnn.program.ops import Access, Buffer, Group, Op, Stream
from simgnn.program.program import Program, Template
from simgnn.program.sizes import IntArray, Route, SizeTable

LIMIT_S = 300.0
LOADED = "tests.executor.memory.preloaded"


@cache
def forking() -> Any:
    """Ranks fork off a process that has done nothing but import, since each import of torch takes seconds of processor
    time. Fresh processes are those that the launcher starts."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([LOADED])
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # it looks nowhere else, and leaves out what it misses
    try:
        forkserver.ensure_running()
    finally:
        del os.environ["PYTHONPATH"]
        if before is not None:
            os.environ["PYTHONPATH"] = before
    return context


def acting(**functions: Callable[..., tuple[Any, ...]]) -> Any:
    """A policy with an action for each function of the context and of what an op reads, labelled by its keyword."""

    def action(label: str, function: Callable[..., tuple[Any, ...]]) -> type[Action[Any]]:
        return type(label, (Action,), {"label": label, "run": lambda self, *read: function(*read)})

    return SimpleNamespace(label="none", slot="codec", actions=tuple(action(*item) for item in functions.items()))


def run_ranks(
    ranks: int, function: Callable[..., Any], folder: Path, *arguments: Any, joined: bool = True
) -> list[Any]:
    """``function(rank, ranks, *arguments)`` in a process a rank, in one Gloo group (``joined=False``: in none).

    What each returned (tensors, plain values), by rank. An exception on a rank fails the test with its traceback.
    """
    folder.mkdir(parents=True, exist_ok=True)
    processes = [
        forking().Process(target=_main, args=(rank, ranks, function, str(folder), arguments, joined, dict(os.environ)))
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    end = time.monotonic() + LIMIT_S
    try:
        for process in processes:
            process.join(max(0.1, end - time.monotonic()))
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
                process.join()
    faults = [path.read_text() for path in sorted(folder.glob("fault-*"))]
    assert not faults, "\n".join(faults)
    assert all(process.exitcode == 0 for process in processes), [process.exitcode for process in processes]
    return [torch.load(folder / f"result-{rank}.pt", weights_only=True) for rank in range(ranks)]


def _main(
    rank: int,
    ranks: int,
    function: Callable[..., Any],
    folder: str,
    arguments: Sequence[Any],
    joined: bool,
    environment: Mapping[str, str],
) -> None:
    place = Path(folder)
    os.environ.clear()
    os.environ.update(environment)  # the test's, not that of the process that this one forked off
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        if joined:
            dist.init_process_group(
                "gloo", init_method=f"file://{place / 'rendezvous'}", rank=rank, world_size=ranks,
                timeout=timedelta(seconds=LIMIT_S / 2),
            )  # fmt: skip
        torch.save(function(rank, ranks, *arguments), place / f"result-{rank}.pt")
        if joined:
            dist.barrier()
    except BaseException:
        (place / f"fault-{rank}").write_text(traceback.format_exc())
        os._exit(1)
    os._exit(0)


class Notes:
    """A record that keeps everything in a list."""

    def __init__(self) -> None:
        self.rows: list[tuple[Now, int, Any, Any, Sent]] = []

    def add(self, now: Now, op_id: int, issued: Any, ended: Any, sent: Sent, started: Any = None) -> None:
        """Keep one op."""
        self.rows.append((now, op_id, issued, ended, sent))


def reads(*names: str) -> tuple[Access, ...]:
    """This turn's copies."""
    return tuple(Access(name) for name in names)


def tiny_program(
    ranks: int,
    templates: Mapping[str, Sequence[Op]],
    buffers: Sequence[Buffer],
    *,
    streams: Sequence[Stream] = (Stream("compute"), Stream("comm", group="world")),
    groups: Sequence[Group] = (Group("world"),),
    routes: Mapping[str, Route] | None = None,
    columns: Mapping[str, IntArray] | None = None,
    calendar: Calendar | None = None,
    hosts: Sequence[int] | None = None,
    derived: bool = True,
) -> Program:
    """A program from parts; dependencies follow from its buffers unless they are given (``derived=False``)."""
    program = Program(
        name="tiny",
        templates={name: Template(name, tuple(ops)) for name, ops in templates.items()},
        calendar=calendar or Calendar("steady"),
        buffers={buffer.name: buffer for buffer in buffers},
        streams={stream.name: stream for stream in streams},
        groups={group.name: group for group in groups},
        sizes=SizeTable(ranks, columns or {}, routes or {}),
        hosts=tuple(hosts or [0] * ranks),
    )
    return derive_dependencies(program) if derived else program


def world_context(
    program: Program,
    rank: int,
    constants: Mapping[str, Value] | None = None,
    routes: Mapping[str, LocalRoute] | None = None,
    policies: Mapping[str, Any] | None = None,
    device: torch.device | None = None,
    **fields: Any,
) -> RankContext:
    """A context whose groups are the world, one process group each; Gloo on the CPU."""
    place = device or torch.device("cpu")
    members = tuple(range(program.ranks))
    several = dist.is_initialized()
    groups = {
        name: GroupHandle(dist.new_group(list(members)) if several else None, members, place)
        for name in sorted(program.groups)
    }
    return RankContext(
        program=program,
        rank=rank,
        device=place,
        store=BufferStore(program, rank, place, constants),
        groups=groups,
        routes=routes or {},
        policies={"codec": Plain(), **policies} if policies else {},
        **fields,
    )


def local_route(program: Program, name: str, rank: int, rows: torch.Tensor | None = None) -> LocalRoute:
    """A program's route as a rank sees it; ``rows`` are those that it sends."""
    matrix = program.sizes.routes[name].matrix(program.ranks)
    return LocalRoute(rows, None, tuple(matrix[rank].tolist()), tuple(matrix[:, rank].tolist()), not matrix.any())


def quiet_port() -> int:
    """A free port that no connection of other tests gets by chance: outside of the range that the kernel deals from."""
    for port in range(20_000 + os.getpid() % 5_000, 32_000):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no free port")
