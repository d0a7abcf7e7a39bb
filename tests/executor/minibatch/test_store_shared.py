"""Shared memory of a host: used in place, nameless once mapped, gone after a crash, refused where it has no room."""

import errno
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from executor.state.context import GroupHandle
from executor.store.shared import FOLDER, attach, named_segment, shared_rows
from simgnn.errors import BackendError
from simgnn.units import format_quantity

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"{FOLDER} is a folder of Linux")
LIMIT_S = 60.0
WRITE = """
import sys, torch
from executor.store.shared import attach
attach(sys.argv[1], (4, 2), torch.float32)[3] = 5
"""
DIE = """
import os, signal
from executor.store.shared import named_segment
with named_segment(4096) as name:
    print(name, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def _names() -> set[Path]:
    return set(FOLDER.glob(f"simgnn-{os.getpid()}-*"))


def test_another_process_writes_in_place_and_its_end_takes_nothing_away() -> None:
    with named_segment(4 * 2 * 4) as name:
        rows = attach(name, (4, 2), torch.float32)
        assert not rows.any()
        told = subprocess.run(
            [sys.executable, "-c", WRITE, name], capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        # a tracker that thought the memory its own would complain, and remove the name
        assert (told.returncode, told.stderr) == (0, "")
        assert rows[3].tolist() == [5.0, 5.0]
        assert not rows[:3].any()
        assert (FOLDER / name).exists()
    assert not (FOLDER / name).exists()
    rows[0] = 7  # mapped memory outlives its name
    assert rows.tolist() == [[7, 7], [0, 0], [0, 0], [5, 5]]


def test_a_killed_creator_leaves_no_name() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", DIE], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    said, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == -signal.SIGKILL
    path = FOLDER / said.strip()
    assert path.name.startswith("simgnn-")
    end = time.monotonic() + LIMIT_S
    while path.exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert not path.exists()


def _broken() -> None:
    with named_segment(10):
        assert len(_names()) == 1
        raise KeyError


def test_an_error_in_the_block_leaves_no_name() -> None:
    with pytest.raises(KeyError):
        _broken()
    assert not _names()


def test_too_little_room_is_refused() -> None:
    disk = os.statvfs(FOLDER)
    if not disk.f_blocks:
        pytest.skip(f"{FOLDER} has no limit here")
    nbytes = (disk.f_blocks + 1) * disk.f_frsize
    need = re.escape(format_quantity(nbytes, "bytes"))
    with pytest.raises(BackendError, match=rf"B free, .* need {need}; enlarge it"), named_segment(nbytes):
        pass
    assert not _names()


def test_small_sizes_are_told_in_their_own_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(BackendError, match=r"the rows of this host need 1\.5 KiB; enlarge it"), named_segment(1536):
        pass
    assert not _names()


def test_attaching_needs_the_same_machine_and_the_same_rows() -> None:
    with pytest.raises(BackendError, match=r"one machine.*cluster\.hosts"):
        attach("simgnn-nobody", (1, 1), torch.float32)
    with named_segment(24) as name, pytest.raises(BackendError, match="has 24 bytes, expected 32"):
        attach(name, (4, 2), torch.float32)


@pytest.mark.parametrize("shape", [(0, 3), (5, 2)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.uint8])
def test_any_rows_fit(shape: tuple[int, int], dtype: torch.dtype) -> None:
    group = GroupHandle(None, (0,), torch.device("cpu"))
    rows = shared_rows(shape, dtype, 0, lambda table: table.fill_(3), group)
    assert (tuple(rows.shape), rows.dtype) == (shape, dtype)
    assert (rows == 3).all()
    assert not _names()
