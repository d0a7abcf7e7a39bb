"""RAPA from the command line: what `partition` prints, that `simulate` and `run` say what was dropped, and refusals."""

import json
from pathlib import Path

import pytest

from simgnn.cli.main import invoke
from simgnn.hardware.profile.profile import load_profile, parse_profile, save_profile

MIXED = "mixed-pcie3-8"
RAPA = ["--set", "partition.kind=rapa", "--hardware", MIXED]


def test_partition_prints_every_rank_before_and_after(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["partition", str(small), *RAPA, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    fit = told["fit"]
    assert told["ranks"] == len(fit["ranks"]) == len(fit["devices"]) == 8, "as many as the profile has GPUs"
    assert fit["status"] in ("balanced", "no_progress", "max_passes")
    assert sum(one["dropped_edges"] for one in fit["ranks"]) > 0
    assert all(one["edges_before"] == one["edges"] + one["dropped_edges"] for one in fit["ranks"])
    assert [one["choice"] for one in told["balances"]] == ["rapa", "metis, [vertices, edges]"]
    assert all(len(one["costs"]) == 8 for one in told["balances"])
    assert told["balances"][0]["costs"] == [one["cost"] for one in fit["ranks"]]
    assert invoke(["partition", str(small), *RAPA, "--ranks", "4", "--no-alternatives"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for name in (
        "dropped edges",
        "cost before",
        "halo rows before",
        "memory before",
        "sparse product",
        "costs: ",
    ):
        assert name in text


def test_simulate_says_what_was_dropped(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["simulate", str(small), *RAPA, "--ranks", "4"]) == 0
    assert "dropped edges: " in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_run_says_what_was_dropped(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], forked_ranks: None
) -> None:
    words = ["--ranks", "2", "--out", str(tmp_path / "run"), "--set", "partition.assign=identity"]
    assert invoke(["run", str(small), *RAPA, *words, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert invoke(["partition", str(small), *RAPA, *words[:2], *words[4:], "--json"]) == 0
    ranks = json.loads(capsys.readouterr().out)["fit"]["ranks"]
    assert result["dropped_edges"]["by_rank"] == [one["dropped_edges"] for one in ranks]
    assert result["accuracy"] is not None


def test_bad_input_ends_with_status_2(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = load_profile(MIXED).to_table()
    table["devices"]["a40"]["curves"] = [one for one in table["devices"]["a40"]["curves"] if one["primitive"] != "spmm"]
    save_profile(parse_profile(table), tmp_path / "lacking.toml")
    lacking = ["--set", "partition.kind=rapa", "--hardware", str(tmp_path / "lacking.toml")]
    cases = [
        ([*lacking], "devices.a40.curves"),
        ([*RAPA, "--set", "partition.alpha=2"], "partition.alpha"),
        ([*RAPA, "--set", "partition.alpha=most"], "partition.alpha"),
        ([*RAPA, "--set", "partition.eps_rel=0"], "partition.eps_rel"),
        ([*RAPA, "--set", "partition.base=ebv"], "partition.base"),
        ([*RAPA, "--set", "partition.assign=all"], "partition.assign"),
        ([*RAPA, "--set", "partition.reserve_bytes=-1"], "partition.reserve_bytes"),
        ([*RAPA, "--set", "partition.max_passes=0"], "partition.max_passes"),
        ([*RAPA, "--set", "partition.devices=[1]"], "partition.devices"),
        ([*RAPA, "--set", "communication.kind=master-mirror"], "partition.kind"),
    ]
    for words, key in cases:
        assert invoke(["simulate", str(small), *words]) == 2, words
        assert key in capsys.readouterr().err, words


def test_too_little_memory_ends_with_status_3(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = load_profile(MIXED).to_table()
    for device in table["devices"].values():
        device["memory"]["value"] = "10 MB"
    save_profile(parse_profile(table), tmp_path / "tiny.toml")
    words = ["--set", "partition.kind=rapa", "--hardware", str(tmp_path / "tiny.toml")]
    for command in ("partition", "simulate"):
        assert invoke([command, str(small), *words, "--ranks", "4"]) == 3
        text = capsys.readouterr().err
        assert "rank 0 needs" in text
        assert "rank 3 needs" in text


def test_its_statistics_serve_other_devices_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stats = tmp_path / "stats.toml"
    common = ["vanilla", "--ranks", "4", "--set", "model.hidden=8", "--set", "train.epochs=4"]
    graph = ["--set", "graph.vertices=400", "--set", "graph.edges=2500"]
    assert invoke(["partition", *common, *graph, *RAPA, "--no-alternatives", "--stats", str(stats)]) == 0
    source, dropped = ["--set", f"graph.source=stats:{stats}"], []
    for hardware in (MIXED, "dgx-a100"):
        told = []
        for where in (graph, source):
            capsys.readouterr()
            assert invoke(["simulate", *common, *where, *RAPA[:2], "--hardware", hardware, "--json"]) == 0
            told.append(json.loads(capsys.readouterr().out))
        counted, read = told
        assert read["program_digest"] == counted["program_digest"]
        assert read["dropped_edges"]["by_rank"] == counted["dropped_edges"]["by_rank"]
        dropped.append(tuple(read["dropped_edges"]["by_rank"]))
        if hardware == MIXED:
            assert read["epoch_s_median"] == counted["epoch_s_median"], "the file holds this very partition"
    assert len(set(dropped)) == 2, "which rows are dropped depends on the devices"
