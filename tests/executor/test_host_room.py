"""Rows of hosts in mappings: a host whose shared memory is too small for them is refused, and checkpoints hold them."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from executor.recording.failure import ShortOfMemoryError
from executor.state.buffers import BufferStore, Now
from executor.state.context import GroupHandle
from executor.store import shared
from executor.store.mapped import check_host_room, mapped_buffers, mapped_bytes
from simgnn.errors import BackendError
from simgnn.program.ops import Access, Buffer, Part
from simgnn.program.program import Program
from tests.executor.harness import run_ranks, tiny_program

CPU = torch.device("cpu")
FREE = 10_000


def two_hosts() -> Program:
    """Rank 0 alone on host 0, ranks 1 and 2 on host 1: rows of their own, and rows that these share."""
    buffers = [
        Buffer("own", 100, 8, space="host-mapped", depth=2),
        Buffer("shared", 50, 8, space="host-shared", persistent=True),
        Buffer("private", 1000, 8, space="host"),
    ]
    return tiny_program(3, {"steady": []}, buffers, hosts=[0, 1, 1], derived=False)


def test_a_host_needs_the_rows_of_its_ranks_and_once_what_they_share() -> None:
    program = two_hosts()
    assert mapped_bytes(program, [0]) == 2 * 100 * 32 + 50 * 32
    assert mapped_bytes(program, [1, 2]) == 2 * (2 * 100 * 32) + 50 * 32


def check_room_of(rank: int, ranks: int) -> list[str]:
    """The error of a rank where each host has 10 kB of shared memory free: host 0 needs 8,000 B, host 1 14,400 B."""
    shared.os = SimpleNamespace(statvfs=lambda path: SimpleNamespace(f_bavail=FREE, f_frsize=1))  # type: ignore[attr-defined]
    try:
        check_host_room(two_hosts(), rank, GroupHandle(dist.group.WORLD, (0, 1, 2), CPU))
    except BackendError as error:
        return [type(error).__name__, str(error)]
    return []


def test_too_small_a_host_is_refused_on_all_ranks_with_both_numbers(tmp_path: Path) -> None:
    first, *others = run_ranks(3, check_room_of, tmp_path)
    for name, message in others:
        assert name == ShortOfMemoryError.__name__
        assert "host 1 has 10,000 B free, the rows of its 2 ranks need 14,400 B" in message
    assert first[0] == "BackendError"
    assert "10,000 B free" in first[1], "other hosts do not wait for it"


def store_of(program: Program) -> tuple[BufferStore, dict[str, Any]]:
    memory = mapped_buffers(program, 0, set())
    return BufferStore(program, 0, CPU, {}, memory), memory


def test_a_mapping_is_written_in_place_and_copied_where_it_is_handed_on() -> None:
    buffers = [Buffer("rows", 4, 2, space="host-mapped"), Buffer("moved", 4, 2)]
    store, memory = store_of(tiny_program(1, {"steady": []}, buffers))
    now, rows = Now(0, 0, 0), memory["rows"][0]
    put, get = store.setter(Access("rows")), store.getter(Access("rows"))
    put(now, torch.ones(4, 2))
    assert get(now).data_ptr() == rows.data_ptr()
    store.setter(Access("moved"))(now, get(now))  # as a copy to a device that is the host
    store.setter(Access("rows", part=Part(2, 1)))(now, torch.full((2, 2), 7.0))
    assert rows[:, 0].tolist() == [1, 7, 7, 1]
    put(now, torch.full((3, 2), 5.0))
    assert rows[:, 0].tolist() == [5, 5, 5, 1]
    assert get(now).shape == (3, 2)
    assert store.getter(Access("moved"))(now)[:, 0].tolist() == [1, 1, 1, 1]
    put(now, None)
    assert rows[0, 0] == 5, "it stays allocated"
    with pytest.raises(BackendError, match="dense"):
        put(now, torch.eye(4, 2).to_sparse_csr())


def test_a_checkpoint_is_read_into_the_mapping() -> None:
    tiny = tiny_program(1, {"steady": []}, [Buffer("rows", 4, 2, space="host-mapped", persistent=True)])
    first, _ = store_of(tiny)
    first.setter(Access("rows"))(Now(0, 0, 0), torch.arange(8.0).view(4, 2))
    second, memory = store_of(tiny)
    second.load_state({key: value.clone() for key, value in first.state().items()})  # type: ignore[union-attr]
    assert memory["rows"][0].flatten().tolist() == list(range(8))
    assert second.getter(Access("rows"))(Now(0, 0, 0)).data_ptr() == memory["rows"][0].data_ptr()


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize(("value", "sparse"), [(torch.arange(6).view(3, 2), False), (torch.eye(3, 4), True)])
def test_copies_in_mappings_are_equal(value: torch.Tensor, sparse: bool) -> None:
    value = value.to_sparse_csr() if sparse else value
    found = shared.mapped_copy(value)
    dense = [each.to_dense() if each.layout is torch.sparse_csr else each for each in (found, value)]
    assert torch.equal(*dense)
    assert found.dtype == value.dtype
    assert not list(Path("/dev/shm").glob(f"simgnn-rank-{os.getpid()}-*")), "its name is gone"
