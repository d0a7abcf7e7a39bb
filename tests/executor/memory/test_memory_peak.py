"""Peak memory: what is measured of known blocks, and of small real runs against what the simulator predicts."""

import platform
import subprocess
import sys
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest

from simgnn.record.result import read_result
from tests.benchmarks.bench_memory import BAR, measure, predicted_and_run

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.libc_ver()[0] != "glibc",
    reason="allocated memory can be told from what the allocator keeps with glibc on Linux only",
)

HOLES = """
import ctypes, torch
from executor.memory.allocator import PAGE, c_library, fill_holes
from executor.memory.peak import MEASURING, RUNNING, PeakMemory, _set
from executor.memory.allocator import tune_allocator

settings = tune_allocator()
library = c_library()
blocks = [library.malloc(2**20) for _ in range(9)]
for block in blocks[::2]:
    library.free(block)  # holes of 1 MiB between blocks that stay


def mapped():
    before = library.mallinfo().hblks
    block = library.malloc(2 * PAGE)
    found = library.mallinfo().hblks > before
    library.free(block)
    return found


assert _set(MEASURING)
before = mapped()
filled = fill_holes()
assert len(filled) >= 4, len(filled)
print("mapped", before, mapped())
for block in filled:
    library.free(block)
assert _set(RUNNING)

memory = PeakMemory.begin(torch.device("cpu"), settings)
kept = torch.ones(3 * 2**18)
memory.start()
for _ in range(3):
    passing = [torch.ones(5 * 2**18) for _ in range(2)]
    del passing
memory.reset()
print("allocated", memory.peak_bytes() / 2**20, "MiB")
assert memory.peak_method().startswith("VmHWM of the first epoch")
assert not memory.holes
"""


SPLIT = """
import resource, sys, torch
from executor.memory import peak as measured
from executor.memory.allocator import tune_allocator

measured.SLACK = float(sys.argv[1])
memory = measured.PeakMemory.begin(torch.device("cpu"), tune_allocator())
memory.start()
peak = [torch.ones(2**23) for _ in range(4)]  # 32 MiB each
del peak
memory.reset()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
passing = torch.ones(2**23)
small = torch.ones(2**18)  # stays, and splits what becomes free
del passing
large = [torch.ones(7 * 2**21) for _ in range(2)]  # 56 MiB each do not fit into 32
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(faults * resource.getpagesize() / 2**20)
"""


SMALL = """
import numpy as np, torch
from executor.memory.allocator import tune_allocator
from executor.memory.allocator import c_library
from executor.memory.peak import PeakMemory

settings, library = tune_allocator(), c_library()
setting_up = [torch.ones(2**18) for _ in range(9)]
fences = [library.malloc(2**12) for _ in range(9)]
del setting_up  # what it leaves free is resident, and no array of the run
memory = PeakMemory.begin(torch.device("cpu"), settings)
memory.start()
epoch = torch.ones(2**18)
rows = [np.ones(3000, np.uint8) for _ in range(500)]
names = [f"{number:0400d}" for number in range(4000)]
memory.reset()
print(memory.peak_bytes() / 2**20)
assert memory.start_again()
evaluation = torch.ones(5 * 2**18)
memory.reset()
print(memory.peak_bytes() / 2**20)
"""


def test_objects_of_a_run_and_what_its_set_up_left_free_are_no_arrays() -> None:
    found = subprocess.run([sys.executable, "-c", SMALL], capture_output=True, text=True, timeout=240)
    assert found.returncode == 0, found.stderr
    epoch, evaluation = map(float, found.stdout.split())
    assert epoch == pytest.approx(1, abs=0.2), "small objects of 3 MiB count"
    assert evaluation == pytest.approx(1 + 5, abs=0.2)


@pytest.mark.slow
def test_a_heap_that_small_blocks_split_finds_the_pages_that_it_grows_by() -> None:
    faulted = {}
    for slack in ("0", "0.5"):
        found = subprocess.run([sys.executable, "-c", SPLIT, slack], capture_output=True, text=True, timeout=240)
        assert found.returncode == 0, found.stderr
        faulted[slack] = float(found.stdout)
    assert faulted["0"] > 10, "without slack this heap grows while it is used"
    assert faulted["0.5"] < 1


EVALUATION = """
import mmap, os, sys, torch
from executor.memory.allocator import tune_allocator
from executor.memory.peak import PeakMemory

memory = PeakMemory.begin(torch.device("cpu"), tune_allocator(), first=sys.argv[1] == "first")
descriptor = os.memfd_create("rows")
os.ftruncate(descriptor, 2**22)
shared = mmap.mmap(descriptor, 2**22)
shared.write(b"1" * 2**22)
kept = torch.ones(3 * 2**18)
memory.start()
epoch = torch.ones(2 * 2**18)
del epoch
memory.reset()
later = [torch.ones(9 * 2**18) for _ in range(2)]  # of another epoch: the allocator keeps them
del later
assert memory.start_again()
evaluation = torch.ones(5 * 2**18)
del evaluation
memory.reset()
print(memory.peak_bytes() / 2**20, memory.resident_bytes() / 2**20)
"""


MAPPED = """
import sys, torch
from executor.memory.allocator import tune_allocator
from executor.memory.peak import PeakMemory, check_budget
from executor.recording.failure import ShortOfMemoryError
from executor.store.shared import mapped_copy, own_rows

memory = PeakMemory.begin(torch.device("cpu"), tune_allocator(), first=sys.argv[1] == "first")
mib = 2**18  # float32 elements
store = own_rows((16, mib), torch.float32)
features = mapped_copy(torch.ones(4, mib))
assert store.sum() == 0 and features.sum() == 4 * mib
memory.start()
store[:8] = torch.ones(mib).expand(8, mib)
device = torch.ones(6, mib)
memory.note()
held = memory.device_bytes()
assert memory.over(held + 1) == memory.over(0) == 0
try:
    check_budget(memory, 2**22, "rank 3, epoch 1, op 'load'")
except ShortOfMemoryError as error:
    assert error.exit_status == 3
    print(held / 2**20, memory.shared_bytes() / 2**20, memory.peak_bytes() / 2**20)
    print(error)
"""


@pytest.mark.parametrize("rank", ["first", "second"])
def test_a_ranks_own_mappings_count_apart_from_its_device(rank: str) -> None:
    found = subprocess.run([sys.executable, "-c", MAPPED, rank], capture_output=True, text=True, timeout=240)
    assert found.returncode == 0, found.stderr
    numbers, message = found.stdout.splitlines()
    device, mapped, both = map(float, numbers.split())
    assert device == pytest.approx(6, abs=1.2)
    assert mapped == 20
    assert both == pytest.approx(device + mapped)
    assert "rank 3, epoch 1, op 'load': the device has held" in message
    assert "budget 4,194,304 B" in message


@pytest.mark.parametrize(("rank", "shared"), [("first", 4), ("second", 0)])
def test_a_peak_is_that_of_epoch_or_evaluation_and_shared_memory_counts_once(rank: str, shared: int) -> None:
    found = subprocess.run([sys.executable, "-c", EVALUATION, rank], capture_output=True, text=True, timeout=240)
    assert found.returncode == 0, found.stderr
    allocated, resident = map(float, found.stdout.split())
    assert allocated == pytest.approx(3 + 5 + shared, abs=0.5)
    assert resident > 3 + 18, "what other epochs held is no less resident for that"


def test_freed_blocks_do_not_count_and_holes_of_the_heap_hide_none() -> None:
    found = subprocess.run([sys.executable, "-c", HOLES], capture_output=True, text=True, timeout=240)
    assert found.returncode == 0, found.stderr
    words = found.stdout.split()
    assert words[:3] == ["mapped", "False", "True"], "without filling, the hole serves the block"
    assert float(words[4]) == pytest.approx(3 + 10, abs=0.3)


WRITER = """
import sys, torch
from pathlib import Path
from executor.state.buffers import Now
from executor.state.context import NOTHING
from executor.memory.peak import _status
from executor.recording.trace import Recorder, warm_up_writer

if sys.argv[2] == "warm":
    warm_up_writer()
recorder = Recorder(Path(sys.argv[1]), 0, torch.device("cpu"))
recorder.add(Now(0, 0, 0), 0, 0.0, 0.0, NOTHING)
before = _status("RssAnon")
recorder.flush()
print((_status("RssAnon") - before) / 2**20)
"""


@pytest.mark.slow
def test_a_trace_that_is_written_before_an_evaluation_is_not_in_its_peak(tmp_path: Path) -> None:
    taken = {}
    for state in ("cold", "warm"):
        command = [sys.executable, "-c", WRITER, str(tmp_path / "trace"), state]
        found = subprocess.run(command, capture_output=True, text=True, timeout=240)
        assert found.returncode == 0, found.stderr
        taken[state] = float(found.stdout)
    assert taken["cold"] > 1, "Arrow takes memory of its own at the first batch"
    assert taken["warm"] < 0.5


DECISIONS = """
import sys, torch
from pathlib import Path
from executor.state.buffers import Now
from executor.state.context import NOTHING
from executor.memory.peak import _status
from executor.recording.side_records import DecisionRecorder
from executor.recording.trace import Recorder, warm_up_writer

warm_up_writer()
trace, decisions = Recorder(Path(sys.argv[1]) / "trace", 0, torch.device("cpu")), DecisionRecorder(Path(sys.argv[1]), 0)
trace.add(Now(0, 0, 0), 0, 0.0, 0.0, NOTHING)
decisions.note(Now(0, 0, 0), "sync/1/forward/bytes", 1, 7)
before, modules = _status("RssAnon"), set(sys.modules)
trace.flush()
decisions.flush()
print((_status("RssAnon") - before) / 2**20, len(set(sys.modules) - modules))
"""


def test_records_that_are_written_before_a_checkpoint_are_not_in_the_next_peak(tmp_path: Path) -> None:
    command = [sys.executable, "-c", DECISIONS, str(tmp_path)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert found.returncode == 0, found.stderr
    taken, modules = found.stdout.split()
    assert float(taken) < 0.5
    assert int(modules) == 0, "a library that is imported in the middle of a run stays"


RMAT = ["graph.source=synthetic:rmat", "graph.vertices=6000", "graph.edges=30000", "graph.feature_width=40"]
COMMUNITIES = [
    "graph.source=synthetic:communities", "graph.vertices=6000", "graph.edges=30000", "graph.feature_width=40",
]  # fmt: skip
LARGER = [*COMMUNITIES, "graph.vertices=20000", "graph.edges=150000"]
BATCHES = ["model.layers=2", "model.hidden=64", "batching.fanouts=[5, 5]", "model.order=auto"]
THREE = ["model.layers=3", "model.hidden=48"]
LATE_ATTENTION = [
    "model.kind=gat", "model.order=auto", "freshness.cold_start=zeros", "freshness.smooth_rows=true",
]  # fmt: skip

WRITTEN = ["train.epochs=5", "train.checkpoint_every=3", "train.eval_every=0"]
UNEQUAL = (
    [], ["codec.assign_period=1"], ["codec.assign_period=1", "model.kind=gat", "model.order=auto"],
    ["codec.assign_period=1", "model.kind=sage", "communication.rows=input"],
)  # fmt: skip
"""The first epoch is measured, in which bits are assigned if a period is one epoch."""
SAMPLED = (
    ["freshness.p=0.5"], ["model.kind=gat", "model.order=auto", "freshness.p=0.3"],
    ["model.kind=sage", "freshness.p=0.5", "freshness.sampling=bernoulli", "freshness.cache_features=true"],
)  # fmt: skip
REFRESHED = ("freshness.kind=refresh-interval", "freshness.refresh_interval=3", "partition.kind=random")
CACHED = (
    ["placement.device_rows=0.6", "communication.rows=transformed"],
    ["placement.host_rows=0.8", "placement.device_rows=0.2", "communication.resend_inputs=true"],
    ["model.kind=gat", "model.order=auto", "placement.host_rows=0.9", "freshness.grad=historical"],
    ["placement.host_rows=0.8", "placement.device_rows=0.4", "freshness.mode=async"],
)  # fmt: skip


@pytest.mark.parametrize(
    ("system", "ranks", "settings"),
    [
        pytest.param("vanilla", 1, [*RMAT, *THREE, "model.kind=sage"], marks=pytest.mark.slow),
        pytest.param(
            "vanilla", 2,
            [*COMMUNITIES, "model.kind=gcn", "model.layers=2", "model.hidden=96", "partition.kind=metis"],
            marks=pytest.mark.slow,
        ),
        pytest.param("vanilla", 2, [*LARGER, *THREE, "model.kind=gin"], marks=pytest.mark.slow),
        pytest.param("vanilla", 2, [*LARGER, *THREE, "model.kind=gat"], marks=pytest.mark.slow),
        pytest.param("cagnet", 2, [*LARGER, *THREE], marks=pytest.mark.slow),
        pytest.param("cagnet", 2, [*LARGER, *THREE, "model.kind=gat", "model.order=auto"], marks=pytest.mark.slow),
        pytest.param("cagnet", 3, [*LARGER, *THREE, "model.kind=gin"], marks=pytest.mark.slow),
        pytest.param("sancus", 2, [*LARGER, *THREE], marks=pytest.mark.slow),
        # what is not sent in the first epoch, or kept beside what it is a copy of, is there in all others
        pytest.param("sancus", 2, [*LARGER, *THREE, "freshness.own_block=cached"], marks=pytest.mark.slow),
        pytest.param("sancus", 2, [*LARGER, *THREE, "freshness.skip=gradients"], marks=pytest.mark.slow),
        pytest.param("vanilla", 2, [*LARGER, *THREE, "communication.resend_inputs=true"], marks=pytest.mark.slow),
        pytest.param("pipegcn", 2, [*LARGER, *THREE], marks=pytest.mark.slow),
        pytest.param("pipegcn", 2, [*LARGER, *THREE, *LATE_ATTENTION], marks=pytest.mark.slow),
        pytest.param("pipegcn", 4, [*LARGER, *THREE], marks=pytest.mark.slow),
        pytest.param("pipegcn", 4, [*LARGER, *THREE, *LATE_ATTENTION], marks=pytest.mark.slow),
        *(
            pytest.param("adaqp", ranks, [*LARGER, *THREE, *more], marks=pytest.mark.slow)
            for ranks, more in product((2, 4), UNEQUAL)
        ),
        *(
            pytest.param("bnsgcn", ranks, [*LARGER, *THREE, *more], marks=pytest.mark.slow)
            for ranks, more in product((2, 4), SAMPLED)
        ),
        # evaluated after records and a checkpoint have been written
        pytest.param("adaqp", 2, [*LARGER, *THREE, "model.hidden=64", *WRITTEN], marks=pytest.mark.slow),
        pytest.param("cdfgnn", 2, [*LARGER, *THREE, *WRITTEN], marks=pytest.mark.slow),
        *(
            pytest.param("vanilla", ranks, [*LARGER, *THREE, *REFRESHED, *more], marks=pytest.mark.slow)
            for ranks, more in product((2, 4), CACHED)
        ),
        ("cdfgnn", 2, [*LARGER, *THREE]),
        pytest.param("distdgl", 2, [*LARGER, *BATCHES], marks=pytest.mark.slow),
        pytest.param("rapidgnn", 2, [*LARGER, *BATCHES], marks=pytest.mark.slow),
        pytest.param("distdgl", 2, [*LARGER, *BATCHES, "placement.sparse_embedding=64"], marks=pytest.mark.slow),
        pytest.param("rapidgnn", 2, [*LARGER, *BATCHES, "model.kind=gat"], marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_a_ranks_peak_is_predicted_within_a_tenth(system: str, ranks: int, settings: list[str], tmp_path: Path) -> None:
    predicted, measured = measure(["graph.classes=5", *settings], ranks, tmp_path, system)
    result = read_result(tmp_path / "run" / "result.json")
    assert result.environment["peak_memory"].startswith("VmHWM of the first epoch")
    assert result.idle_memory_bytes is not None
    assert min(result.idle_memory_bytes) > 2**26, "an interpreter with torch in it"
    error = predicted / measured - 1
    assert np.abs(error).max() < BAR, f"errors {error}"


WIDE = ["graph.feature_width=128", "partition.kind=random"]
LEVELS = (
    ["placement.device_rows=1.0"], ["placement.host_rows=1.0"],
    ["placement.device_rows=0.5", "placement.host_rows=0.5"],
    ["placement.device_rows=3000", "placement.host_rows=9000", "communication.resend_inputs=true"],
    ["placement.device_rows=0.3", "placement.host_rows=0.8", "model.kind=gat", "model.order=auto"],
)  # fmt: skip
"""Caches of the device, of the host, and of both."""


@pytest.mark.slow
@pytest.mark.parametrize("levels", LEVELS, ids=",".join)
@pytest.mark.parametrize(("ranks", "hosts"), [(2, 1), (4, 1), (4, 2)])
def test_caches_on_the_device_and_in_shared_memory_are_predicted_within_a_tenth_each(
    ranks: int, hosts: int, levels: list[str], tmp_path: Path
) -> None:
    settings = ["graph.classes=5", *LARGER, *THREE, *REFRESHED, *WIDE, *levels]
    memory, result = predicted_and_run(settings, ranks, tmp_path, hosts=hosts)
    device = memory.own / np.asarray(result.device_memory_bytes) - 1
    assert np.abs(device).max() < BAR, f"device: errors {device}"
    if not any(level.startswith("placement.host_rows") for level in levels):
        assert result.shared_memory_bytes is None
        return
    assert result.shared_memory_bytes is not None
    shared, predicted = np.asarray(result.shared_memory_bytes), memory.shared
    assert (shared > 0).tolist() == (predicted > 0).tolist() == [rank % (ranks // hosts) == 0 for rank in range(ranks)]
    errors = predicted[shared > 0] / shared[shared > 0] - 1
    assert np.abs(errors).max() < BAR, f"shared: errors {errors}"


@pytest.mark.slow
def test_the_halo_shrinks_with_the_share_of_rows(tmp_path: Path) -> None:
    """Evaluations hold the whole halo, so what training holds shows where nothing else is as large."""
    found = []
    for share in (0.1, 0.5, 1.0):
        settings = ["graph.classes=5", *LARGER, *THREE, "partition.kind=random", f"freshness.p={share}"]
        found.append(np.stack(measure(settings, 2, tmp_path / str(share), "bnsgcn")))
    for smaller, larger in pairwise(found):
        assert (smaller < larger).all(), "predicted and measured, on each rank"


ONCE = [
    "placement.hot_scope=run", "placement.hot_rows=8000", "batching.batch_size=100", "batching.evaluation=none",
    "train.eval_every=0",
]  # fmt: skip
"""Caches are filled when most is held, unless ranks evaluate."""


@pytest.mark.slow
@pytest.mark.parametrize(("system", "chosen"), [("distdgl", []), ("rapidgnn", ONCE)])
def test_peaks_of_ranks_that_get_wide_rows_of_another_host_are_predicted_within_a_tenth(
    system: str, chosen: list[str], tmp_path: Path
) -> None:
    settings = ["graph.classes=5", *LARGER, *BATCHES, "graph.feature_width=256", *chosen]
    predicted, measured = measure(settings, 2, tmp_path, system, hosts=2)
    error = predicted / measured - 1
    assert np.abs(error).max() < BAR, f"errors {error}"


@pytest.mark.slow
def test_peaks_of_a_few_mebibytes_are_predicted_within_a_tenth(tmp_path: Path) -> None:
    settings = [*COMMUNITIES, *BATCHES, "graph.classes=5", "model.hidden=16", "batching.batch_size=100"]
    predicted, measured = measure(settings, 2, tmp_path, "rapidgnn", hosts=2)
    assert measured.max() < 12 * 2**20, "of a rank so small, what threads and objects take would be a tenth and more"
    error = predicted / measured - 1
    assert np.abs(error).max() < BAR, f"errors {error}"
