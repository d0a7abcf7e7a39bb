"""What a testbed has made, on file: written before anything is made, so that whatever stops us, all can be removed."""

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any, Self

from executor.testbed import network
from executor.testbed.cgroups import is_cgroup, switch_of_groups
from executor.testbed.declaration import Declaration
from executor.testbed.places import group_of, host_places, rank_places
from simgnn.errors import BackendError, ConfigError
from simgnn.tomlfile import write_atomically

FOLDER = "SIMGNN_TESTBED_STATE"
"""Environment variable: folder of the records. The default lies where reboots empty it, as they remove namespaces."""
DEFAULT_FOLDER = "/run/simgnn-testbed"
FORMAT = 1
POLL_S = 0.05
LEAST_PATIENCE_S = 0.2
"""Patience with a lock: whoever looks whether it is held takes it for a moment."""


def state_folder() -> Path:
    """Folder of the records and locks."""
    return Path(os.environ.get(FOLDER, DEFAULT_FOLDER))


@dataclass(frozen=True)
class Record:
    """What was made, or was about to be. ``cgroups``: folders, parents first; ``switched_on``: the file through which
    groups were given the CPU controller, where it was we who did; ``cores``: numbers that the hosts divide; ``holder``:
    the process that it was made for, with which it goes, None where it stays."""

    name: str
    declared: dict[str, Any]
    cores: tuple[int, ...]
    namespaces: tuple[str, ...]
    cgroups: tuple[str, ...] = ()
    switched_on: str | None = None
    complete: bool = False
    holder: int | None = None

    @classmethod
    def read(cls, name: str) -> Self | None:
        """The record of a testbed, None where nothing was made."""
        path = _path(name)
        try:
            table = json.loads(path.read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise BackendError(f"testbed: its record {path} cannot be read ({error}); {_by_hand(name)}") from error
        if not isinstance(table, dict) or table.pop("format", None) != FORMAT:
            raise BackendError(f"testbed: {path} is no record of this version (format {FORMAT}); {_by_hand(name)}")
        try:
            lists = {key: tuple(table[key]) for key in ("cores", "namespaces", "cgroups")}
            record = cls(**{**table, **lists})
            record._check(name)
        except (KeyError, TypeError, ValueError, ConfigError) as error:
            why = "; ".join(str(error).splitlines())
            raise BackendError(f"testbed: {path} is not a whole record ({why}); {_by_hand(name)}") from error
        return record

    def _check(self, name: str) -> None:
        """Raise :class:`ValueError` or :class:`ConfigError` unless this names what a testbed of its declaration makes,
        and nothing else: it is all removed."""
        declared = Declaration.parse(self.declared, "declared")
        if not self.name == declared.name == name:
            raise ValueError(f"it is of '{self.name}', declared '{declared.name}'")
        numbers = [core for core in self.cores if isinstance(core, int) and core >= 0]
        if not numbers or len(numbers) != len(self.cores):
            raise ValueError(f"cores: got {list(self.cores)}, expected numbers of cores")
        namespaces = network.namespaces_of(declared, host_places(declared, self.cores))
        if list(self.namespaces) != namespaces:
            raise ValueError(f"namespaces: got {list(self.namespaces)}, expected {namespaces}")
        slow = [place.cgroup for place in rank_places(declared, self.cores) if place.quota_cores is not None]
        base = Path(self.cgroups[0]).parent if self.cgroups else Path()
        groups = [str(base / group) for group in (group_of(name), *slow)] if slow else []
        if list(self.cgroups) != groups or (slow and not is_cgroup(base)):
            raise ValueError(f"cgroups: got {list(self.cgroups)}, expected those of {len(slow)} slow rank(s)")
        if self.switched_on is not None and (not slow or self.switched_on != str(switch_of_groups(base))):
            raise ValueError(f"switched_on: got {self.switched_on}, expected that of its cgroups")
        if not isinstance(self.complete, bool) or not isinstance(self.holder, int | None):
            raise ValueError(f"complete, holder: got {self.complete}, {self.holder}")

    def write(self) -> None:
        """Keep it, whole or not at all."""
        _make_folder()
        write_atomically(_path(self.name), json.dumps({"format": FORMAT, **asdict(self)}, indent=2) + "\n")

    def finished(self) -> Self:
        """The same, all made."""
        return replace(self, complete=True)

    def forget(self) -> None:
        """Remove the record."""
        _path(self.name).unlink(missing_ok=True)


def recorded_names() -> list[str]:
    """Testbeds that have a record."""
    folder = state_folder()
    return sorted(path.stem for path in folder.glob("*.json")) if folder.is_dir() else []


def locked(name: str, patience_s: float = LEAST_PATIENCE_S) -> AbstractContextManager[None]:
    """Hold a testbed: one change or run at a time. The lock ends with the process that holds it, however it ends.

    Raises :class:`BackendError` where another process still holds it after ``patience_s``.
    """
    return _held(name, "lock", patience_s)


def holding(name: str, patience_s: float = LEAST_PATIENCE_S) -> AbstractContextManager[None]:
    """Be the one process that a testbed is up for, while runs inside lock it one after the other.

    Raises :class:`BackendError` where another process still is after ``patience_s``.
    """
    return _held(name, "hold", patience_s)


def is_locked(name: str) -> bool:
    """Whether a process changes a testbed or runs in it now."""
    return _user(name, "lock") is not None


def holder_of(name: str) -> str | None:
    """The process that a testbed is up for, for people; None where it is up for none."""
    return _user(name, "hold")


def in_use(name: str, user: str) -> BackendError:
    """What to say to whoever would change a testbed that is another's."""
    return BackendError(f"testbed: '{name}' is in use by {user}; wait for it, or end it with testbed down")


def is_recorded(name: str) -> bool:
    """Whether a testbed has a record, whatever that says."""
    return _path(name).is_file()


@contextmanager
def _held(name: str, kind: str, patience_s: float) -> Iterator[None]:
    _make_folder()
    end = time.monotonic() + patience_s
    with _lock_file(name, kind).open("a+") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= end:
                    raise in_use(name, _told(file)) from None
                time.sleep(POLL_S)
        file.truncate(0)
        file.write(f"process {os.getpid()}")
        file.flush()
        yield


def _user(name: str, kind: str) -> str | None:
    path = _lock_file(name, kind)
    if not path.is_file():
        return None
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return _told(file)
    return None


def _told(file: IO[str]) -> str:
    file.seek(0)
    return file.read().strip() or "another process"


def _lock_file(name: str, kind: str) -> Path:
    return state_folder() / f"{name}.{kind}"


def _make_folder() -> None:
    try:
        state_folder().mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{FOLDER}: got {state_folder()}, expected a folder that can be made and written ({error.strerror}); "
            f"default: {DEFAULT_FOLDER}"
        ) from error


def _by_hand(name: str) -> str:
    made = f"simgnn-{name}"
    return f"remove what it made, if anything ({made}-* of ip netns list, cgroup {made}), then that file"


def _path(name: str) -> Path:
    return state_folder() / f"{name}.json"
