"""A lane that fails, or does not go on, ends a mini-batch run on all ranks, with the reason, and leaves nothing in
shared memory (docs/systems/mini-batches.md)."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from executor.minibatch.batches import DrawnBatches, PartedBatches
from executor.minibatch.input_rows import StagedRows
from executor.rank.session import run_rank
from executor.recording.failure import LostPeerError, failure_of, read_failures
from executor.state.plan import RunPlan
from executor.store.shared import FOLDER
from executor.world.environment import LAUNCHER, RENDEZVOUS
from simgnn.errors import BackendError
from simgnn.sampling.batches.presample import part_path
from tests.executor.harness import run_ranks
from tests.executor.minibatch.batch_runs import prepared_batches
from tests.executor.runs import small_graph

FAILING = 1
"""The rank whose lane fails."""
AWAKE = "awake"
STALL_S = 16.0


@dataclass(frozen=True)
class Lane:
    """A face of a policy that one lane of ``system`` calls for the ops whose names end in ``op``."""

    system: str
    settings: tuple[str, ...]
    kind: type
    face: str
    op: str


KNOWN_AHEAD = ("batching.batch_size=3", "placement.hot_rows=5", "schedule.window=3")
LANES = {
    "sampling": Lane("rapidgnn", KNOWN_AHEAD, DrawnBatches, "draw", "batch/draw"),
    "staging": Lane("rapidgnn", KNOWN_AHEAD, StagedRows, "inputs", "rows/stage"),
    "answering": Lane("distdgl", ("batching.batch_size=3", "schedule.window=3"), PartedBatches, "serve", "/serve"),
}


def _fail(folder: Path) -> None:
    raise ValueError("the disk is gone")


def _stall(folder: Path) -> None:
    time.sleep(STALL_S)
    (folder / AWAKE).touch()


def _break(lane: Lane, happens: Callable[[Path], None], folder: Path) -> None:
    """In the fifth call of the lane's face something happens."""
    original, calls = getattr(lane.kind, lane.face), [0]

    def broken(self: Any, *arguments: Any) -> Any:
        calls[0] += 1
        if calls[0] == 5:
            happens(folder)
        return original(self, *arguments)

    setattr(lane.kind, lane.face, broken)


def _carry_out(
    rank: int, ranks: int, folder: str, lane: str = "", happens: Callable[[Path], None] | None = None
) -> tuple[int, int, bool]:
    """Exit status of a rank, its process, and whether the one that stalls had gone on by then."""
    here = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": ranks}
    os.environ.update({key: str(value) for key, value in here.items()})
    os.environ[RENDEZVOUS], os.environ[LAUNCHER] = str(Path(folder) / "rendezvous"), "1"
    if rank == FAILING and happens is not None:
        _break(LANES[lane], happens, Path(folder))
    return run_rank(Path(folder), "cpu"), os.getpid(), (Path(folder) / AWAKE).exists()


def _ended(lane: str, happens: Callable[[Path], None], folder: Path, timeout: int) -> list[tuple[int, int, bool]]:
    one = LANES[lane]
    run = prepared_batches(small_graph(), folder / "run", 2, 1, one.system, *one.settings, f"train.timeout={timeout}")
    ended = run_ranks(2, _carry_out, folder / "ranks", str(run), lane, happens, joined=False)
    assert [status for status, *_ in ended] == [1, 1]
    assert not [path for _, process, _ in ended for path in FOLDER.glob(f"simgnn-{process}-*")]
    return ended


@pytest.mark.parametrize(
    "lane", ["staging", *(pytest.param(lane, marks=pytest.mark.slow) for lane in ("sampling", "answering"))]
)
def test_a_failing_lane_ends_the_run_on_all_ranks(lane: str, tmp_path: Path) -> None:
    _ended(lane, _fail, tmp_path, timeout=20)
    (_, cause, said), (_, consequence, other) = read_failures(tmp_path / "run" / "trace")
    assert cause == "cause"
    assert said.startswith(f"rank {FAILING}, epoch ")
    assert "ValueError: the disk is gone" in said
    assert f"{LANES[lane].op}'" in said
    assert consequence == "lost-peer"
    assert "lost contact with another rank" in other


@pytest.mark.slow
@pytest.mark.parametrize("lane", LANES)
def test_a_lane_that_does_not_go_on_ends_the_run_within_the_timeout(lane: str, tmp_path: Path) -> None:
    """The other rank does not wait until it goes on."""
    waiting, _ = _ended(lane, _stall, tmp_path, timeout=6)
    assert not waiting[2], "the other rank waited for longer than train.timeout"
    notes = read_failures(tmp_path / "run" / "trace")
    assert [note.kind for note in notes] == ["lost-peer"] * 2
    assert all("was silent for longer than train.timeout" in note.message for note in notes)


@pytest.mark.slow
def test_damaged_batches_of_a_rank_end_the_run_on_all_before_training(tmp_path: Path) -> None:
    """Those of its last epoch: the run is not trained halfway."""
    run = prepared_batches(small_graph(), tmp_path / "run", 2, 1, "rapidgnn", *KNOWN_AHEAD, "train.timeout=20")
    batches = RunPlan.open(run).batches
    assert batches is not None
    file = part_path(Path(batches.folder), 2, FAILING) / "sources.npy"
    damaged = bytearray(file.read_bytes())
    damaged[-1] ^= 1
    file.write_bytes(bytes(damaged))
    ended = run_ranks(2, _carry_out, tmp_path / "ranks", str(run), joined=False)
    assert [status for status, *_ in ended] == [1, 2]
    (_, cause, said), (_, consequence, other) = read_failures(run / "trace")
    assert cause == "cause"
    assert str(file.parent) in said
    assert "damaged" in said
    assert consequence == "lost-peer"
    assert other.startswith("rank 0: lost contact with another rank")
    assert not list((run / "trace").glob("rank-*.arrow"))


def test_a_lost_peer_is_told_as_one_outside_of_ops_too() -> None:
    """Where a driver's own barrier or sum breaks, the rank that died has the reason."""
    told = failure_of(
        "rank 2", RuntimeError("[/src/gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]")
    )
    assert isinstance(told, LostPeerError)
    assert str(told).startswith("rank 2: lost contact with another rank (Connection closed by peer [127.0.0.1])")
    for other in (ValueError("no peer"), RuntimeError("a bug"), BackendError("Gloo said no")):
        assert failure_of("rank 2", other) is other
