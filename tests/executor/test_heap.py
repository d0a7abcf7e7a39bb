"""Room for small blocks, made and given back."""

import platform

import pytest

from executor.heap import c_library, make_room

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the heap of glibc")


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
