"""A small message does not wait behind large ones where connections take turns in front of a link."""

import json
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from executor.testbed import lifecycle
from executor.testbed.declaration import INTERFACE
from executor.testbed.network import CHILD, QUEUES, call, fair_queues
from tests.executor.testbed.beds import CONNECT, LIMIT_S, WHY_NOT, bed, clean, command, on_file

real = pytest.mark.skipif(WHY_NOT is not None, reason=f"no testbed here: {WHY_NOT}")
__all__ = ["clean"]
TRIPS = 40

TALK = (
    """
import json, os, socket, sys, threading, time
"""
    + CONNECT
    + """
place, trips = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), int(sys.argv[1])
if os.environ["RANK"] == "0":
    server = socket.create_server(place)
    bulk, small = server.accept()[0], server.accept()[0]
    threading.Thread(target=lambda: [None for _ in iter(lambda: bulk.recv(1 << 20), b"")], daemon=True).start()
    for _ in range(trips):
        small.recv(1)
        small.sendall(b"!")
    small.recv(1)
else:
    bulk = connected(place)
    small = socket.create_connection(place, 60)
    bulk.settimeout(60)
    threading.Thread(target=lambda: [bulk.sendall(bytes(1 << 20)) for _ in range(1000)], daemon=True).start()
    time.sleep(0.3)
    taken = []
    for _ in range(trips):
        start = time.perf_counter()
        small.sendall(b"?")
        small.recv(1)
        taken.append(time.perf_counter() - start)
    print(json.dumps(taken), flush=True)
    os._exit(0)
"""
)


def test_every_queue_has_a_class_and_ports_choose_among_them() -> None:
    lines = fair_queues("eth0", 25e6)
    assert len(lines) == QUEUES + 2
    assert f"classid {CHILD}1 " in lines[1]
    assert f"classid {CHILD}{QUEUES:x} " in lines[QUEUES]
    assert "rate 3200000000bit" in lines[1], "nothing but turns limits a queue"
    code = lines[-1].split("'")[1].split(",")
    assert int(code[0]) == len(code) - 1
    steps = [tuple(map(int, step.split())) for step in code[1:]]
    assert [steps[0][3], steps[2][3]] == [34, 36], "ports lie behind headers of Ethernet and IPv4"
    assert steps[4][3] == 1, "ports of connections to one listener differ by even numbers"
    assert steps[5][3] == QUEUES - 1
    assert steps[6][3] == (0x10 << 16) + 1


@real
def test_what_is_up_has_the_declared_queue() -> None:
    declared = bed()
    lifecycle.up(declared)
    found = lifecycle.status(declared.name)
    assert found["up"]
    assert found["declared"]["queue"] == "fair"
    host = found["hosts"][0]["namespace"]
    shown = call("tc", "-n", host, "class", "show", "dev", INTERFACE).splitlines()
    assert sum(line.startswith("class htb") for line in shown) == QUEUES
    call("tc", "-n", host, "qdisc", "del", "dev", INTERFACE, "parent", "1:1")
    assert lifecycle.status(declared.name)["faults"] == [f"{INTERFACE} in {host} is not shaped as declared"]
    assert lifecycle.up(declared).made, "it is made anew"
    assert not lifecycle.up(bed()).made, "it stays"
    assert lifecycle.up(bed(queue="fifo")).made, "another queue is another testbed"


@real
@pytest.mark.alone
def test_a_small_message_waits_in_one_line_and_not_in_turns(tmp_path: Path) -> None:
    taken = {}
    for queue in ("fair", "fifo"):
        words = command("exec", on_file(bed(queue=queue), tmp_path), "--", sys.executable, "-c", TALK, TRIPS)
        done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S)
        assert done.returncode == 0, done.stderr
        trips = json.loads(done.stdout)
        assert len(trips) == TRIPS
        taken[queue] = statistics.median(trips)
    assert taken["fair"] < taken["fifo"] / 3
