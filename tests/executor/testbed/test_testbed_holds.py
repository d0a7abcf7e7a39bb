"""A testbed that is up for one process: nobody else replaces it, and that process takes down only what it made."""

import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest

from executor.testbed import lifecycle, network
from executor.testbed.declaration import Declaration, namespace_of
from executor.testbed.lifecycle import remove_orphan
from executor.testbed.state import Record, holder_of
from simgnn.errors import BackendError
from tests.executor.testbed.beds import LIMIT_S, WHY_NOT, bed, clean, command, on_file

pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=f"no testbed here: {WHY_NOT}")
__all__ = ["clean"]


class Holder:
    """``up --hold`` of a testbed, once it is up."""

    def __init__(self, declared: Declaration, folder: Path) -> None:
        self.process = subprocess.Popen(
            command("up", on_file(declared, folder), "--hold"),
            text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.told = self.process.stdout.readline()

    def end(self) -> tuple[int, str]:
        _, said = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, said


def test_a_held_testbed_is_in_use(tmp_path: Path) -> None:
    """Another file of its name neither replaces it nor, when its own holder ends, is it taken down too early."""
    declared, other = bed(), bed(link="50 Mbit/s")
    (tmp_path / "other").mkdir()
    first = Holder(declared, tmp_path)
    assert first.told == f"testbed '{declared.name}' is up\n"
    second = Holder(other, tmp_path / "other")
    status, said = second.end()
    assert status == 1
    assert f"testbed: '{declared.name}' is in use by process {first.process.pid}" in said
    for again in (declared, other):
        with pytest.raises(BackendError, match=f"in use by process {first.process.pid}, which holds it"):
            lifecycle.up(again)
    found = lifecycle.status(declared.name, declared)
    assert (found["up"], found["in_use"], found["differs"]) == (True, True, [])
    inside = subprocess.run(command("exec", tmp_path / f"{declared.name}.toml", "--", "true"), timeout=LIMIT_S)
    assert inside.returncode == 0, "runs inside are what it is held for"
    assert first.end() == (0, "")
    assert Record.read(declared.name) is None


def test_a_holder_leaves_what_was_up_before(tmp_path: Path) -> None:
    declared = bed()
    lifecycle.up(declared)
    holder = Holder(declared, tmp_path)
    assert holder.told == f"testbed '{declared.name}' is up (it was before, and stays)\n"
    assert holder.end() == (0, "")
    assert lifecycle.status(declared.name)["up"]


def test_down_ends_what_is_held_and_its_holder(tmp_path: Path) -> None:
    declared = bed()
    holder = Holder(declared, tmp_path)
    assert lifecycle.down(declared.name)
    assert holder_of(declared.name) is None
    assert lifecycle.up(declared).made, "the name is free at once"
    assert holder.end() == (0, "")
    assert lifecycle.status(declared.name)["up"], "it takes down nothing of another's"


@pytest.mark.slow
def test_what_a_killed_holder_left_is_no_testbed(tmp_path: Path) -> None:
    """It is told, made again by whoever comes next, who then takes it down, and can be removed by itself."""
    declared = bed()
    for next_one in (None, "hold", "down"):
        holder = Holder(declared, tmp_path)
        assert not remove_orphan(declared.name), "its holder lives"
        holder.process.kill()
        assert holder.end()[0] == -signal.SIGKILL
        found = lifecycle.status(declared.name)
        assert not found["up"]
        assert found["faults"] == [f"process {holder.process.pid}, which held it, has ended"]
        if next_one == "hold":
            again = Holder(declared, tmp_path)
            assert again.told == f"testbed '{declared.name}' is up\n"
            assert again.end() == (0, "")
        elif next_one == "down":
            assert _down(tmp_path / f"{declared.name}.toml", "--orphaned").returncode == 0
        else:
            assert lifecycle.up(declared).made
            assert not remove_orphan(declared.name), "it stays up for whoever made it"
            assert _down(tmp_path / f"{declared.name}.toml", "--orphaned").returncode == 0
            assert lifecycle.status(declared.name)["up"]
            lifecycle.down(declared.name)
        assert Record.read(declared.name) is None


@pytest.mark.parametrize("first", [pytest.param(None, marks=pytest.mark.slow), signal.SIGTERM])
def test_no_signal_stops_a_removal(tmp_path: Path, first: signal.Signals | None) -> None:
    """Of ``down`` (None), or of ``exec`` that ends by ``first``, while what runs inside ignores SIGTERM."""
    declared = bed(ranks_per_host=1)
    path, ready = on_file(declared, tmp_path), tmp_path / "ready"
    stubborn = f"trap '' TERM; touch {ready}; while :; do sleep 0.1; done"
    if first is None:
        lifecycle.up(declared)
        subprocess.Popen(["ip", "netns", "exec", namespace_of(declared.name, 0), "sh", "-c", stubborn])
        _wait_for(ready)
        process = subprocess.Popen(command("down", path), preexec_fn=_heeds)
    else:
        words = ["sh", "-c", f"(setsid sh -c {shlex.quote(stubborn)} &); sleep 1000"]
        process = subprocess.Popen(command("exec", path, "--", *words), preexec_fn=_heeds)
        _wait_for(ready)
        process.send_signal(first)
    time.sleep(1.5)
    process.send_signal(signal.SIGHUP)
    process.wait(LIMIT_S)
    assert Record.read(declared.name) is None
    assert not network.exists(namespace_of(declared.name, 0))


def _heeds() -> None:
    """Whoever starts the tests with nohup has SIGHUP ignored, and children inherit that."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def _wait_for(path: Path) -> None:
    end = time.monotonic() + LIMIT_S
    while not path.exists():
        assert time.monotonic() < end
        time.sleep(0.02)


def _down(*words: object) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(command("down", *words), timeout=LIMIT_S)
