"""Testbeds for tests: why there may be none here, declarations of their own names, and what cleans up after a test."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from executor.testbed import lifecycle, network
from executor.testbed.cgroups import find_controller
from executor.testbed.declaration import Declaration
from executor.testbed.state import FOLDER
from simgnn.errors import BackendError, ConfigError
from simgnn.tomlfile import write_toml


def _why_not() -> str | None:
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "network namespaces need Linux and root"
    if shutil.which("ip") is None or shutil.which("tc") is None:
        return "iproute2 is not installed"
    name = f"simgnn-probe-{os.getpid()}"
    try:
        network.make_namespace(name)
        network.connect(Declaration.parse({"hosts": 1, "ranks_per_host": 1}, "probe"), [])
    except (BackendError, ConfigError) as error:
        return str(error)
    finally:
        network.remove_namespace(name)
    return None


WHY_NOT = _why_not()
LIMIT_S = 120


def bed(number: int = 0, **table: object) -> Declaration:
    name = f"t{os.getpid()}-{number}"
    return Declaration.parse({"hosts": 2, "ranks_per_host": 1, "link": "100 Mbit/s", "name": name, **table}, "bed.toml")


def on_file(declared: Declaration, folder: Path) -> Path:
    path = folder / f"{declared.name}.toml"
    write_toml(path, declared.to_table())
    return path


@pytest.fixture(autouse=True)
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Records of their own, and whatever a failing test leaves is removed."""
    monkeypatch.setenv(FOLDER, str(tmp_path / "state"))
    yield
    for number in range(2):
        lifecycle.down(bed(number).name)
    assert not list(network.NAMESPACES.glob(f"simgnn-t{os.getpid()}-*"))


@pytest.fixture
def quotas() -> None:
    """Skips where no CPU controller can be used."""
    try:
        find_controller()
    except ConfigError as error:
        pytest.skip(str(error))


CONNECT = """
def connected(place):
    for _ in range(400):
        try:
            return socket.create_connection(place, 1)
        except OSError:
            time.sleep(0.05)
    raise TimeoutError(place)
"""
"""For scripts that run once a rank: the listener may come later."""


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "executor", "testbed", *map(str, words)]
