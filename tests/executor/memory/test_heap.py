"""Room for small blocks, made and given back."""

import platform
import subprocess
import sys

import pytest
import torch

import executor.memory.allocator
import executor.memory.peak
from executor.memory.allocator import Room
from executor.memory.peak import PeakMemory

AGAIN = """
from executor.memory.allocator import c_library, make_room

make_room().close()
before = c_library().mallinfo().ordblks
for _ in range(5):
    room = make_room()
    assert c_library().mallinfo().ordblks > before + 500, "room splits the heap"
    assert room.fences and room.objects
    room.close()
    assert not room.fences and not room.objects
after = c_library().mallinfo().ordblks
assert after < before + 500, (before, after)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the heap of glibc")
def test_a_process_that_runs_again_has_no_more_pieces_in_its_heap() -> None:
    """Each run splits the heap by a thousand fences; kept, they made the holes of the hundredth run take seconds."""
    told = subprocess.run([sys.executable, "-c", AGAIN], capture_output=True, text=True, timeout=120)
    assert told.returncode == 0, told.stderr


def test_where_nothing_was_taken_nothing_is_asked_of_the_c_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other C libraries have no mallinfo."""

    def none() -> object:
        raise AttributeError("mallinfo")

    monkeypatch.setattr(executor.memory.allocator, "c_library", none)
    monkeypatch.setattr(executor.memory.peak, "c_library", none)
    PeakMemory(torch.device("cpu"), 0, 0).close()
    Room().close()
    with pytest.raises(AttributeError):
        Room(fences=[1]).close()
