"""Making and removing a testbed. What the record names is removed, nothing else; also what a crash left half-made."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from executor.testbed import cgroups, network
from executor.testbed.declaration import Declaration
from executor.testbed.places import group_of, host_places, rank_places, usable_cores
from executor.testbed.state import Record, holder_of, holding, in_use, is_locked, locked
from simgnn.errors import BackendError, SimgnnError

GRACE_S = 3.0
LOCK_PATIENCE_S = 20.0
HOLD_PATIENCE_S = 5.0
POLL_S = 0.02


class Made(NamedTuple):
    """Whether anything had to be ``made``, and in what that ``differs`` from a testbed of the same name that was up
    and was replaced; empty where none was."""

    made: bool
    differs: tuple[str, ...] = ()


def up(declared: Declaration) -> Made:
    """Bring a testbed about. One of the same name that differs is replaced.

    Raises :class:`~simgnn.errors.ConfigError` without root, iproute2 or a CPU controller, and :class:`BackendError`
    where something of the same name is there that is not ours, or where it is in use.
    """
    network.require_tools()
    with locked(declared.name):
        return make(declared, replace=True)


def make(declared: Declaration, replace: bool, holds: bool = False) -> Made:
    """:func:`up` for a process that has locked the testbed already. Raises :class:`BackendError` where one of the same
    name is up that differs, unless it may ``replace`` it; what is left of one is always replaced. Where another process
    holds it, it is used as it is or not at all. ``holds``: this process does, and one that it makes goes with it."""
    cores = usable_cores()
    found, differs = Record.read(declared.name), []
    holder = None if holds else holder_of(declared.name)
    if holder is not None and replace:
        raise in_use(declared.name, f"{holder}, which holds it")
    left = found is not None and found.holder is not None and holder is None  # whoever held it was killed
    if found is not None and not left and not faults(found):
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
            f"testbed: '{declared.name}', which {holder} holds, is no longer what was made "
            f"({'; '.join(['it is gone'] if found is None else faults(found))}): end that process, or take down what "
            "is left with testbed down"
        )
    hosts, ranks = host_places(declared, cores), rank_places(declared, cores)
    namespaces = network.namespaces_of(declared, hosts)
    slow = [place for place in ranks if place.quota_cores is not None]
    controller = cgroups.find_controller() if slow else None
    folders: list[Path] = []
    if controller is not None:
        folders = [controller.folder(group) for group in (group_of(declared.name), *(p.cgroup for p in slow))]
    _refuse_foreign(namespaces, folders, found)
    if found is not None:
        remove(found)
    switch = None if controller is None else controller.switched_on()
    record = Record(
        declared.name,
        declared.to_table(),
        cores,
        tuple(namespaces),
        tuple(map(str, folders)),
        None if switch is None else str(switch),
        holder=os.getpid() if holds else None,
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
    return Made(True, tuple(differs))


def differences(declared: Declaration, record: Record) -> list[str]:
    """In what a testbed that was made differs from a declaration, key by key; empty where it is the same."""
    up, wanted = record.declared, declared.to_table()
    lines = [
        f"{key}: up {_shown(up.get(key))}, declared {_shown(wanted.get(key))}"
        for key in dict.fromkeys((*wanted, *up))
        if up.get(key) != wanted.get(key)
    ]
    cores = usable_cores()
    if record.cores != cores:
        lines.append(f"cores: up {_shown(list(record.cores))}, this process may use {_shown(list(cores))}")
    return lines


def _shown(value: object) -> str:
    return "none" if value in (None, {}) else repr(value)


def down(name: str) -> bool:
    """Remove a testbed, ending what runs in it; whether there was one."""
    network.require_tools()
    found = Record.read(name)
    if found is None:
        return False
    take_down(found)
    with suppress(BackendError), holding(name, HOLD_PATIENCE_S):  # whoever held it sees that it is gone, and ends
        pass
    return True


def take_down(found: Record) -> None:
    """Remove a testbed that has this record, ending what runs in it."""
    with undisturbed():
        if is_locked(found.name):
            _end_processes(found)  # the run that has locked it notices and lets go
        with locked(found.name, LOCK_PATIENCE_S):
            now = Record.read(found.name)
            if now is not None:
                remove(now)


def remove(record: Record) -> None:
    """Remove all that a record names, then the record. What cannot be removed is told, after all else is gone."""
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
                cgroups.remove(Path(folder))
            except OSError as error:
                failures.append(f"testbed: cgroup {folder}: {error.strerror}")
        if record.switched_on is not None and not failures:
            _switch_off(Path(record.switched_on))
        if not failures:
            record.forget()
    if failures:
        raise BackendError("\n".join([*failures, f"testbed: '{record.name}' is not wholly removed: down again"]))


def faults(record: Record) -> list[str]:
    """What a testbed lacks of what its record says; empty when it is up."""
    declared = _declared(record)
    absent = [namespace for namespace in record.namespaces if not network.exists(namespace)]
    absent += [folder for folder in record.cgroups if not Path(folder).is_dir()]
    wrong = [f"{name} is gone" for name in absent]
    if not record.complete:
        wrong.append("it was not made to its end")
    elif is_orphan(record):
        wrong.append(f"process {record.holder}, which held it, has ended")
    elif not absent:
        hosts = host_places(declared, record.cores)
        wrong += [f"{end} is not connected as declared" for end in network.unconnected(declared, hosts)]
        wrong += [f"{end} is not shaped as declared" for end in network.unshaped(declared, hosts)]
        wrong += _wrong_quotas(declared, record)
    return wrong


def is_orphan(record: Record | None) -> bool:
    """Whether a testbed was made to go with a process that has ended: by SIGKILL, or it would be gone."""
    return record is not None and record.holder is not None and holder_of(record.name) is None


def _wrong_quotas(declared: Declaration, record: Record) -> list[str]:
    """Ranks whose quota, as the kernel keeps it, is another than the declared one."""
    wrong = []
    for place in rank_places(declared, record.cores):
        if place.quota_cores is not None:
            folder = next(Path(folder) for folder in record.cgroups if folder.endswith(f"/{place.cgroup}"))
            period, quota = cgroups.limits(place.quota_cores)
            if cgroups.limits_of(folder) != (period, quota):
                wrong.append(f"rank {place.rank} has another quota than declared ({folder})")
    return wrong


def _declared(record: Record) -> Declaration:
    return Declaration.parse(record.declared, f"the record of '{record.name}'")


def status(name: str, wanted: Declaration | None = None) -> dict[str, Any]:
    """What a testbed consists of, whether it is ``up``, how it ``differs`` from the ``wanted`` one; plain values, as
    JSON writes them."""
    network.require_tools()
    record = Record.read(name)
    if record is None:
        return {"name": name, "up": False, "faults": [], "differs": [], "hosts": [], "ranks": []}
    declared = _declared(record)
    wrong = faults(record)
    hosts = [
        {**asdict(host), "processes": sorted(network.processes(host.namespace))}
        for host in host_places(declared, record.cores)
    ]
    ranks = [
        {"rank": p.rank, "host": p.host.number, "share": declared.share(p.rank), "quota_cores": p.quota_cores}
        for p in rank_places(declared, record.cores)
    ]
    return {
        "name": name, "up": not wrong, "in_use": is_locked(name) or holder_of(name) is not None, "faults": wrong,
        "differs": [] if wanted is None else differences(wanted, record),
        "declared": declared.to_table(),
        "hosts": hosts, "ranks": ranks, "cgroups": list(record.cgroups),
    }  # fmt: skip


def _refuse_foreign(namespaces: list[str], folders: list[Path], record: Record | None) -> None:
    """What is there without a record is not ours to remove or to use."""
    ours = () if record is None else (*record.namespaces, *record.cgroups)
    there = [f"namespace {name}" for name in namespaces if name not in ours and network.exists(name)]
    there += [f"cgroup {folder}" for folder in folders if str(folder) not in ours and folder.exists()]
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
def undisturbed() -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP wait until what was begun is done."""
    held = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
