"""Every action that the executor carries out on what a rank holds has a function."""

from typing import Any

import pytest
import torch

from executor.chunks.setup import edges_taken
from executor.minibatch.batches import DrawnBatches, PartedBatches
from executor.minibatch.data import own_rows
from executor.minibatch.embeddings import Embeddings
from executor.minibatch.input_rows import ScheduledRows, StagedRows
from executor.minibatch.pair_scores import RankPairs
from executor.rank.assemble import edges_kept
from simgnn.emit.batches.on_rank import RankAction
from simgnn.emit.batches.staging import LocateRows, StageInputs
from simgnn.experiment.slots import SLOTS
from simgnn.registry import shipped

HOLDERS = (DrawnBatches, Embeddings, RankPairs, PartedBatches, ScheduledRows)


def _functions(holder: type) -> dict:
    return dict(object.__new__(holder).functions())


def test_every_action_has_one_function() -> None:
    listed = {
        action
        for slot in SLOTS
        if slot != "partition"
        for policy in shipped(slot).values()
        for action in policy.actions
        if issubclass(action, RankAction)
    }
    carried = [action for holder in HOLDERS for action in _functions(holder)]
    carried += own_rows(torch.zeros(0, dtype=torch.int64), torch.device("cpu"))
    nothing: Any = None  # no edges are selected here
    carried += edges_kept(nothing, nothing)
    carried += edges_taken([], [])
    assert len(carried) == len(set(carried))
    assert set(carried) == listed
    assert set(_functions(StagedRows)) == {LocateRows, StageInputs}


@pytest.mark.parametrize("slot", [slot for slot in SLOTS if slot != "partition"])
def test_labels_name_one_action_of_a_policy(slot: str) -> None:
    for policy in shipped(slot).values():
        labels = [action.label for action in policy.actions]
        assert len(set(labels)) == len(labels)
