"""Where rows that arrive are put: memory of a buffer that is made once."""

import torch

from executor.handlers.context import GroupHandle
from executor.handlers.wire import all_to_all

ALONE = GroupHandle(None, (0,), torch.device("cpu"))


def test_rows_arrive_in_the_room_that_there_is() -> None:
    packed, room = torch.arange(6.0).reshape(3, 2), torch.zeros(5, 2)
    arrived = all_to_all(packed, [3], [3], ALONE, room)
    assert arrived.data_ptr() == room.data_ptr()
    assert torch.equal(arrived, packed)
    assert torch.equal(room[3:], torch.zeros(2, 2))
    assert all_to_all(packed, [3], [3], ALONE).data_ptr() != room.data_ptr()
