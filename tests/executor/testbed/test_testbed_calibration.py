"""Links between hosts, for real: namespaces as hosts. Calibration measures the declared rate; bursts pass."""

import json
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest

from executor.testbed.declaration import FRAME_BYTES, PAYLOAD_BYTES, Declaration
from executor.testbed.profile import describe
from simgnn.analysis.fit.calls import of_kind
from simgnn.analysis.fit.network import fit_pair
from simgnn.analysis.fit.samples import read_samples
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.profile.profile import load_profile
from tests.executor.testbed.beds import CONNECT, LIMIT_S, WHY_NOT, bed, clean, command, on_file, quotas
from tests.executor.testbed.test_testbed_profile import base
from tests.hardware.conftest import work_seconds

pytestmark = [pytest.mark.alone, pytest.mark.skipif(WHY_NOT is not None, reason=f"no testbed here: {WHY_NOT}")]
__all__ = ["clean", "quotas"]
TOLERANCE = 0.15


def measured(declared: Declaration, folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """A command once a rank of the testbed."""
    started = command("exec", on_file(declared, folder), "--", sys.executable, "-m", *words)
    done = subprocess.run(started, capture_output=True, text=True, timeout=2 * LIMIT_S)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.slow
def test_the_measured_link_is_the_declared_one_and_kept_stages_are_used_again(tmp_path: Path) -> None:
    declared = bed(link="200 Mbit/s")
    out, kept = tmp_path / "samples.json", tmp_path / "kept"
    words = ("executor.microbench", "--quick", "--only", "communication", "--out", out, "--keep", kept)
    measured(declared, tmp_path, *words)
    file = read_samples(out)
    assert [host.ranks for host in file.hosts] == [(0,), (1,)]
    between = file.of_hosts(0, 1)
    pair = fit_pair(of_kind(between, "send"), of_kind(between, "exchange", "between"))
    payload = 25e6 * PAYLOAD_BYTES / FRAME_BYTES
    assert pair.way_bytes_per_s == pytest.approx(payload, rel=TOLERANCE)
    assert pair.message_bytes_per_s == pytest.approx(payload, rel=TOLERANCE)
    assert not pair.half_duplex
    assert {path.name for path in kept.iterdir()} == {"quick-2-links.json", "quick-2-cluster.json"}
    assert not list(tmp_path.rglob(".*"))
    (kept / "quick-2-cluster.json").unlink()  # as if the second stage had been interrupted
    told = measured(declared, tmp_path, *words).stderr
    assert "links: kept from the calibration that was interrupted" in told
    assert "cluster: kept" not in told
    assert [s for s in read_samples(out).samples if s.form == "between"] == [
        s for s in file.samples if s.form == "between"
    ]


@pytest.mark.slow
def test_hosts_of_different_speed_get_different_curves(tmp_path: Path, quotas: None) -> None:
    out = tmp_path / "cluster.toml"
    declared = bed(link="200 Mbit/s", slow={"1": 0.1})
    done = measured(declared, tmp_path, "simgnn", "calibrate", "--quick", "--json", "--out", out)
    told = json.loads(done.stdout)
    profile = load_profile(out)
    assert len(profile.topology.host_names()) == 2
    assert {row["device"] for row in told["curves"]} == set(profile.devices)
    assert profile.meta.date <= date.today()
    machine = Machine.place(profile, [0, 1])
    sizes = {"rows": 1e4, "inner": 256.0, "outer": 64.0, "item_bytes": 4.0}
    fast, slow = (work_seconds(machine, rank, "matmul", sizes).seconds for rank in (0, 1))
    assert slow > 1.3 * fast, "ten times on an idle machine; on a busy one both get less than their quota"
    payload = 25e6 * PAYLOAD_BYTES / FRAME_BYTES
    assert machine.message(0, 1, 1e6).rate_bytes_per_s == pytest.approx(payload, rel=TOLERANCE)


TALK = (
    """
import json, os, socket, sys, time
"""
    + CONNECT
    + """
place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
sizes, pauses = json.loads(sys.argv[1]), json.loads(sys.argv[2])
if os.environ["RANK"] == "0":
    link = socket.create_server(place).accept()[0]
    for size in sizes:
        left = size
        while left:
            left -= len(link.recv(min(left, 1 << 20)))
        link.sendall(b"!")
else:
    link = connected(place)
    link.settimeout(60)
    taken = []
    for size, pause in zip(sizes, pauses):
        time.sleep(pause)
        start = time.perf_counter()
        link.sendall(bytes(size))
        link.recv(1)
        taken.append(time.perf_counter() - start)
    print(json.dumps(taken), flush=True)
"""
)


def test_a_burst_passes_at_once_and_is_predicted(tmp_path: Path) -> None:
    declared = bed(link="50 Mbit/s", burst="1 MiB")
    sizes, pauses = [1 << 19, 1 << 22, 1 << 20], [1.0, 1.0, 0.0]
    started = command("exec", on_file(declared, tmp_path), "--", sys.executable, "-c", TALK)
    done = subprocess.run(
        [*started, json.dumps(sizes), json.dumps(pauses)], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr
    small, large, again = json.loads(done.stdout)
    machine = Machine.place(describe(declared, base(latency="0 s")), declared.rank_hosts())
    predicted = [size / machine.message(1, 0, float(size)).rate_bytes_per_s for size in sizes]
    rate = 6.25e6 * PAYLOAD_BYTES / FRAME_BYTES
    assert small < 0.5 * sizes[0] / rate, "it fits into the bucket"
    assert predicted[0] < 0.5 * sizes[0] / rate
    assert large == pytest.approx(predicted[1], rel=TOLERANCE)
    assert large < 0.9 * sizes[1] / rate
    assert again > 0.8 * sizes[2] / rate, "the bucket is empty"
