"""Records what a testbed has made, and locks it. The record is written first, so that everything can be removed."""

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, Annotated, Literal, Self

from pydantic import Field, StrictBool, StrictInt, StrictStr, ValidationError

from executor.testbed.cgroups import is_cgroup
from executor.testbed.declaration import (
    Declaration,
    HostPlace,
    RankPlace,
    group_of,
    host_places,
    namespaces_of,
    rank_places,
)
from simgnn.errors import BackendError, ConfigError
from simgnn.hardware.profile.quantities import Strict
from simgnn.schema_faults import sentences
from simgnn.tomlfile import write_atomically

FOLDER = "SIMGNN_TESTBED_STATE"
"""Environment variable: folder of the records. Reboots empty the default folder, as they remove namespaces."""
DEFAULT_FOLDER = "/run/simgnn-testbed"
POLL_S = 0.05
LEAST_PATIENCE_S = 0.2
"""Shortest wait for a lock, since a process that checks whether a lock is held takes it for a moment."""


class Record(Strict):
    """What a testbed has made, or is about to make.

    ``cores``: core numbers that the hosts divide. ``base``: folder of the cgroups of slow ranks, None without slow
    ranks. ``switched``: whether this testbed gave groups below ``base`` the CPU controller. ``complete``: whether all
    was made. ``holder``: id of the process with which the testbed ends, None where it stays.
    """

    format: Literal[2] = 2
    declared: Declaration
    cores: Annotated[tuple[Annotated[StrictInt, Field(ge=0)], ...], Field(min_length=1)]
    base: StrictStr | None = None
    switched: StrictBool = False
    complete: StrictBool = False
    holder: StrictInt | None = None

    @classmethod
    def read(cls, name: str) -> Self | None:
        """Read the record of a testbed; None where nothing was made. Raises :class:`BackendError` for a damaged one."""
        path = _path(name)
        try:
            record = cls.model_validate_json(path.read_text())
            if record.name != name or (record.slow and not is_cgroup(Path(record.base or "/"))):
                raise ValueError(f"got name '{record.name}' and base {record.base}, which are another testbed's")
        except FileNotFoundError:
            return None
        except ValidationError as error:
            raise _damaged(path, "; ".join(sentences(cls, error))) from None
        except (OSError, ValueError) as error:
            raise _damaged(path, str(error)) from error
        return record

    def write(self) -> None:
        _make_folder()
        table = self.model_dump() | {"declared": self.declared.to_table()}
        write_atomically(_path(self.name), json.dumps(table, indent=2) + "\n")

    def forget(self) -> None:
        _path(self.name).unlink(missing_ok=True)

    @property
    def name(self) -> str:
        return self.declared.name

    @property
    def hosts(self) -> tuple[HostPlace, ...]:
        return host_places(self.declared, self.cores)

    @property
    def ranks(self) -> tuple[RankPlace, ...]:
        return rank_places(self.declared, self.cores)

    @property
    def slow(self) -> list[RankPlace]:
        return [place for place in self.ranks if place.quota_cores is not None]

    @property
    def namespaces(self) -> list[str]:
        return namespaces_of(self.declared)

    def cgroup(self, place: RankPlace) -> Path:
        """Return the folder of a slow rank's control group."""
        return Path(self.base or "/") / place.cgroup

    @property
    def cgroups(self) -> list[Path]:
        """Folders of the testbed's control groups, parents first."""
        folders = [self.cgroup(place) for place in self.slow]
        return [Path(self.base or "/") / group_of(self.name), *folders] if folders else []


def recorded_names() -> list[str]:
    return sorted(path.stem for path in state_folder().glob("*.json"))


def is_recorded(name: str) -> bool:
    """Return whether a testbed has a record, damaged or not."""
    return _path(name).is_file()


def locked(name: str, patience_s: float = LEAST_PATIENCE_S) -> AbstractContextManager[None]:
    """Lock a testbed for one change or run at a time. The lock ends with the process that holds it, however it ends.

    Raises :class:`BackendError` where another process still holds it after ``patience_s``.
    """
    return _held(name, "lock", patience_s)


def holding(name: str, patience_s: float = LEAST_PATIENCE_S) -> AbstractContextManager[None]:
    """Let this process keep a testbed up until the block ends; runs inside the testbed lock it one after the other.

    Raises :class:`BackendError` where it is still up for another process after ``patience_s``.
    """
    return _held(name, "hold", patience_s)


def is_locked(name: str) -> bool:
    """Return whether a process changes a testbed or runs in it now."""
    return _user(name, "lock") is not None


def holder_of(name: str) -> str | None:
    """Return a description of the process that keeps a testbed up (:func:`holding`), or None."""
    return _user(name, "hold")


def in_use(name: str, user: str) -> BackendError:
    """Return the error of a process that wants to change a testbed while ``user`` uses it."""
    return BackendError(f"testbed: '{name}' is in use by {user}; wait for it, or end it with testbed down")


@contextmanager
def _held(name: str, kind: str, patience_s: float) -> Iterator[None]:
    _make_folder()
    end = time.monotonic() + patience_s
    with _path(name, kind).open("a+") as file:
        while not _lock(file):
            if time.monotonic() >= end:
                raise in_use(name, _owner(file))
            time.sleep(POLL_S)
        file.truncate(0)
        file.write(f"process {os.getpid()}")
        file.flush()
        yield


def _user(name: str, kind: str) -> str | None:
    path = _path(name, kind)
    if not path.is_file():
        return None
    with path.open("a+") as file:
        return None if _lock(file) else _owner(file)


def _lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _owner(file: IO[str]) -> str:
    file.seek(0)
    return file.read().strip() or "another process"


def state_folder() -> Path:
    return Path(os.environ.get(FOLDER, DEFAULT_FOLDER))


def _path(name: str, kind: str = "json") -> Path:
    return state_folder() / f"{name}.{kind}"


def _make_folder() -> None:
    try:
        state_folder().mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{FOLDER}: got {state_folder()}, expected a folder that can be made and written ({error.strerror}); "
            f"default: {DEFAULT_FOLDER}"
        ) from error


def _damaged(path: Path, why: str) -> BackendError:
    made = f"simgnn-{path.stem}"
    return BackendError(
        f"testbed: the record {path} is damaged or of another version ({why}); remove what the "
        f"testbed made ({made}-* of ip netns list, cgroup {made}), then that file"
    )
