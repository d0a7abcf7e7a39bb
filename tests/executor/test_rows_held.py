"""How many copies of rows the ops of caches and of learned vectors hold at once, beside what they read and give: what
:mod:`simgnn.sim.memory_work` counts."""

import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from executor.codecs import codec_of
from executor.kernels.masks import wire_mask
from executor.replicas import AdaptiveReplicas
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from executor.handlers.context import PolicyContext
from executor.layers.attention import GAT
from executor.layers.build import build_layers
from executor.minibatch.embeddings import Embeddings
from simgnn.model.spec import LayerSpec
from simgnn.partition.serving import Serving
from simgnn.policies.codec.linear import Linear
from simgnn.policies.codec.stochastic import Stochastic
from simgnn.policies.freshness.adaptive_vertex import AdaptiveVertex

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


def face(codec: Any) -> AdaptiveReplicas:
    return AdaptiveReplicas(AdaptiveVertex(), codec_of(codec) if codec else None)


def some(rows: int = ROWS) -> torch.Tensor:
    return torch.randn(rows, WIDTH)


@pytest.mark.parametrize(
    ("codec", "name", "most"),
    [
        (None, "encode", 0), (None, "encode_change", 1), (None, "encode_sums", 1), (None, "decode", 0),
        (None, "add_parts", 0), (None, "take_sums", 0), (None, "fold", 2),
        (Linear(**LINEAR), "encode", 2), (Linear(**LINEAR), "encode_change", 2), (Linear(**LINEAR), "encode_sums", 2),
        (Linear(**LINEAR), "decode", 1), (Linear(**LINEAR), "add_parts", 1), (Linear(**LINEAR), "take_sums", 2),
        (Linear(**EXACT), "encode", 2), (Stochastic(bits=8), "encode", 3),
    ],
)  # fmt: skip
def test_ops_of_caches_hold_two_copies_of_rows_at_most(codec: Any, name: str, most: int) -> None:
    ops, rows, cached = face(codec), some(), some()
    mask = wire_mask((0, ROWS), torch.device("cpu")).pack(torch.ones(ROWS, dtype=torch.bool))
    arrived = some() if ops.codec is None else face(Linear(**LINEAR)).codec.encode(some())  # type: ignore[union-attr]
    shown: dict[str, Callable[[], Any]] = {
        "encode": lambda: ops.encode(HERE, rows, ALL, cached),
        "encode_change": lambda: ops.encode_change(HERE, rows, ALL, cached),
        "encode_sums": lambda: ops.encode_sums(HERE, ALL, mask, rows, cached if ops.codec else None),
        "decode": lambda: ops.decode(HERE, arrived, mask, cached),
        "add_parts": lambda: ops.add_parts(replace(HERE, arriving=ALL), arrived, mask, cached),
        "take_sums": lambda: ops.take_sums(HERE, arrived, mask, cached, both, rows),
        "fold": lambda: ops.fold(HERE, both.fill_(torch.nan), cached, rows, THRESHOLD),  # so all of them move
    }  # fmt: skip
    both = some(2 * ROWS)
    assert most - 0.1 < copies(shown[name]) < most + 0.4, "masks, places, codes: a few bytes a row"


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
