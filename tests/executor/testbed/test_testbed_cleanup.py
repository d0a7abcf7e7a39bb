"""A testbed that fails, is killed, or meets what others made: what is left, and what is not touched."""

import os
from pathlib import Path

import pytest

from executor.testbed import lifecycle, network
from executor.testbed.cgroups import find_controller
from executor.testbed.command import main
from executor.testbed.declaration import namespace_of
from executor.testbed.state import Record, locked
from simgnn.errors import BackendError
from tests.executor.testbed.beds import WHY_NOT, bed, clean, quotas

pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=f"no testbed here: {WHY_NOT}")


__all__ = ["clean", "quotas"]


def test_what_cannot_be_made_leaves_what_is_up(tmp_path: Path) -> None:
    """A changed file that asks for what another already has is refused before anything is removed."""
    declared, taken = bed(), namespace_of(bed().name, 2)
    lifecycle.up(declared)
    network.make_namespace(taken)
    try:
        with pytest.raises(BackendError, match=f"namespace {taken}: already there"):
            lifecycle.up(bed(hosts=3))
        assert lifecycle.status(declared.name, declared)["up"]
    finally:
        network.remove_namespace(taken)


def test_down_goes_on_after_one_that_is_in_use(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = bed(), bed(1)
    lifecycle.up(first)
    lifecycle.up(second)
    monkeypatch.setattr(lifecycle, "LOCK_PATIENCE_S", 0.1)
    with locked(first.name):
        assert main(["down"]) == 1
    told = capsys.readouterr()
    assert told.out == f"testbed '{second.name}' is down\n"
    assert f"'{first.name}' is in use by process {os.getpid()}" in told.err
    assert Record.read(second.name) is None


def test_what_was_taken_away_is_a_fault_and_is_made_again() -> None:
    declared = bed()
    lifecycle.up(declared)
    network.call("tc", "-n", namespace_of(declared.name, 1), "qdisc", "del", "dev", "eth0", "root")
    found = lifecycle.status(declared.name)
    assert not found["up"]
    assert found["faults"] == [f"eth0 in {namespace_of(declared.name, 1)} is not shaped as declared"]
    network.remove_namespace(namespace_of(declared.name, 0))
    assert f"{namespace_of(declared.name, 0)} is gone" in lifecycle.status(declared.name)["faults"]
    assert lifecycle.up(declared).made
    assert lifecycle.status(declared.name)["up"]


def test_foreign_namespaces_and_groups_stay(quotas: None) -> None:
    declared, other = bed(slow={"1": 0.5}), bed(1)
    foreign = f"simgnn-t{os.getpid()}-foreign"
    folder = find_controller().base / foreign
    network.make_namespace(foreign)
    folder.mkdir()
    try:
        lifecycle.up(declared)
        lifecycle.up(other)
        lifecycle.down(declared.name)
        assert network.exists(foreign)
        assert folder.is_dir()
        assert lifecycle.status(other.name)["up"]
        assert not (find_controller().base / f"simgnn-{declared.name}").exists()
    finally:
        network.remove_namespace(foreign)
        folder.rmdir()
    lifecycle.down(other.name)
    taken = namespace_of(declared.name, 1)
    network.make_namespace(taken)
    try:
        with pytest.raises(BackendError, match="no record says that a testbed made it"):
            lifecycle.up(declared)
        assert network.exists(taken)
        assert not network.exists(namespace_of(declared.name, 0))
    finally:
        network.remove_namespace(taken)


def test_up_that_fails_in_the_middle_leaves_nothing(monkeypatch: pytest.MonkeyPatch, quotas: None) -> None:
    declared = bed(slow={"0": 0.5})

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    for target, name in ((network, "connect"), (lifecycle.cgroups.Controller, "make")):
        with monkeypatch.context() as patched:
            patched.setattr(target, name, interrupted)
            with pytest.raises(KeyboardInterrupt):
                lifecycle.up(declared)
        assert Record.read(declared.name) is None
        assert not network.exists(namespace_of(declared.name, 0))


@pytest.mark.parametrize("again", ["up", "down"])
def test_up_that_was_killed_in_the_middle_is_cleaned_up(monkeypatch: pytest.MonkeyPatch, again: str) -> None:
    declared = bed()
    with monkeypatch.context() as patched:
        patched.setattr(network, "connect", lambda *_: os._exit(9))
        child = os.fork()
        if child == 0:
            lifecycle.up(declared)
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert network.exists(namespace_of(declared.name, 0))
    assert lifecycle.status(declared.name)["faults"] == ["it was not made to its end"]
    if again == "up":
        assert lifecycle.up(declared).made
        assert lifecycle.status(declared.name)["up"]
    lifecycle.down(declared.name)
    assert not network.exists(namespace_of(declared.name, 0))
