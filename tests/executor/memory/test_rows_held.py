"""How many copies of rows the ops of caches and of learned vectors hold at once, beside what they read and give: what
ops state as their scratch."""

import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from executor.layers.attention import GAT
from executor.layers.build import build_layers
from executor.minibatch.embeddings import Embeddings
from executor.policies.accelerated import accelerated
from simgnn.emit.caches import replica_cache, row_cache
from simgnn.emit.caches.masks import WireMask
from simgnn.model.spec import LayerSpec
from simgnn.partition.local.serving import Serving
from simgnn.policies.codec.linear import Linear
from simgnn.policies.codec.none import Plain
from simgnn.policies.codec.stochastic import Stochastic
from simgnn.policies.freshness.adaptive_vertex import AdaptiveVertex
from simgnn.policy import Codec, PolicyContext
from tests.policies.acting import does

ROWS, WIDTH = 1000, 64
COPY = ROWS * WIDTH * 4


class Held(TorchDispatchMode):
    """Most bytes at once of tensors that were made inside, and of those that are left at its end."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._users: Counter[int] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        given = {one.untyped_storage().data_ptr() for one in tree_leaves(args) if isinstance(one, torch.Tensor)}
        for one in tree_leaves(found):
            if isinstance(one, torch.Tensor) and not any(one is other for other in tree_leaves((args, kwargs))):
                self._note(one, one.untyped_storage().data_ptr() in given)
        return found

    def _note(self, tensor: torch.Tensor, view: bool) -> None:
        place, nbytes = tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes()
        if view and place not in self._users:  # of what was there before
            return
        if not self._users[place]:
            self.now += nbytes
            self.most = max(self.most, self.now)
        self._users[place] += 1
        weakref.finalize(tensor, self._gone, place, nbytes)

    def _gone(self, place: int, nbytes: int) -> None:
        self._users[place] -= 1
        if not self._users[place]:
            del self._users[place]
            self.now -= nbytes


def copies(run: Callable[[], Any]) -> float:
    """Copies of [ROWS, WIDTH] that ``run`` holds at most, beside what it gives."""
    run()  # what is made once
    with Held() as held:
        given = run()
        beside = held.most - held.now
    del given
    return beside / COPY


LINEAR, EXACT = {"bits": 8}, {"bits": 8, "feedback": False}
HERE = PolicyContext(
    0, 0, 0, 1, "forward", 0, 2, (0, ROWS), (0, ROWS), WIDTH,
    leaving=torch.arange(ROWS), arriving=torch.arange(ROWS, 2 * ROWS), gathered=torch.arange(ROWS),
)  # fmt: skip
ALL = torch.arange(ROWS)
THRESHOLD = torch.zeros(1, 3, dtype=torch.float64)


def some(rows: int = ROWS) -> torch.Tensor:
    return torch.randn(rows, WIDTH)


@pytest.mark.parametrize(
    ("codec", "action", "most"),
    [
        (Plain(), row_cache.EncodeMoved, 0), (Plain(), replica_cache.EncodeChange, 1),
        (Plain(), replica_cache.EncodeSums, 1), (Plain(), row_cache.DecodeMoved, 0),
        (Plain(), replica_cache.AddParts, 0), (Plain(), replica_cache.TakeSums, 0), (Plain(), replica_cache.FoldOwn, 2),
        (Linear(**LINEAR), row_cache.EncodeMoved, 2), (Linear(**LINEAR), replica_cache.EncodeChange, 2),
        (Linear(**LINEAR), replica_cache.EncodeSums, 2), (Linear(**LINEAR), row_cache.DecodeMoved, 1),
        (Linear(**LINEAR), replica_cache.AddParts, 1), (Linear(**LINEAR), replica_cache.TakeSums, 2),
        (Linear(**EXACT), row_cache.EncodeMoved, 2), (Stochastic(bits=8), row_cache.EncodeMoved, 3),
    ],
)  # fmt: skip
def test_ops_of_caches_hold_two_copies_of_rows_at_most(codec: Codec, action: Any, most: int) -> None:
    run, rows, cached, both = does(action, AdaptiveVertex(), codec), some(), some(), some(2 * ROWS)
    mask = WireMask((0, ROWS), rows).pack(torch.ones(ROWS, dtype=torch.bool))
    arrived = accelerated(Linear(**LINEAR)).pack(some()) if codec.encodes else some()
    read: dict[Any, tuple[torch.Tensor, ...]] = {
        row_cache.EncodeMoved: (rows, ALL, cached),
        replica_cache.EncodeChange: (rows, ALL, cached),
        replica_cache.EncodeSums: (ALL, mask, rows, *([cached] if codec.encodes else [])),
        row_cache.DecodeMoved: (arrived, mask, cached),
        replica_cache.AddParts: (arrived, mask, cached),
        replica_cache.TakeSums: (arrived, mask, cached, both, rows),
        replica_cache.FoldOwn: (both.fill_(torch.nan), cached, rows, THRESHOLD),  # so all of them move
    }
    here = replace(HERE, arriving=ALL) if action is replica_cache.AddParts else HERE
    assert most - 0.1 < copies(lambda: run(here, *read[action])) < most + 0.4, "masks, places, codes: a few bytes a row"


def test_learned_vectors_are_summed_in_one_copy_and_change_in_two() -> None:
    learned = Embeddings(0, Serving((0, 0)), None, None, lambda epoch, step: torch.tensor([0, ROWS]), WIDTH, 0.1)  # type: ignore[arg-type]
    table, state, seeds = some(), some().abs(), torch.tensor([[2.0]])
    own, others = (torch.arange(ROWS)[:, None], some()), (torch.arange(ROWS)[:, None], some())
    assert 2 < copies(lambda: learned.summed(HERE, own[0][:, 0], own[1], seeds, others[0][:, 0], others[1])) < 2.5
    assert 2 <= copies(lambda: learned.applied(HERE, ALL, own[1], state, table)) < 2.2


def test_gradients_of_rows_get_those_of_scores_where_they_lie() -> None:
    spec = LayerSpec(2, "gat", 4, WIDTH, "transform-first", prepared_width=WIDTH, heads=2)
    layer = cast(GAT, build_layers([spec], 0, torch.float32)[0])
    of_rows, prepared, scores = some(), some(), torch.randn(ROWS, 2)
    with torch.no_grad():
        assert copies(lambda: layer.score_gradients(of_rows, scores, scores, prepared)) < 0.3
        assert layer.score_gradients(of_rows, scores, scores, prepared) is of_rows
