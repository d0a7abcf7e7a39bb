"""Making and removing a testbed. What the record names is removed, nothing else; also what a crash left half-made."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from executor.testbed import cgroups, network
from executor.testbed.declaration import Declaration
from executor.testbed.places import group_of, host_places, rank_places, usable_cores
from executor.testbed.state import Record, is_locked, locked
from simgnn.errors import BackendError, SimgnnError

GRACE_S = 3.0
LOCK_PATIENCE_S = 20.0
POLL_S = 0.02


def up(declared: Declaration) -> bool:
    """Bring a testbed about; whether anything had to be made. One of the same name that differs is replaced.

    Raises :class:`~simgnn.errors.ConfigError` without root, iproute2 or a CPU controller, and :class:`BackendError`
    where something of the same name is there that is not ours, or where it is in use.
    """
    network.require_tools()
    with locked(declared.name):
        return make(declared)


def make(declared: Declaration) -> bool:
    """:func:`up` for a process that holds the testbed already."""
    cores = usable_cores()
    found = Record.read(declared.name)
    if found is not None:
        if found.declared == declared.to_table() and found.cores == cores and not faults(declared, found):
            return False
        remove(found)
    hosts, ranks = host_places(declared, cores), rank_places(declared, cores)
    namespaces = network.namespaces_of(declared, hosts)
    slow = [place for place in ranks if place.quota_cores is not None]
    controller = cgroups.find_controller() if slow else None
    folders: list[Path] = []
    switch = None
    if controller is not None:
        folders = [controller.folder(group) for group in (group_of(declared.name), *(p.cgroup for p in slow))]
        switch = controller.switched_on()
    _refuse_foreign(namespaces, folders)
    record = Record(
        declared.name,
        declared.to_table(),
        cores,
        tuple(namespaces),
        tuple(map(str, folders)),
        None if switch is None else str(switch),
    )
    record.write()
    try:
        for namespace in namespaces:
            network.make_namespace(namespace)
        network.connect(declared, hosts)
        for place in slow:
            assert controller is not None
            assert place.quota_cores is not None
            controller.make(place.cgroup, place.quota_cores)
        record.finished().write()
    except BaseException:
        remove(record)
        raise
    return True


def down(name: str) -> bool:
    """Remove a testbed, ending what runs in it; whether there was one."""
    network.require_tools()
    found = Record.read(name)
    if found is None:
        return False
    if is_locked(name):
        _end_processes(found)  # the run that holds it notices and lets go
    with locked(name, LOCK_PATIENCE_S):
        found = Record.read(name)
        if found is not None:
            remove(found)
    return True


def remove(record: Record) -> None:
    """Remove all that a record names, then the record. What cannot be removed is told, after all else is gone."""
    failures = []
    with _undisturbed():
        _end_processes(record)
        for namespace in record.namespaces:
            try:
                network.remove_namespace(namespace)
            except SimgnnError as error:
                failures.append(str(error))
        for folder in reversed(record.cgroups):
            try:
                cgroups.remove(Path(folder))
            except OSError as error:
                failures.append(f"testbed: cgroup {folder}: {error.strerror}")
        if record.switched_on is not None and not failures:
            _switch_off(Path(record.switched_on))
        if not failures:
            record.forget()
    if failures:
        raise BackendError("\n".join([*failures, f"testbed: '{record.name}' is not wholly removed: down again"]))


def faults(declared: Declaration, record: Record) -> list[str]:
    """What a testbed lacks of what its record says; empty when it is up."""
    absent = [namespace for namespace in record.namespaces if not network.exists(namespace)]
    absent += [folder for folder in record.cgroups if not Path(folder).is_dir()]
    wrong = [f"{name} is gone" for name in absent]
    if not record.complete:
        wrong.append("it was not made to its end")
    elif not absent:
        ends = network.unshaped(declared, host_places(declared, record.cores))
        wrong += [f"{end} is not shaped as declared" for end in ends]
    return wrong


def status(name: str) -> dict[str, Any]:
    """What a testbed consists of and whether it is ``up``; plain values, as JSON writes them."""
    network.require_tools()
    record = Record.read(name)
    if record is None:
        return {"name": name, "up": False, "faults": [], "hosts": [], "ranks": []}
    declared = Declaration.parse(record.declared, f"the record of '{name}'")
    wrong = faults(declared, record)
    hosts = [
        {**asdict(host), "processes": sorted(network.processes(host.namespace))}
        for host in host_places(declared, record.cores)
    ]
    ranks = [
        {"rank": p.rank, "host": p.host.number, "share": declared.share(p.rank), "quota_cores": p.quota_cores}
        for p in rank_places(declared, record.cores)
    ]
    return {
        "name": name, "up": not wrong, "in_use": is_locked(name), "faults": wrong,
        "declared": declared.to_table(),
        "hosts": hosts, "ranks": ranks, "cgroups": list(record.cgroups),
    }  # fmt: skip


def _refuse_foreign(namespaces: list[str], folders: list[Path]) -> None:
    """What is there without a record is not ours to remove or to use."""
    there = [f"namespace {name}" for name in namespaces if network.exists(name)]
    there += [f"cgroup {folder}" for folder in folders if folder.exists()]
    if there:
        raise BackendError(
            f"testbed: {', '.join(there)}: already there, but no record says that a testbed made it; "
            "give this testbed another 'name', or remove it by hand (ip netns del, rmdir)"
        )


def _end_processes(record: Record) -> None:
    """End all that runs inside: politely, then not."""
    sent = signal.SIGTERM
    end = time.monotonic() + GRACE_S
    while True:
        inside = cgroups.members([Path(folder) for folder in record.cgroups])
        for namespace in record.namespaces:
            inside |= network.processes(namespace)
        inside.discard(os.getpid())
        if not inside or time.monotonic() > end + GRACE_S:
            return
        if time.monotonic() > end:
            sent = signal.SIGKILL
        for process in inside:
            _send(process, sent)
        time.sleep(POLL_S * 5)


def _send(process: int, number: signal.Signals) -> None:
    try:
        os.kill(process, number)
    except ProcessLookupError:
        return


def _switch_off(switch: Path) -> None:
    """Take back the controller from groups of the base; others who have come to use it keep it."""
    idle = {"cpu.max": "max", "cpu.weight": "100"}
    files = [folder / name for folder in switch.parent.iterdir() for name in idle]
    if all(file.read_text().split()[0] == idle[file.name] for file in files if file.is_file()):
        try:
            switch.write_text("-cpu")
        except OSError:
            return


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Ctrl-C and SIGTERM wait until what was begun is done."""
    held = {signal.SIGINT, signal.SIGTERM}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
