"""Peak memory that is measured while pages of files and of other ranks come and go."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.libc_ver()[0] != "glibc",
    reason="allocated memory can be told from what the allocator keeps with glibc on Linux only",
)

BEGIN = """
import mmap, os, sys, torch
from executor.memory.allocator import tune_allocator
from executor.memory.peak import NotedMemory, PeakMemory

class Ops:
    def add(self, *op):
        pass

with open(sys.argv[1], "wb") as file:
    file.write(b"1" * 2**23)
"""
MAPPED_FILE = """
memory = PeakMemory.begin(torch.device("cpu"), tune_allocator())
memory.start()
record = NotedMemory(Ops(), memory, lambda *turn: None)
batch = torch.ones(3 * 2**19)  # 6 MiB
record.add(None, 0, 0, 0, None)
del batch
with open(sys.argv[1], "rb") as file:
    mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    assert mapped[:: mmap.PAGESIZE].count(b"1") == 2**23 // mmap.PAGESIZE
record.add(None, 0, 0, 0, None)
memory.reset()
print(memory.peak_bytes() / 2**20)
"""


def peaks(script: str, folder: Path) -> list[float]:
    """What a process of its own tells, MiB."""
    command = [sys.executable, "-c", BEGIN + script, str(folder / "batches")]
    found = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert found.returncode == 0, found.stderr
    return list(map(float, found.stdout.split()))


def test_pages_of_files_that_come_after_the_peak_are_not_taken_out_of_it(tmp_path: Path) -> None:
    assert peaks(MAPPED_FILE, tmp_path) == pytest.approx([6], abs=0.5)


LEAVING = """
memory = PeakMemory.begin(torch.device("cpu"), tune_allocator(), first=False)
memory.start()
record = NotedMemory(Ops(), memory, lambda *turn: None)
with open(sys.argv[1], "rb") as file:
    mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
assert mapped[:: mmap.PAGESIZE].count(b"1") == 2**23 // mmap.PAGESIZE
descriptor = os.memfd_create("rows")
os.ftruncate(descriptor, 2**22)
shared = mmap.mmap(descriptor, 2**22)
shared.write(b"1" * 2**22)
batch = torch.ones(3 * 2**19)  # 6 MiB
record.add(None, 0, 0, 0, None)
del batch
mapped.close()
shared.close()
record.add(None, 0, 0, 0, None)
print(memory.peak_bytes() / 2**20)
larger = torch.ones(7 * 2**18)  # 7 MiB do not raise the mark
record.add(None, 0, 0, 0, None)
memory.reset()
print(memory.peak_bytes() / 2**20)
"""


def test_pages_of_files_and_shared_ones_that_leave_after_the_peak_do_not_count(tmp_path: Path) -> None:
    assert peaks(LEAVING, tmp_path) == pytest.approx([6, 7], abs=0.5)
