"""``simgnn hardware``: what users see."""

import json
from pathlib import Path

import pytest

from simgnn.cli.main import invoke

DATA = Path(__file__).parent / "data"


def test_list_names_the_shipped_profiles(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["hardware", "list", "--json"]) == 0
    rows = {row["profile"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["a800-pcie-ib-2x8"]["hosts"] == 2
    assert rows["a800-pcie-ib-2x8"]["devices"] == 16
    assert invoke(["hardware", "list"]) == 0
    assert "a800-pcie-ib-2x8" in capsys.readouterr().out


def test_list_survives_a_broken_profile(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.toml").write_text("format = [")
    monkeypatch.setenv("SIMGNN_HWPROFILES", str(tmp_path))
    assert invoke(["hardware", "list"]) == 0
    assert "broken: simgnn hardware check" in capsys.readouterr().out


def test_show_prints_tree_and_matrix(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["hardware", "show", "a800-pcie-ib-2x8"]) == 0
    shown = capsys.readouterr().out
    for part in (
        "80 GiB (published)",
        "2 x node",
        "22.7 GB/s (published)",
        "Bandwidth, GB/s",
        "8.27",
        "never calibrated",
    ):
        assert part in shown


def test_show_tells_collectives_apart(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["hardware", "show", "dgx-a100-2"]) == 0
    shown = capsys.readouterr().out
    for part in (
        "allreduce inside a host, measured with 2 ranks, below 256 KiB: ring (ll), floor",
        "allreduce inside a host, measured with 4 ranks, 256 KiB to 4 MiB: ring (ll128), floor",
        "allreduce inside a host, measured with 2 and 4 ranks, 4 MiB to 1 TiB: ring (simple), floor",
        "allreduce across hosts, measured with 4 and 8 ranks: tree (simple), floor",
    ):
        assert part in shown
    heads = [line.split("floor")[0] for line in shown.splitlines() if "allreduce" in line]
    assert len(set(heads)) == len(heads) == 19


def test_show_as_json_is_in_si_units(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["hardware", "show", str(DATA / "invented-server.toml"), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["bandwidth"]["devices"][0] == "node0/left0"
    matrix = shown["bandwidth"]["bytes_per_s"]
    assert matrix[0][0] is None
    assert matrix[0][1] == 100e9
    assert matrix[0][4] == 8e9
    assert shown["profile"]["links"]["pcie"]["latency"]["value"] == 2e-6


def test_check_of_a_good_profile(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["hardware", "check", str(DATA / "invented-8x8.toml")]) == 0
    assert "no faults found" in capsys.readouterr().out


def test_check_tells_all_faults_and_exits_with_2(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = (DATA / "invented-server.toml").read_text()
    text = text.replace('"100 GB/s", source', '"0 GB/s", source').replace(
        '"switch1"], link = "shared"', '"swich1"], link = "x"'
    )
    path = tmp_path / "mine.toml"
    path.write_text(text)
    assert invoke(["hardware", "check", str(path)]) == 2
    told = capsys.readouterr().err
    assert "10 problems" in told, "three of the topology, and the seven curves that training needs"
    for part in ("links.nvlink.bandwidth.value", "edges.3.link: got 'x'", "got 'swich1'", "did you mean 'switch1'"):
        assert part in told
    assert invoke(["hardware", "check", str(path), "--json"]) == 2
    assert len(json.loads(capsys.readouterr().out)["problems"]) == 10


def test_check_tells_missing_curves(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["hardware", "check", str(DATA / "invented-server.toml")]) == 2
    assert "devices.fast.curves: no curve of 'gather'" in capsys.readouterr().err


def test_unknown_profile_is_told_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["hardware", "show", "a800"]) == 2
    told = capsys.readouterr().err
    assert "did you mean 'a800-pcie-ib-2x8'" in told
    assert "Traceback" not in told


@pytest.mark.parametrize("command", ["list", "show", "check"])
def test_help_teaches_by_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["hardware", command, "--help"]) == 0
    assert "Example: simgnn hardware" in " ".join(capsys.readouterr().out.split())
