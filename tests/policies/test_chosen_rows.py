"""Lists that name rows say what masks say; masters that a mirror woke add their own part where that is asked for."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from executor.handlers.pairwise import _listed_rows
from simgnn.emit.caches.masks import WireMask
from simgnn.emit.caches.replica_cache import FoldOwn
from simgnn.policies.freshness.adaptive_vertex import AdaptiveVertex
from simgnn.policy import PolicyContext
from tests.policies.acting import does


@given(st.lists(st.lists(st.booleans(), max_size=20), min_size=1, max_size=5))
def test_lists_say_what_masks_say(peers: list[list[bool]]) -> None:
    most = tuple(len(rows) for rows in peers)
    layout = WireMask(most, torch.zeros(0))
    mask = layout.pack(torch.tensor([bit for rows in peers for bit in rows], dtype=torch.bool))
    counts, ids = layout.listed(mask)
    assert counts.dtype is torch.int64
    assert ids.dtype is torch.int32
    assert counts.flatten().tolist() == [sum(rows) for rows in peers if rows]
    assert ids.flatten().tolist() == [place for rows in peers for place, chosen in enumerate(rows) if chosen]
    assert layout.mask_of(ids, counts).equal(mask)
    assert _listed_rows(most, counts) == layout.chosen_of_peers(mask) == [sum(rows) for rows in peers]


@pytest.mark.parametrize("folds", [False, True])
def test_a_master_that_was_woken_adds_its_own_part_where_asked(folds: bool) -> None:
    policy = AdaptiveVertex(epsilon=0.1, adapt=False, fold_on_active=folds)
    # rows 2, 3 and 4 have mirrors; their own parts moved by 1 %, 1 % and 50 %; a mirror woke rows 3 and 4
    here = PolicyContext(0, 0, 0, 1, "forward", 0, 2, (0, 3), (0, 0), leaving=torch.tensor([2, 3, 4]))
    own = torch.full((3, 2), 10.0)
    rows = torch.full((5, 2), 10.1)
    rows[4] = 15.0
    sums, active = torch.full((3, 2), 30.0), torch.tensor([[False], [True], [True]])
    own, sums, awake = does(FoldOwn, policy)(here, rows, own, sums, torch.zeros(1, 3, dtype=torch.float64), active)
    assert awake.flatten().tolist() == [False, True, True]
    assert own[:, 0].tolist() == pytest.approx([10.0, 10.1 if folds else 10.0, 15.0])
    assert sums[:, 0].tolist() == pytest.approx([30.0, 30.1 if folds else 30.0, 35.0])
