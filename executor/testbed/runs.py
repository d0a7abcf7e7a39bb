"""Ranks inside a testbed: a prepared run, or any command once a rank."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from executor.launch.launcher import INTERRUPTED, Seat, ended_together, environment_of, launch, watch
from executor.state.plan import RunPlan
from executor.testbed import lifecycle, network
from executor.testbed.declaration import Declaration
from executor.testbed.places import RankPlace, rank_places, usable_cores
from executor.testbed.state import Record, locked
from executor.world.environment import LAUNCHER, TESTBED, threads_per_rank
from simgnn.errors import ConfigError
from simgnn.tomlfile import write_toml

MASTER_PORT = 29500
"""Free: nothing else is in the namespace while it is held."""
TESTBED_FILE = "testbed.toml"
WAITING = {"OMP_WAIT_POLICY": "passive"}
"""Of a rank with a quota: threads that spin while they wait for one another would use up the time of those that work,
and of one that the kernel has stopped until the next period."""
WAITING_CHOICES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
"""How a user says otherwise."""


def run(declared: Declaration, root: Path, arguments: Sequence[str]) -> int:
    """Train a prepared run directory inside the testbed; the exit status. It is brought up for the run if it is not up.

    Raises :class:`ConfigError` where the run was prepared for other hosts.
    """
    plan = RunPlan.open(root)
    if "--resume" not in arguments:
        plan.check_unfinished()
    hosts = tuple(int(host) for host in plan.program.hosts)
    if hosts != declared.rank_hosts():
        raise ConfigError(
            f"DIR: got {root}, prepared for {plan.ranks} ranks on {len(set(hosts))} host(s), expected "
            f"{declared.hosts} host(s) of {declared.ranks_per_host}: prepare it again with "
            f"--set cluster.hosts={declared.hosts} --set cluster.ranks_per_host={declared.ranks_per_host}"
        )
    _check_threads(declared, plan)
    with _held(declared) as (record, places):
        write_toml(root / TESTBED_FILE, declared.to_table())
        return launch(root, arguments, [_seat(declared, record, place) for place in places])


def execute(declared: Declaration, command: Sequence[str]) -> int:
    """Run a command once a rank, with the variables that torchrun would set; the first exit status that is not 0.

    Raises :class:`ConfigError` where there is no such command, before a testbed is brought up for it.
    """
    if shutil.which(command[0]) is None:
        raise ConfigError(
            f"CMD: got '{command[0]}', expected a program that is in PATH, or the path of a file that can be started"
        )
    with _held(declared) as (record, places):
        master = {"MASTER_ADDR": places[0].host.address or "127.0.0.1", "MASTER_PORT": str(MASTER_PORT)}
        try:
            with ended_together() as running:
                for place in places:
                    seat = _seat(declared, record, place)
                    environment = {**environment_of(place.rank, len(places), None, seat), **master}
                    environment.pop(LAUNCHER)  # it tells the ranks of a run; this command may be anything
                    running.append(subprocess.Popen([*seat.prefix, *command], env=environment))
                failed = watch(running)
                statuses = [process.poll() for process in running]
        except KeyboardInterrupt:
            return INTERRUPTED
        return next(_status(status) for status in statuses if status) if failed else 0


def _check_threads(declared: Declaration, plan: RunPlan) -> None:
    """A quota is a share of the cores that a rank's threads fill: not of the speed of fewer."""
    wanted = plan.threads_per_rank
    for place in rank_places(declared, usable_cores()):
        threads = threads_per_rank(None, declared.ranks_per_host, len(place.host.cores))
        if place.quota_cores is not None and wanted not in (None, threads):
            raise ConfigError(
                f"hardware.threads_per_rank: got {wanted}, expected {threads}, or none: rank {place.rank} of testbed "
                f"'{declared.name}' is slow, and its quota of {place.quota_cores:g} cores is the declared share of "
                f"{threads} thread(s); prepare it again without it"
            )


def _status(status: int) -> int:
    return 128 - status if status < 0 else status


@contextmanager
def _held(declared: Declaration) -> Iterator[tuple[Record, tuple[RankPlace, ...]]]:
    """The record and the places of a testbed that is up, for this process alone; taken down if it was not up before."""
    network.require_tools()
    with locked(declared.name):
        made = lifecycle.make(declared, replace=False).made
        record = Record.read(declared.name)
        assert record is not None
        try:
            yield record, rank_places(declared, record.cores)
        finally:
            if made:
                lifecycle.remove(record)


def _seat(declared: Declaration, record: Record, place: RankPlace) -> Seat:
    cores = ",".join(map(str, place.host.cores))
    prefix = [sys.executable, "-m", "executor.testbed.enter", "--parent", str(os.getpid())]
    prefix += ["--namespace", place.host.namespace, "--cores", cores]
    if place.quota_cores is not None:
        folder = next(folder for folder in record.cgroups if folder.endswith(f"/{place.cgroup}"))
        prefix += ["--cgroup", folder]
    waiting = {}
    if place.quota_cores is not None and not any(name in os.environ for name in WAITING_CHOICES):
        waiting = WAITING
    described = {"declared": declared.to_table(), "place": asdict(place)}
    return Seat(
        prefix=(*prefix, "--"),
        local_rank=place.local_rank,
        local_ranks=declared.ranks_per_host,
        cores=len(place.host.cores),
        interface=place.host.interface,
        variables={TESTBED: json.dumps(described), **waiting},
    )
