"""Folders that one process at a time writes to."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from simgnn.errors import ConfigError
from simgnn.locks import LOCK, locked_folder, scratch_folder


def test_one_holds_a_folder_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "out"
    with locked_folder(folder, "--out"):
        used = pytest.raises(ConfigError, match=f"--out: .* is in use by process {os.getpid()}; wait for it")
        with used, locked_folder(folder, "--out"):
            pass
        assert (folder / LOCK).is_file(), "whoever did not get it must not remove it"
    assert not folder.exists()
    folder.mkdir()
    with locked_folder(folder, "--out"):
        (folder / "result").touch()
    assert {path.name for path in folder.iterdir()} == {"result"}


def test_a_full_disk_does_not_keep_anyone_from_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails for want of room is what the block writes: that names the file."""

    def full(file: int, text: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with locked_folder(tmp_path, "--out"):
        used = pytest.raises(ConfigError, match="in use by another process")
        with used, locked_folder(tmp_path, "--out"):
            pass


def test_a_folder_that_was_empty_stays_so(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), locked_folder(tmp_path, "--out"):
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from simgnn.locks import locked_folder\n"
        "with locked_folder(Path(sys.argv[1]), '--out'): print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(ConfigError, match=f"process {holder.pid}"), locked_folder(tmp_path, "--out"):
            pass
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    assert (tmp_path / LOCK).is_file()
    with locked_folder(tmp_path, "--out"):
        pass


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written"), locked_folder(tmp_path / "file" / "out", "--out"):
        pass


def test_scratch_of_a_killed_process_goes_with_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code = (
        "import sys, tempfile, time; from simgnn.locks import scratch_folder; tempfile.tempdir = sys.argv[1]\n"
        "with scratch_folder('simgnn-test-') as made: print(made, flush=True); time.sleep(60)"
    )
    (tmp_path / "simgnn-test-theirs").mkdir()
    (tmp_path / "simgnn-test-file").touch()
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        stale = Path(other.stdout.readline().strip())
        with scratch_folder("simgnn-test-") as mine:
            (mine / "samples.json").touch()
            assert stale.is_dir(), "its process lives"
        other.send_signal(signal.SIGKILL)
        other.wait()
    assert stale.is_dir()
    with scratch_folder("simgnn-test-") as mine:
        assert {path.name for path in tmp_path.iterdir()} == {mine.name, "simgnn-test-theirs", "simgnn-test-file"}
    assert {path.name for path in tmp_path.iterdir()} == {"simgnn-test-theirs", "simgnn-test-file"}
