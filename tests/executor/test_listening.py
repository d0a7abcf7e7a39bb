"""Ranks of one machine listen on its loopback interface alone."""

import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.executor.runs import prepared_run, small_graph

LIMIT_S = 120


def listening(command: Sequence[str], sockets: int) -> set[str]:
    """Return the addresses on which the processes of a command listen, once there are this many sockets; end them."""
    process = subprocess.Popen([sys.executable, "-P", "-m", *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    starter = psutil.Process(process.pid)
    found: set[tuple[str, int]] = set()
    try:
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end and len(found) < sockets and process.poll() is None:
            for each in [starter, *starter.children(recursive=True)]:
                with suppress(psutil.Error):
                    every = each.net_connections("inet")
                    found |= {tuple(one.laddr) for one in every if one.status == psutil.CONN_LISTEN}
            time.sleep(0.02)
    finally:
        process.terminate()
        process.communicate()
    assert len(found) >= sockets, f"{len(found)} sockets listened, expected {sockets}"
    return {address for address, _ in found}


@pytest.mark.parametrize("what", ["run", "calibrate"])
def test_ranks_listen_on_loopback_only(what: str, tmp_path: Path) -> None:
    if what == "run":
        command = ["executor", "run", str(prepared_run(small_graph(), tmp_path / "run", 2, "train.epochs=1000000"))]
    else:
        command = ["executor.microbench", "--ranks", "2", "--quick", "--only", "communication", "--backend", "gloo",
                   "--out", str(tmp_path / "samples.json")]  # fmt: skip
    assert listening(command, 2) <= {"127.0.0.1", "::1"}
