"""A real testbed: made, used and removed, and what differs from its file. Needs root and iproute2."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Literal

import pytest

from executor.testbed import lifecycle, network
from executor.testbed.cgroups import find_controller, limits_of
from executor.testbed.command import main
from executor.testbed.declaration import host_places, namespace_of, switch_of
from executor.testbed.network import CHILD, PARENT
from executor.testbed.state import FOLDER, Record, locked
from simgnn.errors import BackendError
from tests.executor.testbed.beds import LIMIT_S, WHY_NOT, bed, clean, command, on_file, quotas

pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=f"no testbed here: {WHY_NOT}")
__all__ = ["clean", "quotas"]


def test_up_is_idempotent_and_down_leaves_nothing() -> None:
    declared = bed()
    assert lifecycle.status(declared.name)["up"] is False
    assert lifecycle.up(declared).made
    assert not lifecycle.up(declared).made
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
    assert lifecycle.up(changed) == (True, ("link: up '12.5 MB/s', declared '6.25 MB/s'",))
    assert lifecycle.status(changed.name)["declared"]["link"] == "6.25 MB/s"
    assert not network.unshaped(changed, host_places(changed, (0,)))


def test_what_differs_from_the_file_is_told_and_what_runs_refuses_it(
    tmp_path: Path, quotas: None, capsys: pytest.CaptureFixture[str]
) -> None:
    declared, changed = bed(slow={"1": 0.5}), bed(link="50 Mbit/s", queue="fifo")
    path = on_file(declared, tmp_path)
    assert main(["up", str(path)]) == 0
    assert capsys.readouterr().out == f"testbed '{declared.name}' is up\n"
    assert main(["status", str(path)]) == 0
    assert "not as this file" not in capsys.readouterr().out
    differences = [
        "link: up '12.5 MB/s', declared '6.25 MB/s'",
        "queue: up 'fair', declared 'fifo'",
        "slow: up {'1': 0.5}, declared none",
    ]
    on_file(changed, tmp_path)
    assert main(["status", str(path)]) == 1
    assert [line for line in capsys.readouterr().out.splitlines() if "not as this file" in line] == [
        f"  not as this file declares it: {line}" for line in differences
    ]
    refused = subprocess.run(command("exec", path, "--", "true"), capture_output=True, text=True)
    assert refused.returncode == 1
    assert f"is up, but not as this file declares it ({'; '.join(differences)})" in refused.stderr
    assert not lifecycle.status(declared.name, declared)["differs"], "it stays as it was"
    assert main(["up", str(path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"testbed '{declared.name}' is up; the one that was up is replaced, it differed:",
        *(f"  {line}" for line in differences),
    ]
    assert main(["status", str(path)]) == 0


def test_a_burst_a_quota_an_address_that_somebody_changed_are_faults(quotas: None) -> None:
    declared = bed(slow={"1": 0.5})
    lifecycle.up(declared)
    first, second = (namespace_of(declared.name, host) for host in (0, 1))
    bucket = ("tbf", "rate", "100mbit", "burst", "8kb", "limit", "16777216b")
    network.call("tc", "-n", first, "qdisc", "change", "dev", "eth0", "handle", "1:", *bucket)
    folder = find_controller().base / f"simgnn-{declared.name}/rank1"
    period, quota = limits_of(folder) or (0, 0)
    (folder / "cpu.max").write_text("max") if (folder / "cpu.max").exists() else (
        folder / "cpu.cfs_quota_us"
    ).write_text(str(quota // 2))
    assert period == 10_000
    network.call("ip", "-n", second, "addr", "add", "10.77.0.9/24", "dev", "eth0")
    assert lifecycle.status(declared.name)["faults"] == [
        f"eth0 in {second} is not connected as declared",
        f"eth0 in {first} is not shaped as declared",
        f"rank 1 has another quota than declared ({folder})",
    ]
    network.call("ip", "-n", second, "link", "set", "eth0", "down")
    assert f"eth0 in {first} is not connected as declared" in lifecycle.status(declared.name)["faults"]
    assert lifecycle.up(declared).made
    assert lifecycle.status(declared.name)["up"]


@pytest.mark.parametrize(
    ("link", "burst"),
    [("100 kbit/s", "4 MiB"), ("100 kbit/s", "10 MiB"), ("100 kbit/s", "64 MiB"), ("1 Mbit/s", "64 MiB")],
)
def test_a_burst_of_minutes_is_as_declared(link: str, burst: str) -> None:
    """``tc`` tells it modulo 275 s of the rate, and whole bytes of that."""
    declared = bed(link=link, burst=burst, queue="fifo")
    lifecycle.up(declared)
    assert not lifecycle.status(declared.name)["faults"]
    assert network.unshaped(bed(link=link, burst="3 MiB", queue="fifo"), host_places(declared, (0,)))


def test_what_no_message_would_pass_is_a_fault() -> None:
    """Of a switch and its links, each thing changed is told of by itself."""
    declared = bed(hosts=3)
    lifecycle.up(declared)
    assert not lifecycle.status(declared.name)["faults"]
    first, second, third = (namespace_of(declared.name, host) for host in range(3))
    switch = switch_of(declared.name)
    shaper = "qdisc change dev eth0 handle 1: root tbf rate 100mbit burst 4096b"
    changes = [
        (f"tc -n {first} {shaper} limit 3000b", f"eth0 in {first} is not shaped"),
        (f"tc -n {second} {shaper} limit 16777216b peakrate 100100kbit mtu 1540", f"eth0 in {second} is not shaped"),
        (f"tc -n {switch} class change dev host2 classid {CHILD}7 htb rate 1mbit", f"host2 in {switch} is not shaped"),
        (f"ip -n {switch} link set host1 nomaster", f"host1 in {switch} is not connected"),
        (f"ip -n {switch} link set bridge down", f"bridge in {switch} is not connected"),
        (f"ip -n {first} route add blackhole 10.77.0.3/32", f"eth0 in {first} is not connected"),
        (f"ip -n {second} link set lo down", f"lo in {second} is not connected"),
        (f"ip -n {third} route add 10.77.0.1/32 via 10.77.0.2", f"eth0 in {third} is not connected"),
    ]
    for command_line, _ in changes:
        network.call(*command_line.split())
    assert sorted(lifecycle.status(declared.name)["faults"]) == sorted(f"{wrong} as declared" for _, wrong in changes)


def test_commands_whose_reader_has_gone_do_what_they_were_told(tmp_path: Path) -> None:
    """``up`` is up, ``up --hold`` has nobody to hold it for, ``down`` takes all down, and none says a word."""

    def unread(*words: object) -> tuple[int, str]:
        read, write = os.pipe()
        os.close(read)
        held = subprocess.run(
            command(*words), stdin=subprocess.DEVNULL, stdout=write, stderr=subprocess.PIPE, text=True, timeout=LIMIT_S
        )
        os.close(write)
        return held.returncode, held.stderr

    first, second = bed(), bed(1)
    assert unread("up", on_file(first, tmp_path)) == (141, "")
    assert lifecycle.status(first.name)["up"]
    assert unread("up", on_file(second, tmp_path), "--hold") == (141, "")
    assert Record.read(second.name) is None
    lifecycle.up(second)
    assert unread("status") == (141, "")
    assert unread("down") == (141, "")
    assert Record.read(first.name) is Record.read(second.name) is None


@pytest.mark.parametrize("queue", ["fair", "fifo"])
def test_the_queue_in_front_of_a_link_is_the_declared_one(queue: Literal["fair", "fifo"]) -> None:
    """Each kind is known as what it is; another below the shaper, a part that is gone, another shaper are faults."""
    declared, other = (bed(queue=kind) for kind in (queue, {"fair": "fifo", "fifo": "fair"}[queue]))
    lifecycle.up(declared)
    places = host_places(declared, (0,))
    assert not network.unshaped(declared, places)
    assert len(network.unshaped(other, places)) == 2
    assert len(network.unshaped(bed(queue=queue, link="50 Mbit/s"), places)) == 2
    first, second = (namespace_of(declared.name, host) for host in (0, 1))
    wrong = [f"eth0 in {namespace}" for namespace in (first, second)]
    if queue == "fair":
        network.call("tc", "-n", first, "filter", "del", "dev", "eth0", "parent", CHILD)
        network.call("tc", "-n", second, "class", "del", "dev", "eth0", "classid", f"{CHILD}7")
    else:
        bucket = ("tbf", "rate", "1mbit", "burst", "5kb", "limit", "50kb")
        network.call("tc", "-n", first, "qdisc", "add", "dev", "eth0", "parent", PARENT, "handle", CHILD, *bucket)
        assert network.unshaped(declared, places) == wrong[:1]
        network.call("tc", "-n", second, "qdisc", "replace", "dev", "eth0", "root", "pfifo")
    assert network.unshaped(declared, places) == wrong
    assert lifecycle.up(declared).made
    assert not network.unshaped(declared, places)


def test_three_hosts_meet_at_a_switch_and_the_machine_s_own_network_is_untouched() -> None:
    before = network.call("ip", "-o", "link"), network.call("tc", "qdisc")
    declared = bed(hosts=3)
    lifecycle.up(declared)
    assert (network.call("ip", "-o", "link"), network.call("tc", "qdisc")) == before
    assert len(network.shapers(declared, host_places(declared, (0,)))) == 6
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
    group = find_controller().base / f"simgnn-{declared.name}/rank1"
    throttled = dict(line.split() for line in (group / "cpu.stat").read_text().splitlines())
    assert int(throttled["nr_throttled"]) > 0


def test_a_held_testbed_waits_its_turn() -> None:
    declared = bed()
    begin = time.monotonic()
    with locked(declared.name), pytest.raises(BackendError, match="is in use by"), locked(declared.name, 0.2):
        pass
    assert time.monotonic() - begin >= 0.2
