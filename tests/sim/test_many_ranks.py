"""Planned and simulated by the command line from a statistics file alone, in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from simgnn.partition.statistics.file import save_stats
from tests.benchmarks.bench_simulate import HOSTS, MEMORY_BAR_GIB, cluster, metis_like

EXPERIMENT = """
[graph]
source = "stats:{stats}"
[model]
layers = 3
[cluster]
hosts = {hosts}
ranks_per_host = {ranks_per_host}
[train]
epochs = 3
[hardware]
profile = "{profile}"
"""


@pytest.mark.parametrize(
    ("ranks", "peers"),
    [(64, 32), pytest.param(1024, 32, marks=pytest.mark.slow), pytest.param(320, None, marks=pytest.mark.slow)],
)
def test_a_statistics_file_is_planned_and_simulated(ranks: int, peers: int | None, tmp_path: Path) -> None:
    hosts = HOSTS[ranks]
    stats = metis_like(ranks, hosts, 31_250 * ranks, peers=peers)
    save_stats(stats, tmp_path / "stats.toml")
    profile = cluster(tmp_path, hosts)
    experiment = tmp_path / "experiment.toml"
    experiment.write_text(
        EXPERIMENT.format(stats=tmp_path / "stats.toml", hosts=hosts, ranks_per_host=ranks // hosts, profile=profile)
    )
    command = [sys.executable, "-m", "simgnn", "simulate", str(experiment), "--out", str(tmp_path / "out"), "--json"]
    with (tmp_path / "told").open("w") as told:
        process = subprocess.Popen(command, stdout=told, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, (tmp_path / "told").read_text()
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert (result["status"], result["ranks"], result["hosts"]) == ("ok", ranks, hosts)
    assert len(result["epoch_s"]) == 3
    assert min(result["epoch_s"]) > 0.0
    told = [note for note in result["notes"] if "those between a rank and a host flow as one" in note]
    assert len(told) == (1 if peers is None else 0), "only dense rounds of more than 256 ranks flow in bundles"
    rows, sent = stats.halo.matrix(ranks), np.array(result["bytes_sent"])
    assert np.array_equal(sent > 0, (rows > 0) | (rows.T > 0)), "rows go to where they are needed, gradients back"
    assert sent.sum() % rows.sum() == 0
    assert usage.ru_maxrss / 2**20 <= MEMORY_BAR_GIB, "peak memory of the process, in GiB"
