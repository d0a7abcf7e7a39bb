"""Makes, holds, describes and removes testbeds. Removes only what a record names, even if half-made in a crash."""

import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from executor.testbed import cgroups, network
from executor.testbed.declaration import Declaration, usable_cores
from executor.testbed.state import Record, holder_of, holding, in_use, is_locked, is_recorded, locked
from simgnn.errors import BackendError, SimgnnError

GRACE_S = 3.0
"""Seconds that processes have to end by themselves before they are killed."""
LOCK_PATIENCE_S = 20.0
HOLD_PATIENCE_S = 5.0
POLL_S = 0.1
LOOK_S = 1.0
"""Seconds between a holder's checks whether its testbed was taken down: many, since it may run beside a measurement."""


class Made(NamedTuple):
    """Result of bringing a testbed up: whether anything was ``made``, and how a replaced one ``differs``."""

    made: bool
    differs: tuple[str, ...] = ()


def up(declared: Declaration) -> Made:
    """Bring a testbed up, and replace one of the same name that differs.

    Raises :class:`~simgnn.errors.ConfigError` without root, iproute2 or a CPU controller, and :class:`BackendError`
    where no testbed made a namespace or group of the same name, or where the testbed is in use.
    """
    network.require_tools()
    with locked(declared.name):
        return make(declared, replace=True)


def make(declared: Declaration, replace: bool, holds: bool = False) -> Made:
    """Bring a testbed up as :func:`up` does, in a process that has already locked it.

    ``replace``: whether to replace a testbed of the same name that is up and differs; else :class:`BackendError` is
    raised. Remains of a broken testbed are always replaced. A testbed that another process holds is used unchanged or
    not at all. ``holds``: this process holds the testbed; if it makes the testbed, it also takes it down.
    """
    cores = usable_cores()
    found, differs = Record.read(declared.name), []
    holder = None if holds else holder_of(declared.name)
    if holder is not None and replace:
        raise in_use(declared.name, f"{holder}, which holds it")
    killed = found is not None and found.holder is not None and holder is None  # the process that held it
    if found is not None and not killed and not faults(found):
        differs = differences(declared, found)
        if not differs:
            return Made(False)
        if not replace:
            raise BackendError(
                f"testbed: '{declared.name}' is up, but not as this file declares it ({'; '.join(differs)}): "
                "replace it with testbed up, remove it with testbed down, or give this one another 'name'"
            )
    if holder is not None:
        raise BackendError(
            f"testbed: '{declared.name}', which {holder} keeps up, has changed since it was made "
            f"({'; '.join(['it is gone'] if found is None else faults(found))}): end that process, or take down what "
            "is left with testbed down"
        )
    record = Record(declared=declared, cores=cores, holder=os.getpid() if holds else None)
    controller = cgroups.find_controller() if record.slow else None
    if controller is not None:
        record = record.model_copy(update={"base": str(controller.base)})
    _check_none_foreign(record, found)
    if found is not None:
        remove(found)
    record = record.model_copy(update={"switched": controller is not None and controller.lacks_switch()})
    record.write()
    try:
        for namespace in record.namespaces:
            network.make_namespace(namespace)
        network.connect(declared, record.hosts)
        for place in record.slow:
            assert controller is not None
            assert place.quota_cores is not None
            controller.make(place.cgroup, place.quota_cores)
        record.model_copy(update={"complete": True}).write()
    except BaseException:
        remove(record)
        raise
    return Made(True, tuple(differs))


def hold(declared: Declaration, tell: Callable[[Made], None]) -> None:
    """Bring a testbed up, pass the result to ``tell``, and keep it until standard input ends, this process is
    interrupted or the testbed is taken down. Then take it down, unless it was already up, as declared, before.

    Raises :class:`BackendError` where another process holds it or runs in it.
    """
    network.require_tools()
    with holding(declared.name):
        with locked(declared.name):
            made = make(declared, replace=True, holds=True)
        try:
            tell(made)
            standard_input = 0
            while is_recorded(declared.name):
                ready, _, _ = select.select([standard_input], [], [], LOOK_S)
                if ready and not os.read(standard_input, 4096):
                    break
        finally:
            with undisturbed():
                found = Record.read(declared.name)
                if found is not None and found.holder == os.getpid():
                    _take_down(found)


def remove_orphan(name: str) -> bool:
    """Remove a testbed whose holder, the process that keeps it up, was killed. Returns whether there was one."""
    network.require_tools()
    if not _is_orphan(Record.read(name)):
        return False
    with locked(name, LOCK_PATIENCE_S):
        found = Record.read(name)
        if found is None or not _is_orphan(found):
            return False
        remove(found)
    return True


def down(name: str) -> bool:
    """Remove a testbed and end the processes in it; return whether there was one."""
    network.require_tools()
    found = Record.read(name)
    if found is None:
        return False
    _take_down(found)
    with suppress(BackendError), holding(name, HOLD_PATIENCE_S):  # its holder sees that it is gone, and ends
        pass
    return True


def _take_down(found: Record) -> None:
    with undisturbed():
        if is_locked(found.name):
            _end_processes(found)  # the run that has locked it notices and lets go
        with locked(found.name, LOCK_PATIENCE_S):
            now = Record.read(found.name)
            if now is not None:
                remove(now)


def remove(record: Record) -> None:
    """Remove all that a record names, then the record. Raises :class:`BackendError` with all that cannot be removed."""
    failures = []
    with undisturbed():
        _end_processes(record)
        for namespace in record.namespaces:
            try:
                network.remove_namespace(namespace)
            except SimgnnError as error:
                failures.append(str(error))
        for folder in reversed(record.cgroups):
            try:
                cgroups.remove(folder)
            except OSError as error:
                failures.append(f"testbed: cgroup {folder}: {error.strerror}")
        if not failures:
            if record.switched and record.base is not None:
                cgroups.switch_off(Path(record.base))
            record.forget()
    if failures:
        raise BackendError(
            "\n".join([*failures, f"testbed: '{record.name}' is not completely removed; run testbed down again"])
        )


def differences(declared: Declaration, record: Record) -> list[str]:
    """List how a testbed that was made differs from a declaration, key by key; empty where it is the same."""
    made, wanted = record.declared.to_table(), declared.to_table()
    lines = [
        f"{key}: up {_shown(made.get(key))}, declared {_shown(wanted.get(key))}"
        for key in dict.fromkeys((*wanted, *made))
        if made.get(key) != wanted.get(key)
    ]
    cores = usable_cores()
    if record.cores != cores:
        lines.append(f"cores: up {_shown(list(record.cores))}, this process may use {_shown(list(cores))}")
    return lines


def _shown(value: object) -> str:
    return "none" if value in (None, {}) else repr(value)


def faults(record: Record) -> list[str]:
    """List what is missing or changed of the things that a testbed's record names; empty when the testbed is up."""
    absent = [namespace for namespace in record.namespaces if not network.exists(namespace)]
    absent += [str(folder) for folder in record.cgroups if not folder.is_dir()]
    wrong = [f"{name} is gone" for name in absent]
    if not record.complete:
        wrong.append("it was not made to its end")
    elif _is_orphan(record):
        wrong.append(f"process {record.holder}, which held it, has ended")
    elif not absent:
        declared, hosts = record.declared, record.hosts
        wrong += [f"{end} is not connected as declared" for end in network.unconnected(declared, hosts)]
        wrong += [f"{end} is not shaped as declared" for end in network.unshaped(declared, hosts)]
        for place in record.slow:
            folder = record.cgroup(place)
            if cgroups.limits_of(folder) != cgroups.limits(place.quota_cores or 0.0):
                wrong.append(f"rank {place.rank} has another quota than declared ({folder})")
    return wrong


def _is_orphan(record: Record | None) -> bool:
    """Return whether the holder of a testbed was killed by SIGKILL; after any other end the testbed is gone."""
    return record is not None and record.holder is not None and holder_of(record.name) is None


def status(name: str, wanted: Declaration | None = None) -> dict[str, Any]:
    """Describe a testbed in JSON values: parts, whether it is ``up``, how it ``differs`` from the ``wanted`` one."""
    network.require_tools()
    record = Record.read(name)
    if record is None:
        return {"name": name, "up": False, "faults": [], "differs": [], "hosts": [], "ranks": []}
    declared, wrong = record.declared, faults(record)
    return {
        "name": name,
        "up": not wrong,
        "in_use": is_locked(name) or holder_of(name) is not None,
        "faults": wrong,
        "differs": [] if wanted is None else differences(wanted, record),
        "declared": declared.to_table(),
        "hosts": [{**asdict(host), "processes": sorted(network.processes(host.namespace))} for host in record.hosts],
        "ranks": [
            {"rank": p.rank, "host": p.host.number, "share": declared.share(p.rank), "quota_cores": p.quota_cores}
            for p in record.ranks
        ],
        "cgroups": [str(folder) for folder in record.cgroups],
    }


def _check_none_foreign(record: Record, ours: Record | None) -> None:
    """Raise :class:`BackendError` if anything to be made exists without a record, since others may use it."""
    recorded = () if ours is None else (*ours.namespaces, *ours.cgroups)
    there = [f"namespace {name}" for name in record.namespaces if name not in recorded and network.exists(name)]
    there += [f"cgroup {folder}" for folder in record.cgroups if folder not in recorded and folder.exists()]
    if there:
        raise BackendError(
            f"testbed: {', '.join(there)}: already there, but no record says that a testbed made it; "
            "give this testbed another 'name', or remove it by hand (ip netns del, rmdir)"
        )


def _end_processes(record: Record) -> None:
    end = time.monotonic() + GRACE_S
    while (now := time.monotonic()) <= end + GRACE_S:
        inside = cgroups.members(record.cgroups).union(*map(network.processes, record.namespaces)) - {os.getpid()}
        if not inside:
            return
        for process in inside:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL if now > end else signal.SIGTERM)
        time.sleep(POLL_S)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Delay Ctrl-C, SIGTERM and SIGHUP until the block ends."""
    held = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
