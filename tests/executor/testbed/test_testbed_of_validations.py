"""What a validation brings up and takes down: a testbed of its own folder, and nothing of anybody else."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from executor.testbed import lifecycle, network
from executor.testbed.command import main
from executor.testbed.state import Record, recorded_names
from simgnn.api.backend import CommandBackend
from simgnn.cli.tables.console import Reporter
from simgnn.errors import BackendError
from simgnn.tomlfile import write_toml
from tests.executor.testbed.beds import LIMIT_S, WHY_NOT, bed, clean, command

pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=f"no testbed here: {WHY_NOT}")
__all__ = ["clean"]


@pytest.fixture
def folders(clean: None, tmp_path: Path) -> Iterator[list[Path]]:
    """Files of testbeds of one name in two folders; what a failing test leaves of them is removed."""
    paths = [tmp_path / folder / "testbed.toml" for folder in ("one", "other")]
    for path in paths:
        path.parent.mkdir()
        write_toml(path, {**bed().to_table(), "name": "validate"})
    yield paths
    for name in recorded_names():
        lifecycle.down(name)


def test_validations_in_two_folders_have_a_testbed_each(folders: list[Path]) -> None:
    one, other = (CommandBackend(Reporter(quiet=True)) for _ in folders)
    one.up(folders[0])
    other.up(folders[1])
    names = recorded_names()
    assert len(names) == 2
    assert all(name.startswith("validate-") and lifecycle.status(name)["up"] for name in names)
    one.down(folders[0])
    (left,) = recorded_names()
    assert lifecycle.status(left)["up"]
    other.down(folders[1])
    assert not recorded_names()


def test_a_refused_validation_ends_nothing(folders: list[Path]) -> None:
    path, backend = folders[0], CommandBackend(Reporter(quiet=True))
    backend.up(path)
    (name,) = recorded_names()
    backend.down(path)
    running = subprocess.Popen(
        command("exec", path, "--name", name, "--", "sh", "-c", "echo up; exec sleep 1000"), stdout=subprocess.PIPE
    )
    assert running.stdout is not None
    assert running.stdout.readline() == b"up\n"
    with pytest.raises(BackendError, match=f"'{name}' is in use by process {running.pid}"):
        backend.up(path)
    assert running.poll() is None
    assert lifecycle.status(name)["up"]
    running.send_signal(signal.SIGTERM)
    running.communicate(timeout=LIMIT_S)
    assert not recorded_names()


def test_the_holder_of_a_validation_may_be_killed(folders: list[Path]) -> None:
    """A later call, of this process or of the next, removes what that left."""
    path = folders[0]
    for resumed in (False, True):
        backend = CommandBackend(Reporter(quiet=True))
        backend.up(path)
        (name,) = recorded_names()
        record = Record.read(name)
        assert record is not None
        assert record.holder is not None
        os.kill(record.holder, signal.SIGKILL)
        if resumed:
            backend = CommandBackend(Reporter(quiet=True))
            backend.up(path)
        backend.down(path)
        assert not recorded_names()
        assert not any(network.exists(namespace) for namespace in record.namespaces)


def test_another_name_is_that_of_a_file(folders: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["down", "--name", "x"]) == 2
    assert main(["up", str(folders[0]), "--name", "no name"]) == 2
    said = capsys.readouterr().err
    assert "--name: got 'x' without a TESTBED.toml" in said
    assert "name: got 'no name', expected at most 24 letters" in said
