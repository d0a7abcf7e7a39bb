"""Room for small blocks, made and given back."""

import platform

import pytest
import torch

import executor.heap
import executor.memory
from executor.heap import Room, c_library, make_room
from executor.memory import PeakMemory


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the heap of glibc")
def test_a_process_that_runs_again_has_no_more_pieces_in_its_heap() -> None:
    """Each run splits the heap by a thousand fences; kept, they made the holes of the hundredth run take seconds."""
    make_room().close()
    before = c_library().mallinfo().ordblks
    for _ in range(5):
        room = make_room()
        assert c_library().mallinfo().ordblks > before + 500
        assert room.fences
        assert room.objects
        room.close()
        assert not room.fences
        assert not room.objects
    assert c_library().mallinfo().ordblks < before + 500


def test_where_nothing_was_taken_nothing_is_asked_of_the_c_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other C libraries have no mallinfo."""

    def none() -> object:
        raise AttributeError("mallinfo")

    monkeypatch.setattr(executor.heap, "c_library", none)
    monkeypatch.setattr(executor.memory, "c_library", none)
    PeakMemory(torch.device("cpu"), 0, 0).close()
    Room().close()
    with pytest.raises(AttributeError):
        Room(fences=[1]).close()
