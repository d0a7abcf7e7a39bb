"""Peaks of memory in results: what is resident counts, and the text that users read."""

import pytest

from simgnn.record.memory import MemoryPeak, fullest_memory, measured_peaks

GIB = 2**30
MEASURED = {
    "peak_memory_bytes": [3, 5, 2],
    "resident_memory_bytes": [4, 5, 1],
    "idle_memory_bytes": [10, 10, 20],
    "capacity_bytes": [100, 100, 100],
}


def test_ranks_of_a_host_share_its_memory_and_their_idle_processes_count() -> None:
    both, alone = measured_peaks(MEASURED, (0, 0, 1), gpu=False)
    assert both.parts == {"idle process": 20, "in use": 8, "kept free by the allocator": 1}
    assert (both.peak_bytes, both.ranks, both.fullest, both.capacity_bytes) == (29, [0, 1], 1, 100)
    assert (alone.peak_bytes, alone.ranks) == (22, [2])


def test_a_gpu_is_one_ranks_and_its_idle_process_lies_elsewhere() -> None:
    found = measured_peaks(MEASURED, (0, 0, 1), gpu=True)
    assert [peak.peak_bytes for peak in found] == [4, 5, 2]
    assert [peak.fullest for peak in found] == [0, 1, 2]


TEXTS = [
    (round(66.4 * GIB), 80 * GIB, [3], "Peak 66.4 of 80 GiB (83 %) on rank 3"),
    (96 * 2**20, 80 * GIB, [0], "Peak 96 MiB of 80 GiB (0.12 %) on rank 0"),
    (2**20, 80 * GIB, [0], "Peak 1 MiB of 80 GiB (< 0.01 %) on rank 0"),
    (GIB, None, [0], "Peak 1 GiB on rank 0"),
    (3 * GIB, 16 * GIB, [0, 1, 2, 5], "Peak 3 of 16 GiB (19 %) on host 0 (ranks 0-2, 5)"),
]


@pytest.mark.parametrize(("peak", "capacity", "ranks", "text"), TEXTS)
def test_a_peak_reads_as_a_part_of_the_capacity(peak: int, capacity: int | None, ranks: list[int], text: str) -> None:
    found = MemoryPeak(
        place="device", name="host 0", ranks=ranks, fullest=ranks[0], peak_bytes=peak, capacity_bytes=capacity
    )
    assert found.text() == text


def test_the_fullest_memory_is_the_one_nearest_its_capacity() -> None:
    small = MemoryPeak(place="device", name="a", ranks=[0], fullest=0, peak_bytes=5, capacity_bytes=6)
    large = MemoryPeak(place="device", name="b", ranks=[1], fullest=1, peak_bytes=50, capacity_bytes=100)
    assert fullest_memory([large, small], "device") == small
    assert fullest_memory([large, small], "host") is None
