"""Samples, their file, and those of finished stages, which are kept so that an interrupted calibration can go on.

A stage (communication, work of all ranks, work of one) is kept in one file of rank 0's host, whole or not at all. It is
used again only where everything that its times depend on is the same: hosts, ranks, threads, backend, suite and the
code that measures. Anything else, and anything older than a day, is measured anew, and the reason is reported.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from executor.microbench.world import World
from simgnn.hardware.profile.library import KEPT_FOR
from simgnn.tomlfile import write_atomically

FORMAT = "simgnn-samples"
VERSION = 2
MEASURING = ("microbench", "kernels", "handlers", "layers")
"""Folders of the executor whose code decides what is measured."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The measured time of one probe.

    ``seconds``: mean over repeats (outliers left out) of an op's time, averaged over the ranks that ran it. The time of
    a communication op counts from the latest start of any rank. ``last_s``: the same until the end of the slowest
    rank. ``mad_s``: median absolute deviation of the repeats from their median. ``hosts``: numbers of
    the hosts whose ranks took part, ``ranks`` in all; ``active``: ranks that worked at once on a host, each with
    ``threads`` threads. ``form`` distinguishes probes of one primitive (forward, weight gradient...). ``locality``:
    cumulative reuse profile of the index stream (``simgnn.graph.locality``). ``jitter_s``, ``drift_s``: see
    :func:`executor.microbench.timing.split_jitter`.
    """

    primitive: str
    form: str
    sizes: Mapping[str, float]
    hosts: Sequence[int]
    ranks: int
    active: int
    threads: int
    seconds: float
    last_s: float
    mad_s: float
    repeats: int
    locality: Sequence[float] | None = None
    jitter_s: float | None = None
    drift_s: float | None = None


def write_samples(path: Path, header: Mapping[str, Any], samples: Sequence[Sample]) -> None:
    """Write all samples as JSON, whole or not at all."""
    document = {"format": FORMAT, "version": VERSION, **header, "samples": [asdict(sample) for sample in samples]}
    write_atomically(path, json.dumps(document))


@dataclass(frozen=True)
class Kept:
    """The stored samples of finished stages of one group of ranks, in ``folder`` (None: nothing is stored).

    ``key``: all that times depend on, in JSON values. ``fresh``: measure all anew. ``tell`` gets one line per stage.
    """

    folder: Path | None
    key: Mapping[str, Any]
    tell: Callable[[str], None]
    fresh: bool = False

    def path(self, stage: str) -> Path:
        assert self.folder is not None
        size = "quick" if self.key.get("quick") else "full"
        return self.folder / f"{size}-{self.key.get('ranks')}-{stage}.json"

    def measured(self, stage: str, world: World, measure: Callable[[], list[Sample]]) -> list[Sample]:
        """Return the samples of a stage on rank 0 (else none): stored ones, or those of ``measure()``, now stored.

        Rank 0 decides for all ranks, since the file is on its disk.
        """
        found = self.load(stage) if world.rank == 0 and self.folder is not None else None
        if world.any(found is not None):
            self.tell(f"{stage}: kept from the calibration that was interrupted")
            return found or []
        samples = measure()
        if world.rank == 0 and self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            when = datetime.now(UTC).isoformat(timespec="seconds")
            write_samples(self.path(stage), {"started": when, "key": self.key}, samples)
        return samples

    def load(self, stage: str) -> list[Sample] | None:
        """Return stored samples if they may be used, else None, and report the reason."""
        path = self.path(stage)
        if self.fresh or not path.is_file():
            return None
        try:
            document = json.loads(path.read_text())
            key, when = document["key"], datetime.fromisoformat(document["started"])
            samples = [Sample(**entry) for entry in document["samples"]]
            mine, age = json.loads(json.dumps(self.key)), datetime.now(UTC) - when
            names = [name for name in dict.fromkeys((*mine, *key)) if mine.get(name) != key.get(name)]
            reason = f"not the same {', '.join(names)}" if names else None
            if reason is None and not timedelta(minutes=-5) <= age <= KEPT_FOR:
                reason = f"of {when.isoformat()}"
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            reason = f"{path.name} cannot be read ({type(error).__name__})"
        if reason is None and samples:
            return samples
        self.tell(f"{stage}: kept samples are refused and measured anew: {reason or 'there are none'}")
        return None


def stage_key(world: World, hosts: Sequence[Mapping[str, Any]], suite: Any, quick: bool) -> dict[str, Any]:
    """Return everything that the times of a stage depend on. ``hosts``: ranks and facts of each host."""
    return {
        "hosts": [dict(host) for host in hosts],
        "ranks": world.ranks,
        "threads": world.threads,
        "backend": world.backend,
        "quick": quick,
        "suite": hashlib.sha256(repr(asdict(suite)).encode()).hexdigest(),
        "code": code_version(),
    }


def code_version(root: Path | None = None) -> str:
    """Return the SHA-256 of the sources that measure, and of the versions of the packages that they use."""
    digest = hashlib.sha256()
    base = root or Path(__file__).resolve().parent.parent
    for path in sorted(path for folder in MEASURING for path in (base / folder).rglob("*.py")):
        digest.update(f"{path.relative_to(base)}\0".encode())
        digest.update(path.read_bytes())
    for package in ("simgnn", "torch", "numba", "numpy"):
        try:
            digest.update(f"{package} {version(package)};".encode())
        except PackageNotFoundError:
            digest.update(f"{package} as a folder;".encode())
    return digest.hexdigest()
