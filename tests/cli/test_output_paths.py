"""Paths that cannot be written are told before the work, with the option that named them; nothing is left behind."""

import errno
from pathlib import Path

import pytest

from simgnn.cli import main
from simgnn.cli.main import invoke
from simgnn.outputs import check_output_file, check_output_folder

FOLDERS = [
    ("calibrate", "--samples"),
    ("validate", "--keep"),
    ("validate", "--out"),
    ("demo", "--out"),
    ("sample", "--out"),
]
"""Options that name folders; all others name files."""
SAMPLE = ["sample", "vanilla", "--set", "batching.kind=seeded"]
NO_PROC = pytest.mark.skipif(not Path("/proc/self").exists(), reason="no /proc here, where nothing can be made")


@pytest.fixture(autouse=True)
def _no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def worked(*_: object, **__: object) -> None:
        raise AssertionError("the work began before its output was checked")

    # what imports the function comes before the module that it is imported from
    for reads in ("simgnn.api.partition", "simgnn.api.samples", "simgnn.planner.prepare"):
        monkeypatch.setattr(f"{reads}.read_graph", worked)
    monkeypatch.setattr("simgnn.api.compare.compare_runs", worked)
    monkeypatch.setattr("simgnn.api.calibrate.measure_groups", worked)
    monkeypatch.setattr("simgnn.api.backend.CommandBackend.canary", worked)


def refused(arguments: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    before = sorted(folder.rglob("*"))
    assert invoke(arguments) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "Traceback" not in told.err
    assert "Errno" not in told.err
    assert sorted(folder.rglob("*")) == before
    return told.err


@pytest.mark.parametrize("command", ["simulate", "run"])
@pytest.mark.parametrize("place", ["file", "file/x", "file/x/y", pytest.param("/proc/x", marks=NO_PROC), "l" * 300])
def test_a_run_directory_that_cannot_be_made(
    command: str, place: str, small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("mine")
    out = tmp_path / place
    told = refused([command, str(small), "--ranks", "2", "--out", str(out)], tmp_path, capsys)
    assert f"--out: got {out}" in told
    assert "expected" in told


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["partition", "{small}", "--stats"], "--stats"),
        (["compare", "a", "b", "--trace"], "--trace"),
        (["calibrate", "--out"], "--out"),
        (["calibrate", "--samples"], "--samples"),
        (["calibrate", "--report"], "FILE.html"),
        (["validate", "quick", "--report"], "--report"),
        (["validate", "quick", "--keep"], "--keep"),
        (["validate", "quick", "--out"], "--out"),
        (["demo", "--out"], "--out"),
        (["sample", "{small}", "--set", "batching.kind=seeded", "--out"], "--out"),
    ],
)
def test_a_file_that_cannot_be_written(
    arguments: list[str], option: str, small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("mine")
    path = tmp_path / "file" / "x.toml"
    command = [part.format(small=small) for part in arguments]
    assert f"{option}: got {path}, but {tmp_path / 'file'} is a file" in refused(
        [*command, str(path)], tmp_path, capsys
    )
    if (command[0], option) not in FOLDERS:
        told = refused([*command, str(tmp_path)], tmp_path, capsys)
        assert f"{option}: got {tmp_path}, which is a folder" in told


@pytest.mark.parametrize("command", [["validate", "quick"], ["demo"], SAMPLE])
def test_a_folder_that_holds_something_else_is_left_alone(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    told = refused([*command, "--out", str(tmp_path)], tmp_path, capsys)
    assert f"--out: got {tmp_path}" in told
    assert "name another" in told


def test_ground_truth_is_kept_in_a_new_folder_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "truth").mkdir()
    out = tmp_path / "out"
    told = refused(["validate", "quick", "--out", str(out), "--keep", str(tmp_path / "truth")], tmp_path, capsys)
    assert "--keep: got" in told


def test_what_a_demo_would_write_over_is_tried(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "hardware.toml").mkdir()
    assert "which is a folder; expected a file" in refused(["demo", "--out", str(tmp_path)], tmp_path, capsys)


def test_statistics_are_no_npz(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = refused(["partition", str(small), "--stats", str(tmp_path / "x.npz")], tmp_path, capsys)
    assert "expected a TOML file" in told


@NO_PROC
@pytest.mark.parametrize("command", ["simulate", "partition", "calibrate"])
def test_a_cache_that_cannot_be_made(
    command: str, small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIMGNN_CACHE", "/proc/nope")
    arguments = [command] if command == "calibrate" else [command, str(small), "--ranks", "2"]
    assert "SIMGNN_CACHE: got /proc/nope" in refused(arguments, tmp_path, capsys)


def test_what_can_be_made_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "file.json").write_text("old")
    before = sorted(tmp_path.rglob("*"))
    for name in ("there", "new", "new/deep/er"):
        check_output_folder(tmp_path / name, "--out")
    for name in ("file.json", "new.json", "new/deep/er.json"):
        check_output_file(tmp_path / name, "--out")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(("number", "status"), [(errno.EACCES, 2), (errno.ENOTDIR, 2), (errno.ENOSPC, 1)])
def test_any_other_fault_of_a_path_names_it(
    number: int, status: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(name: str) -> None:
        raise OSError(number, "it is not so", "/some/where")

    monkeypatch.setattr(main, "_load", broken)
    monkeypatch.delenv("SIMGNN_DEBUG", raising=False)
    assert invoke(["systems"]) == status
    assert "/some/where" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["simulate", "vanilla", "--activity", ""], "--activity"),
        (["simulate", "vanilla", "--out", ""], "--out"),
        (["run", "vanilla", "--out="], "--out"),
        (["compare", "", "b"], "A"),
        (["compare", "a", "b", "--trace", ""], "--trace"),
        (["partition", "vanilla", "--stats", ""], "--stats"),
        (["calibrate", ""], "FILE.html"),
        (["calibrate", "--samples", ""], "--samples"),
        (["validate", "quick", "--report", ""], "--report"),
        (["demo", "--out", ""], "--out"),
        ([*SAMPLE, "--out", ""], "--out"),
        (["hardware", "time", "cpu-100gbe-8", "exchange", "--matrix", ""], "--matrix"),
    ],
)
def test_an_empty_path_is_not_the_current_folder(
    arguments: list[str],
    option: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert f"simgnn: {option}: got '', expected a path" in refused(arguments, tmp_path, capsys)
