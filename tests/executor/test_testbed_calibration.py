"""Calibration across hosts, for real: namespaces as hosts. The measured link is the declared one."""

import json
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest

from executor.testbed.declaration import FRAME_BYTES, PAYLOAD_BYTES, Declaration
from simgnn.analysis.fit_calls import of_kind
from simgnn.analysis.fit_pair import fit_pair
from simgnn.analysis.fit_samples import read_samples
from simgnn.hardware.machine import Machine
from simgnn.hardware.profile import load_profile
from tests.executor.test_testbed import LIMIT_S, WHY_NOT, bed, clean, command, on_file, quotas

pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=f"no testbed here: {WHY_NOT}")
__all__ = ["clean", "quotas"]
TOLERANCE = 0.15


def measured(declared: Declaration, folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """A command once a rank of the testbed."""
    started = command("exec", on_file(declared, folder), "--", sys.executable, "-m", *words)
    done = subprocess.run(started, capture_output=True, text=True, timeout=2 * LIMIT_S)
    assert done.returncode == 0, done.stderr
    return done


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
    declared = bed(link="200 Mbit/s", slow={"1": 0.3})
    done = measured(declared, tmp_path, "simgnn", "calibrate", "--quick", "--json", "--out", out)
    told = json.loads(done.stdout)
    profile = load_profile(out)
    assert len(profile.topology.host_names()) == 2
    assert {row["device"] for row in told["curves"]} == set(profile.devices)
    assert profile.meta.date <= date.today()
    machine = Machine.place(profile, [0, 1])
    sizes = {"rows": 1e4, "inner": 256.0, "outer": 64.0, "item_bytes": 4.0}
    fast, slow = (machine.work_seconds(rank, "matmul", sizes).seconds for rank in (0, 1))
    assert slow > 1.5 * fast
    payload = 25e6 * PAYLOAD_BYTES / FRAME_BYTES
    assert machine.message(0, 1, 1e6).rate_bytes_per_s == pytest.approx(payload, rel=TOLERANCE)
