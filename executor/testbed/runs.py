"""Runs inside a testbed: a prepared run, a command once per rank, the measurement of a loaded link."""

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from executor.launch.launcher import INTERRUPTED, Seat, environment_of, launch, run_together
from executor.microbench.load_samples import load_of, read_load
from executor.state.plan import RunPlan
from executor.testbed import lifecycle, network
from executor.testbed.declaration import Declaration, RankPlace, rank_places, usable_cores
from executor.testbed.state import Record, locked
from executor.world.environment import LAUNCHER, TESTBED, threads_per_rank
from simgnn.errors import BackendError, ConfigError
from simgnn.hardware.profile.communication import Load
from simgnn.record.rundir import RunDirectory
from simgnn.tomlfile import write_toml

MASTER_PORT = 29500
"""Always free, since nothing else runs in the namespace while it is locked."""
WAITING = {"OMP_WAIT_POLICY": "passive"}
"""Variables of a rank with a quota: threads that spin while they wait would use up the processor time of those that
work, and of those that the kernel has stopped until the next period."""
WAITING_CHOICES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
"""Variables by which a user decides how threads wait."""
LEAST_LOADED_RATE = 1e6
"""Bytes per second: on a slower link, the messages that fill it would take minutes."""


def run(declared: Declaration, root: Path, arguments: Sequence[str]) -> int:
    """Train a prepared run directory inside the testbed, which is brought up if it is not up; return the exit status.

    Raises :class:`ConfigError` where the run was prepared for other hosts.
    """
    plan, kept = RunPlan.open(root), RunDirectory(root)
    if "--resume" in arguments:
        _check_same(declared, kept)
    else:
        plan.check_unfinished()
    hosts = tuple(int(host) for host in plan.program.hosts)
    if hosts != declared.rank_hosts():
        raise ConfigError(
            f"DIR: got {root}, a run that is prepared for {plan.ranks} ranks on {len(set(hosts))} host(s), expected "
            f"{declared.hosts} host(s) of {declared.ranks_per_host}: prepare it again with "
            f"--set cluster.hosts={declared.hosts} --set cluster.ranks_per_host={declared.ranks_per_host}"
        )
    _check_threads(declared, plan)
    with _held(declared) as record:
        write_toml(kept.testbed, declared.to_table())
        return launch(root, arguments, [_seat(record, place) for place in record.ranks])


def execute(declared: Declaration, command: Sequence[str]) -> int:
    """Run a command once per rank, with torchrun's variables; return the first exit status that is not 0, or 0.

    Raises :class:`ConfigError` where the command does not exist, before a testbed is brought up for it.
    """
    if shutil.which(command[0]) is None:
        raise ConfigError(f"CMD: got '{command[0]}', expected a program in PATH, or the path of an executable file")
    with _held(declared) as record:
        places = record.ranks
        master = {"MASTER_ADDR": places[0].host.address or "127.0.0.1", "MASTER_PORT": str(MASTER_PORT)}
        seats = [_seat(record, place) for place in places]
        environments = [environment_of(rank, len(seats), None, seat) | master for rank, seat in enumerate(seats)]
        for environment in environments:
            environment.pop(LAUNCHER)  # only for ranks of a run; this command may be anything
        return run_together([[*seat.prefix, *command] for seat in seats], environments)


def check_measurable(declared: Declaration) -> None:
    """Raise :class:`ConfigError` where no load can be measured: a single host, a link too slow, no root."""
    if declared.link is None:
        raise ConfigError(
            "--measure-load: got a testbed of one host, which has no link, expected hosts = 2 or more; leave it out"
        )
    if declared.link < LEAST_LOADED_RATE:
        raise ConfigError(
            f"--measure-load: got link = {declared.link * 8 / 1e6:g} Mbit/s, expected at least "
            f"{LEAST_LOADED_RATE * 8 / 1e6:g} Mbit/s: messages of 1 MB fill it, again and again; leave it out"
        )
    network.require_tools()


def measure_load(declared: Declaration, bytes_per_s: float) -> Load:
    """Measure how messages that fill the link from the first host to the second affect others; takes half a minute or
    more. ``bytes_per_s``: payload that the link passes.

    The testbed is brought up if it is not up. Raises :class:`BackendError` where the ranks fail.
    """
    with tempfile.TemporaryDirectory(prefix="simgnn-load-") as folder:
        out = Path(folder) / "load.json"
        status = execute(declared, [sys.executable, "-P", "-m", "executor.microbench.loaded", "--out", str(out)])
        if status == INTERRUPTED:
            raise KeyboardInterrupt
        if status:
            raise BackendError(
                f"--measure-load: the ranks ended with status {status}; see their messages above. "
                "Without it the profile states no load"
            )
        return load_of(read_load(out), bytes_per_s)


def _check_same(declared: Declaration, run: RunDirectory) -> None:
    """Raise :class:`ConfigError` where a run would be resumed in another testbed than it was trained in: its result has
    one median time of all its epochs."""
    if not run.testbed.is_file():
        raise ConfigError(
            f"--resume: got {run.root}, which was not trained inside a testbed; expected one that was: leave --resume "
            f"out to train it anew inside, or go on outside: simgnn run EXPERIMENT --out {run.root} --resume"
        )
    there, here = Declaration.load(run.testbed).to_table(), declared.to_table()
    other = [key for key in sorted({*there, *here} - {"name"}) if there.get(key) != here.get(key)]
    if other:
        got, expected = ({key: table.get(key) for key in other} for table in (here, there))
        raise ConfigError(
            f"--resume: got a testbed with {_shown(got)}, expected {_shown(expected)}, as in {run.testbed}, since a "
            f"result has one median time of all its epochs: {run.resumes_in_testbed()}"
        )


def _shown(entries: Mapping[str, object]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in entries.items())


def _check_threads(declared: Declaration, plan: RunPlan) -> None:
    """Raise :class:`ConfigError` unless slow ranks have the default threads: quotas are shares of a core per thread."""
    wanted = plan.threads_per_rank
    for place in rank_places(declared, usable_cores()):
        threads = threads_per_rank(None, declared.ranks_per_host, len(place.host.cores))
        if place.quota_cores is not None and wanted not in (None, threads):
            raise ConfigError(
                f"hardware.threads_per_rank: got {wanted}, expected {threads}, or none: rank {place.rank} of testbed "
                f"'{declared.name}' is slow, and its quota of {place.quota_cores:g} cores is the declared share of "
                f"{threads} thread(s). Prepare the run again without it"
            )


@contextmanager
def _held(declared: Declaration) -> Iterator[Record]:
    """Yield the record of a testbed that is up and locked; take it down at the end if it was not up before."""
    network.require_tools()
    with locked(declared.name):
        made = lifecycle.make(declared, replace=False).made
        record = Record.read(declared.name)
        assert record is not None
        try:
            yield record
        finally:
            if made:
                lifecycle.remove(record)


def _seat(record: Record, place: RankPlace) -> Seat:
    host, waiting = place.host, {}
    cgroup = "-" if place.quota_cores is None else str(record.cgroup(place))
    if place.quota_cores is not None and not any(name in os.environ for name in WAITING_CHOICES):
        waiting = WAITING
    cores = ",".join(map(str, host.cores))
    described = {"declared": record.declared.to_table(), "place": asdict(place)}
    return Seat(
        prefix=(sys.executable, "-P", "-m", "executor.testbed.enter", str(os.getpid()), host.namespace, cores, cgroup),
        local_rank=place.local_rank,
        local_ranks=record.declared.ranks_per_host,
        cores=len(host.cores),
        interface=host.interface,
        variables={TESTBED: json.dumps(described), **waiting},
    )
