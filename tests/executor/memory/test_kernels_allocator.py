"""Allocator settings: reported as set, kept out of other C libraries; one OpenMP runtime where it can be had."""

import platform
import subprocess
import sys

import pytest

from executor.launch import startup
from executor.memory import allocator

GLIBC = sys.platform.startswith("linux") and platform.libc_ver()[0] == "glibc"
FAULTS = """
import resource, threading
from executor.memory.allocator import tune_allocator
import torch
assert tune_allocator().applied
def work():
    for _ in range(12):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        blocks = [torch.zeros(20_000_000) for _ in range(2)]
        del blocks
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
faults = []
thread = threading.Thread(target=work)
thread.start()
thread.join()
print(min(faults))
"""


@pytest.mark.skipif(not GLIBC, reason="mallopt's thresholds are glibc's")
def test_large_blocks_of_a_thread_keep_their_pages():
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 1000, "two blocks of 80 MB have about 39,000 pages"


def test_other_c_libraries_are_left_alone_and_named(monkeypatch):
    monkeypatch.setattr(platform, "libc_ver", lambda *_: ("", ""))
    settings = allocator.tune_allocator()
    assert not settings.applied
    assert sys.platform in settings.reason
    assert settings.provenance()["mmap_threshold"] is None


def test_an_older_glibc_that_refuses_the_threshold_maps_nothing():
    calls = []

    def mallopt(parameter: int, value: int) -> int:
        calls.append((parameter, value))
        return int(parameter != allocator.M_MMAP_THRESHOLD)

    settings = allocator._apply(mallopt, "glibc 2.31")
    assert settings.applied
    assert (settings.mmap_threshold, settings.mmap_max) == (None, 0)
    assert (allocator.M_MMAP_MAX, 0) in calls


def test_a_refusal_is_reported():
    settings = allocator._apply(lambda parameter, _: int(parameter != allocator.M_ARENA_MAX), "glibc 0")
    assert not settings.applied
    assert settings.reason == "glibc 0 refused M_ARENA_MAX"
    assert settings.arenas is None


def test_the_openmp_runtime_is_shared_or_left_alone(monkeypatch):
    assert startup.share_runtime() in (True, False)
    monkeypatch.setattr(startup, "NUMBA_NEEDS", "libno-such-openmp.so.9")
    assert startup.share_runtime() is False


@pytest.mark.skipif(not startup.share_runtime(), reason="no system OpenMP runtime for Numba to open")
def test_a_process_that_imports_the_executor_first_has_one_openmp_runtime():
    code = (
        "import executor, torch\nfrom numba.np.ufunc import omppool\n"
        "print(len({line.split()[-1] for line in open('/proc/self/maps') if 'libgomp' in line}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"


RANK = """
import ctypes, os, re, sys, tempfile, threading, types

os.environ.update(RANK="0", WORLD_SIZE="1")


def run_rank(*arguments):
    import pyarrow  # whose import starts a thread
    import torch

    threads = [threading.Thread(target=torch.ones, args=(2**20,)) for _ in range(4)]
    for thread in threads:
        thread.start()
        thread.join()
    library = ctypes.CDLL(None)
    library.fopen.restype = ctypes.c_void_p
    with tempfile.NamedTemporaryFile() as file:
        stream = ctypes.c_void_p(library.fopen(file.name.encode(), b"w"))
        library.malloc_info(0, stream)
        library.fclose(stream)
        print("heaps", len(re.findall("<heap nr", open(file.name).read())))


sys.modules["executor.rank.session"] = types.SimpleNamespace(run_rank=run_rank, end_process=lambda status: None)
from executor.__main__ import main

main(["run", "nowhere"])
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="heaps of threads are glibc's")
def test_all_threads_of_a_rank_share_one_heap() -> None:
    found = subprocess.run([sys.executable, "-c", RANK], capture_output=True, text=True, timeout=240)
    assert found.returncode == 0, found.stderr
    assert found.stdout.split() == ["heaps", "1"]
