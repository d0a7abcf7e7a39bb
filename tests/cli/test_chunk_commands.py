"""metis-chunks from the command line: what `partition` prints, rates of the profile, vanilla on it, and refusals."""

import json
from pathlib import Path

import pytest

from simgnn.api.predict import predict
from simgnn.cli.main import invoke
from simgnn.experiment.load import load_experiment
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.price.transfer_rates import transfer_rates
from simgnn.hardware.profile.profile import load_profile
from simgnn.partition.statistics.file import load_stats
from simgnn.progress import SILENT

NVLINK = "a100-nvlink-4"
CHUNKS = ["--set", "partition.kind=metis-chunks", "--set", "partition.chunks=8"]
PROFILE = ["--hardware", NVLINK]


def test_partition_prints_volumes_by_number_of_chunks(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["partition", str(small), *CHUNKS, *PROFILE, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["ranks"] == 4, "as many as the profile has GPUs"
    rates = transfer_rates(Machine.place(load_profile(NVLINK), [0] * 4))
    assert told["chunks"]["rates"] == rates.model_dump(mode="json")
    counts = told["chunks"]["counts"]
    assert [one["chunks"] for one in counts] == [1, 2, 4, 8]
    for one in counts:
        assert one["v_ru"] <= one["v_p2p"] <= one["v_ori"] == round(one["replication_factor"] * told["vertices"])
        assert one["cost_s_per_row_byte"] <= one["initial"]["cost_s_per_row_byte"]
        by_hand = (
            one["v_ru"] / rates.host_to_device_bytes_per_s + (one["v_p2p"] - one["v_ru"]) / rates.reuse_bytes_per_s
        )
        by_hand += (one["v_ori"] - one["v_p2p"]) / (rates.device_to_device_bytes_per_s or 0)
        assert one["cost_s_per_row_byte"] == pytest.approx(by_hand, rel=1e-12)
    assert counts[0]["replication_factor"] == pytest.approx(told["replication_factor"])
    assert counts == sorted(counts, key=lambda one: one["v_ori"])
    assert invoke(["partition", str(small), *CHUNKS, *PROFILE, "--no-alternatives"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for name in ("V_ori", "V_p2p", "V_ru", "V_dd", "cost, initial", "host to device"):
        assert name in text


def test_statistics_files_hold_the_tables_and_are_simulated(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "stats.toml"
    arguments = ["partition", str(small), *CHUNKS, *PROFILE, "--ranks", "2", "--no-alternatives"]
    assert invoke([*arguments, "--json", "--stats", str(file)]) == 0
    told = json.loads(capsys.readouterr().out)["chunks"]
    stats = load_stats(file)
    assert stats.tables["chunks/rows"].shape == (2, 8)
    assert int(stats.tables["chunks/needed"].sum()) == told["counts"][0]["v_ori"]
    assert stats.made_by is not None
    assert stats.made_by["rates"] == told["rates"]
    assert (
        invoke(["simulate", "vanilla", *CHUNKS, "--set", f"graph.source=stats:{file}", *PROFILE, "--ranks", "2"]) == 0
    )


def test_vanilla_on_it_is_vanilla_on_metis_by_vertices() -> None:
    graph = ["graph.vertices=400", "graph.edges=2500", "graph.classes=4", "graph.feature_width=16"]
    kinds = (
        ["partition.kind=metis-chunks", "partition.chunks=3"],
        ["partition.kind=metis", "partition.balance=['vertices']"],
    )
    one, other = (
        predict(load_experiment("vanilla", [*graph, *kind], ranks=2, hardware=NVLINK), SILENT, limits=False)
        for kind in kinds
    )
    assert one.result.program_digest == other.result.program_digest
    assert one.result.epoch_s == other.result.epoch_s


def test_rates_may_be_stated_and_are_not_needed_for_the_initial_order(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simgnn.api.predict.calibration_path", lambda: tmp_path / "none.toml")
    arguments = ["partition", str(small), *CHUNKS, "--ranks", "2", "--json"]
    assert invoke(arguments) == 2
    assert "partition.kind: got 'metis-chunks' without a hardware profile" in capsys.readouterr().err
    assert invoke([*arguments, "--set", "partition.candidates=['initial']"]) == 0
    told = json.loads(capsys.readouterr().out)["chunks"]
    assert told["rates"] is None
    assert all(one["cost_s_per_row_byte"] is None and one["order"] == "initial" for one in told["counts"])
    stated = "{host_to_device_bytes_per_s=3e10, device_to_device_bytes_per_s=2e11, reuse_bytes_per_s=7e11}"
    assert invoke([*arguments, "--set", f"partition.rates={stated}"]) == 0
    told = json.loads(capsys.readouterr().out)["chunks"]
    assert told["rates"]["host_to_device_bytes_per_s"] == 3e10


def test_what_cannot_be_divided_is_refused(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kind = ["--set", "partition.kind=metis-chunks"]
    for command in ("partition", "simulate", "run"):
        assert invoke([command, str(small), *kind, "--ranks", "2"]) == 2
        assert "partition.chunks: got 'auto', expected a number" in capsys.readouterr().err
    assert invoke(["partition", str(small), *kind, "--set", "partition.chunks=300", *PROFILE, "--ranks", "2"]) == 2
    assert "partition.chunks: got 300, expected at most" in capsys.readouterr().err
    assert invoke(["partition", str(small), *kind, "--set", "partition.chunks=0", *PROFILE]) == 2
    assert "partition.chunks: got 0, expected a whole number from 1" in capsys.readouterr().err
