"""A real testbed: made, used and removed, also after crashes; nothing else is touched. Needs root and iproute2."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from executor.testbed import lifecycle, network
from executor.testbed.cgroups import find_controller
from executor.testbed.declaration import Declaration
from executor.testbed.places import namespace_of
from executor.testbed.runs import run
from executor.testbed.state import FOLDER, Record, locked
from simgnn.errors import BackendError, ConfigError
from simgnn.record.result import read_result
from tests.executor.runs import prepared_run, small_graph


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
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=f"no testbed here: {WHY_NOT}")
LIMIT_S = 120


def bed(number: int = 0, **table: object) -> Declaration:
    name = f"t{os.getpid()}-{number}"
    return Declaration.parse({"hosts": 2, "ranks_per_host": 1, "link": "100 Mbit/s", "name": name, **table}, "bed.toml")


def on_file(declared: Declaration, folder: Path) -> Path:
    from simgnn.tomlfile import write_toml

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


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "executor", "testbed", *map(str, words)]


def test_up_is_idempotent_and_down_leaves_nothing() -> None:
    declared = bed()
    assert lifecycle.status(declared.name)["up"] is False
    assert lifecycle.up(declared) is True
    assert lifecycle.up(declared) is False
    found = lifecycle.status(declared.name)
    assert found["up"]
    assert [host["namespace"] for host in found["hosts"]] == [
        namespace_of(declared.name, 0),
        namespace_of(declared.name, 1),
    ]
    assert lifecycle.down(declared.name) is True
    assert lifecycle.down(declared.name) is False
    assert Record.read(declared.name) is None
    assert not network.exists(namespace_of(declared.name, 0))


def test_another_declaration_replaces_the_first() -> None:
    lifecycle.up(bed())
    changed = bed(link="50 Mbit/s")
    assert lifecycle.up(changed) is True
    assert lifecycle.status(changed.name)["declared"]["link"] == "6.25 MB/s"
    assert not network.unshaped(changed, lifecycle.host_places(changed, (0,)))


def test_what_was_taken_away_is_a_fault_and_is_made_again() -> None:
    declared = bed()
    lifecycle.up(declared)
    network.call("tc", "-n", namespace_of(declared.name, 1), "qdisc", "del", "dev", "eth0", "root")
    found = lifecycle.status(declared.name)
    assert not found["up"]
    assert found["faults"] == [f"eth0 in {namespace_of(declared.name, 1)} is not shaped as declared"]
    network.remove_namespace(namespace_of(declared.name, 0))
    assert f"{namespace_of(declared.name, 0)} is gone" in lifecycle.status(declared.name)["faults"]
    assert lifecycle.up(declared) is True
    assert lifecycle.status(declared.name)["up"]


def test_three_hosts_meet_at_a_switch_and_the_machine_s_own_network_is_untouched() -> None:
    before = network.call("ip", "-o", "link"), network.call("tc", "qdisc")
    declared = bed(hosts=3)
    lifecycle.up(declared)
    assert (network.call("ip", "-o", "link"), network.call("tc", "qdisc")) == before
    assert len(network.shapers(declared, lifecycle.host_places(declared, (0,)))) == 6
    talk = (
        "import os, socket\n"
        "rank = int(os.environ['RANK'])\n"
        "place = (os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']))\n"
        "if rank == 0:\n"
        "    server = socket.create_server(place)\n"
        "    found = sorted(server.accept()[0].makefile().readline().strip() for _ in range(2))\n"
        "    print('met', *found, flush=True)\n"
        "else:\n"
        "    for _ in range(200):\n"
        "        try:\n"
        "            link = socket.create_connection(place, 1)\n"
        "            break\n"
        "        except OSError:\n"
        "            __import__('time').sleep(0.05)\n"
        "    link.sendall(f'{rank}@{link.getsockname()[0]}\\n'.encode())\n"
    )
    path = on_file(declared, Path(os.environ[FOLDER]))
    done = subprocess.run(
        command("exec", path, "--", sys.executable, "-c", talk), capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "met 1@10.77.0.2 2@10.77.0.3"
    assert lifecycle.status(declared.name)["up"], "it was up before"


def test_foreign_namespaces_and_groups_stay(quotas: None) -> None:
    declared, other = bed(slow={"1": 0.5}), bed(1)
    foreign = f"simgnn-t{os.getpid()}-foreign"
    folder = find_controller().folder(foreign)
    network.make_namespace(foreign)
    folder.mkdir()
    try:
        lifecycle.up(declared)
        lifecycle.up(other)
        lifecycle.down(declared.name)
        assert network.exists(foreign)
        assert folder.is_dir()
        assert lifecycle.status(other.name)["up"]
        assert not find_controller().folder(f"simgnn-{declared.name}").exists()
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
        assert lifecycle.up(declared) is True
        assert lifecycle.status(declared.name)["up"]
    lifecycle.down(declared.name)
    assert not network.exists(namespace_of(declared.name, 0))


def test_a_quota_holds_whatever_else_runs(quotas: None) -> None:
    declared = bed(slow={"1": 0.1})
    path = on_file(declared, Path(os.environ[FOLDER]) if lifecycle.up(declared) else Path())
    spin = (
        "import os, time\n"
        "begin, used = time.monotonic(), time.process_time()\n"
        "while time.monotonic() - begin < 1.0: pass\n"
        "print(os.environ['RANK'], (time.process_time() - used) / (time.monotonic() - begin), flush=True)\n"
    )
    done = subprocess.run(
        command("exec", path, "--", sys.executable, "-c", spin), capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr
    shares = dict(line.split() for line in done.stdout.splitlines())
    quota = lifecycle.status(declared.name)["ranks"][1]["quota_cores"]
    assert float(shares["1"]) <= quota * 1.3 + 0.01
    group = find_controller().folder(f"simgnn-{declared.name}/rank1")
    throttled = dict(line.split() for line in (group / "cpu.stat").read_text().splitlines())
    assert int(throttled["nr_throttled"]) > 0


def test_a_run_gives_the_numbers_of_a_normal_run(tmp_path: Path) -> None:
    graph, declared = small_graph(), bed(slow={})
    inside = prepared_run(graph, tmp_path / "inside", 2, hosts=2)
    beside = prepared_run(graph, tmp_path / "beside", 2)
    done = subprocess.run(
        command("run", on_file(declared, tmp_path), inside), capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr
    assert not lifecycle.status(declared.name)["up"], "it was not up before"
    normal = [sys.executable, "-m", "executor", "run", str(beside)]
    assert subprocess.run(normal, capture_output=True, timeout=LIMIT_S).returncode == 0
    results = [read_result(folder / "result.json") for folder in (inside, beside)]
    assert results[0].loss == results[1].loss
    assert results[0].accuracy == results[1].accuracy
    assert results[0].bytes_sent == results[1].bytes_sent
    assert results[0].environment["testbed"] == declared.to_table()
    assert results[0].hosts == 2
    assert Declaration.load(inside / "testbed.toml") == Declaration.parse(declared.to_table(), "bed")
    with pytest.raises(ConfigError, match="holds a finished run"):
        run(declared, inside, [])


def test_a_run_prepared_for_other_hosts_is_refused(tmp_path: Path) -> None:
    declared = bed()
    with pytest.raises(ConfigError, match=r"prepared for 2 ranks on 1 host\(s\), expected 2 host\(s\) of 1"):
        run(declared, prepared_run(small_graph(), tmp_path / "run", 2), [])
    assert Record.read(declared.name) is None


class Running:
    """Something inside a testbed that goes on until it is ended: two idle ranks, or the training of ``root``."""

    def __init__(self, declared: Declaration, folder: Path, root: Path | None = None) -> None:
        # one write a line: two ranks share the pipe, and unbuffered prints would mingle
        sleep = ["--", sys.executable, "-c", "import os, time; os.write(1, b'epoch\\n'); time.sleep(1000)"]
        words = (
            ["exec", on_file(declared, folder), *sleep] if root is None else ["run", on_file(declared, folder), root]
        )
        self.process = subprocess.Popen(
            command(*words), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            # whoever starts the tests in the background of a shell has Ctrl-C ignored, and children inherit that
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
        assert self.process.stdout is not None
        for _ in range(2 if root is None else 1):
            assert "epoch" in self.process.stdout.readline()
        self.ranks = psutil.Process(self.process.pid).children()

    def all_gone(self) -> bool:
        gone, _ = psutil.wait_procs(self.ranks, timeout=10)
        return len(gone) == len(self.ranks) == 2

    def end(self) -> tuple[int, str]:
        _, said = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, said


def test_down_ends_a_run_and_its_testbed(tmp_path: Path) -> None:
    declared = bed()
    lifecycle.up(declared)
    running = Running(declared, tmp_path)
    found = lifecycle.status(declared.name)
    assert found["in_use"]
    assert sorted(p for host in found["hosts"] for p in host["processes"]) == sorted(r.pid for r in running.ranks)
    with pytest.raises(BackendError, match=f"is in use by process {running.process.pid}"):
        lifecycle.up(declared)
    assert lifecycle.down(declared.name) is True
    assert running.end()[0] == 128 + signal.SIGTERM
    assert running.all_gone()


def test_a_killed_run_leaves_what_down_removes_and_no_ranks(tmp_path: Path) -> None:
    declared = bed()
    running = Running(declared, tmp_path)
    running.process.kill()
    running.process.communicate()
    assert running.all_gone(), "ranks end with their launcher"
    assert network.exists(namespace_of(declared.name, 0))
    assert lifecycle.down(declared.name) is True
    assert not network.exists(namespace_of(declared.name, 0))


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_takes_its_testbed_down(tmp_path: Path, sent: signal.Signals) -> None:
    declared = bed()
    running = Running(declared, tmp_path)
    running.process.send_signal(sent)
    status, said = running.end()
    assert status == 130
    assert said.strip().splitlines()[-1] == "executor: interrupted; ending all ranks"
    assert running.all_gone()
    assert Record.read(declared.name) is None
    assert not network.exists(namespace_of(declared.name, 0))


def test_one_rank_that_dies_ends_all(tmp_path: Path) -> None:
    declared = bed()
    running = Running(declared, tmp_path)
    running.ranks[1].kill()
    assert running.end()[0] == 128 + signal.SIGKILL
    assert running.all_gone()
    assert Record.read(declared.name) is None


@pytest.mark.slow
def test_one_rank_of_a_run_that_dies_ends_all(tmp_path: Path) -> None:
    declared = bed()
    endless = ("train.epochs=1000000", "train.eval_every=0")
    running = Running(declared, tmp_path, prepared_run(small_graph(), tmp_path / "run", 2, *endless, hosts=2))
    running.ranks[1].kill()
    status, said = running.end()
    assert status == 1
    assert "was killed by SIGKILL" in said
    assert running.all_gone()
    assert json.loads((tmp_path / "run" / "result.json").read_text())["status"] == "failed"
    assert Record.read(declared.name) is None


def test_a_held_testbed_waits_its_turn() -> None:
    declared = bed()
    begin = time.monotonic()
    with locked(declared.name), pytest.raises(BackendError, match="is in use by"), locked(declared.name, 0.2):
        pass
    assert time.monotonic() - begin >= 0.2
