"""Samples of finished stages, kept until the whole calibration is through, so that an interrupted one goes on.

A stage (communication, work of all ranks, work of one) is kept in one file of rank 0's host, whole or not at all. It is
used again only where everything that its times depend on is the same: hosts, ranks, threads, backend, suite and the
code that measures. Anything else, and anything older than a day, is refused with the reason and measured anew.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from executor.microbench.sample import Sample, write_samples
from executor.microbench.world import World
from simgnn.hardware.profile.library import KEPT_FOR

MEASURING = ("microbench", "kernels", "handlers", "layers")
"""Folders of the executor whose code decides what is measured."""


def code_version(root: Path | None = None) -> str:
    """SHA-256 over the sources that measure, and the version of torch."""
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


@dataclass(frozen=True)
class Kept:
    """The kept stages of one group of ranks. ``key``: all that times depend on, as plain JSON values.

    ``folder`` None: nothing is kept. ``fresh``: what is there is not used. ``tell`` receives one line about each.
    """

    folder: Path | None
    key: Mapping[str, Any]
    tell: Callable[[str], None]
    fresh: bool = False

    def path(self, stage: str) -> Path:
        """Where a stage is kept."""
        assert self.folder is not None
        size = "quick" if self.key.get("quick") else "full"
        return self.folder / f"{size}-{self.key.get('ranks')}-{stage}.json"

    def measured(self, stage: str, world: World, measure: Callable[[], list[Sample]]) -> list[Sample]:
        """The samples of a stage: kept ones, or those of ``measure()``, which are then kept. Empty but on rank 0.

        Rank 0 decides for all: its disk has the file.
        """
        found = self.load(stage) if world.rank == 0 and self.folder is not None else None
        if world.any(found is not None):
            self.tell(f"{stage}: kept from the calibration that was interrupted")
            return found or []
        samples = measure()
        if world.rank == 0 and self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            when = datetime.now(UTC).isoformat(timespec="seconds")
            write_samples(self.path(stage), {"started": when, "key": self._plain()}, samples)
        return samples

    def load(self, stage: str) -> list[Sample] | None:
        """Kept samples that may be used, or None; what is refused is told with its reason."""
        path = self.path(stage)
        if self.fresh or not path.is_file():
            return None
        try:
            document = json.loads(path.read_text())
            key, when = document["key"], datetime.fromisoformat(document["started"])
            samples = [Sample(**entry) for entry in document["samples"]]
            reason = self._differs(key) or _age(when)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            reason = f"{path.name} cannot be read ({type(error).__name__})"
        if reason is None and samples:
            return samples
        self.tell(f"{stage}: kept samples are refused and measured anew: {reason or 'there are none'}")
        return None

    def _plain(self) -> dict[str, Any]:
        plain: dict[str, Any] = json.loads(json.dumps(self.key))
        return plain

    def _differs(self, key: Mapping[str, Any]) -> str | None:
        mine = self._plain()
        names = [name for name in dict.fromkeys((*mine, *key)) if mine.get(name) != key.get(name)]
        return f"not the same {', '.join(names)}" if names else None


def _age(when: datetime) -> str | None:
    passed = datetime.now(UTC) - when
    return None if timedelta() <= passed + timedelta(minutes=5) and passed <= KEPT_FOR else f"of {when.isoformat()}"


def stage_key(world: World, hosts: Sequence[Mapping[str, Any]], suite: Any, quick: bool) -> dict[str, Any]:
    """Everything that the times of a stage depend on. ``hosts``: ranks and facts of each."""
    return {
        "hosts": [dict(host) for host in hosts],
        "ranks": world.ranks,
        "threads": world.threads,
        "backend": world.backend,
        "quick": quick,
        "suite": hashlib.sha256(repr(asdict(suite)).encode()).hexdigest(),
        "code": code_version(),
    }
