"""Codecs and caches on a CUDA device are those of the CPU: the same bytes, the same choices, the same rows."""

from collections.abc import Callable

import pytest
import torch

from executor.policies.accelerated import accelerated
from simgnn.emit.caches.masks import WireMask
from simgnn.errors import BackendError
from simgnn.policies.codec.linear import Linear
from simgnn.policies.freshness.adaptive_vertex import AdaptiveVertex
from simgnn.policies.freshness.skip_broadcast import SkipBroadcast
from tests.executor.test_replica_rounds import WIDTH, Sync
from tests.policies.acting import HERE, decoded

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")


@pytest.mark.parametrize("bits", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_codes_are_the_same_bytes(bits: int, dtype: torch.dtype, gpus: Callable[[int], None]) -> None:
    gpus(1)
    rows = torch.randn(300, 37, dtype=dtype, generator=torch.Generator().manual_seed(bits))
    rows[7] = 1 / 3
    codec = accelerated(Linear.model_validate({"bits": bits}))
    here, there = codec.pack(rows), codec.pack(rows.to(CUDA))
    assert there.device.type == "cuda"
    assert torch.equal(here, there.cpu())
    found = decoded(codec, there, 37, rows)
    assert torch.equal(decoded(codec, here, 37, rows), found.cpu())
    rows[3, 2] = torch.inf
    with pytest.raises(BackendError, match="row 3 of 300"):
        codec.pack(rows.to(CUDA))


def test_choices_and_masks_are_the_same(gpus: Callable[[int], None]) -> None:
    gpus(1)
    draw = torch.Generator().manual_seed(0)
    rows, cached = torch.randn(500, 9, generator=draw), torch.randn(500, 9, generator=draw)
    cached[::2] = rows[::2] * 1.01
    rows[4, 4] = torch.nan
    policy, state = accelerated(AdaptiveVertex(epsilon=0.05)), (0.05, 0.0)
    here = policy.moved(HERE, rows, cached, state)
    there = policy.moved(HERE, rows.to(CUDA), cached.to(CUDA), state)
    assert torch.equal(here, there.cpu())
    assert 0 < int(here.sum()) < 500
    counts = [200, 0, 13, 287]
    masks = [WireMask(counts, chosen) for chosen in (here, there)]
    packed = [mask.pack(chosen) for mask, chosen in zip(masks, (here, there), strict=True)]
    assert torch.equal(packed[0], packed[1].cpu())
    assert masks[1].chosen_of_peers(packed[1]) == masks[0].chosen_of_peers(packed[0])
    gap = SkipBroadcast(rule="variation-gap", bound_change=0.5)
    pairs = (rows[10:], cached[10:]), (rows[10:].to(CUDA), cached[10:].to(CUDA))
    change = [gap.change(*pair) for pair in pairs]
    assert change[0] == pytest.approx(change[1], rel=1e-9)


@pytest.mark.parametrize("bits", [None, 4, 8])
def test_rounds_over_masters_and_mirrors_are_the_same(bits: int | None, gpus: Callable[[int], None]) -> None:
    gpus(1)
    draw = torch.Generator().manual_seed(3)
    here, there = Sync(bits), Sync(bits, CUDA)
    parts = [torch.randn(len(one.vertices), WIDTH, generator=draw) for one in here.graphs]
    for _ in range(8):
        parts = [part + 0.02 * torch.randn(part.shape, generator=draw) for part in parts]
        rows, moved = [part.clone() for part in parts], [part.to(CUDA) for part in parts]
        active, found = here.round(rows), there.round(moved)
        for one, other in zip((*active, *rows), (*found, *moved), strict=True):
            assert other.device.type == "cuda"
            assert torch.equal(one, other.cpu())
