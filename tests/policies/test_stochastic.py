"""Rounding at random: within a step, right on average, a pure function of seed and place, one arithmetic everywhere."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from executor.policies.accelerated import accelerated
from simgnn.emit import arrays as emitted
from simgnn.emit.caches.row_cache import DecodeMoved, EncodeMoved, SelectMoved
from simgnn.emit.row_codes import RowCodes
from simgnn.errors import BackendError
from simgnn.graph.hashing import stream_key, uniform_slice
from simgnn.policies.codec.linear import Linear
from simgnn.policies.codec.stochastic import Stochastic
from simgnn.policies.freshness.adaptive_vertex import AdaptiveVertex
from simgnn.policy import EncodeRows, PolicyContext
from tests.policies.acting import HERE, decoded, does, encoded

BITS = (2, 4, 8)
FINITE = st.floats(-(2.0**99), 2.0**99, width=32)
ROWS = arrays(np.float32, st.tuples(st.integers(1, 6), st.integers(1, 19)), elements=FINITE)


def stochastic(bits: int) -> Stochastic:
    return accelerated(Stochastic.model_validate({"bits": bits}))


@pytest.mark.parametrize("bits", BITS)
@settings(deadline=None, max_examples=60)
@given(values=ROWS)
def test_every_element_is_within_a_step(bits: int, values: np.ndarray) -> None:
    codec = stochastic(bits)
    for rows in (torch.from_numpy(values), torch.from_numpy(values.astype(np.float64))):
        found = decoded(codec, encoded(codec, rows), rows.shape[1], rows).double()
        low, high = rows.amin(1).double(), rows.amax(1).double()
        rounding = 8 * torch.finfo(rows.dtype).eps / 2 * torch.maximum(low.abs(), high.abs())
        bound = (high - low) / (2**bits - 1) + rounding + 1e-35
        assert bool(((found - rows.double()).abs() <= bound[:, None]).all())
        # the ends of a row are codes, so they are not drawn
        at_end = (rows == rows.amin(1, keepdim=True)) | (rows == rows.amax(1, keepdim=True))
        assert bool(((found - rows.double()).abs() <= rounding[:, None] + 1e-35)[at_end].all())


@pytest.mark.parametrize("bits", BITS)
@settings(deadline=None, max_examples=60)
@given(values=ROWS, seed=st.integers(0, 2**62))
def test_compiled_and_plain_operations_move_rows_alike(bits: int, values: np.ndarray, seed: int) -> None:
    rows, plain = torch.from_numpy(values), Stochastic.model_validate({"bits": bits})
    keys = emitted.draws(seed, torch.arange(len(rows)))
    moved = stochastic(bits).dithered(rows, keys)
    assert moved.equal(plain.dithered(rows, keys))
    assert np.array_equal(moved.numpy(), plain.dithered(values, keys.numpy()))


def test_the_numbers_are_those_of_the_project() -> None:
    key = stream_key(3, "codec")
    drawn = emitted.draws(emitted.signed(int(key)), torch.arange(1000))
    expected = uniform_slice(0, 1000, key)
    assert np.abs((drawn.numpy().view(np.uint64) >> np.uint64(11)) * 2.0**-53 - expected).max() == 0
    units = emitted.units(drawn, 50)
    assert units.shape == (1000, 50)
    assert 0 <= float(units.min()) < 0.001 < 0.999 < float(units.max()) < 1
    assert abs(float(units.mean()) - 0.5) < 5 / (12 * 50_000) ** 0.5


@pytest.mark.parametrize("bits", BITS)
def test_it_is_right_on_average(bits: int) -> None:
    """Within 5 standard errors of the mean of 10,000 draws: of 100 epochs, each of 100 rows that are named apart."""
    epochs, copies, width = 100, 100, 16
    rows = torch.rand(8, width, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    many, codec, total = rows.repeat(copies, 1), stochastic(bits), torch.zeros_like(rows)
    for epoch in range(epochs):
        packed = encoded(codec, many, here=replace(HERE, epoch=epoch))
        total += decoded(codec, packed, width, many).reshape(copies, *rows.shape).sum(0)
    low, draws = rows.amin(1, keepdim=True), epochs * copies
    step = (rows.amax(1, keepdim=True) - low) / (2**bits - 1)
    share = ((rows - low) / step) % 1  # the probability of the upper of two codes
    error = step * (share * (1 - share) / draws).sqrt()
    # one draw besides: of a share near 0 or 1 a few decide
    assert bool(((total / draws - rows).abs() <= 5 * error + step / draws).all())


def test_what_is_drawn_depends_on_the_place_and_nothing_else() -> None:
    rows = torch.rand(40, 33, generator=torch.Generator().manual_seed(4))
    codec = stochastic(4)
    whole = encoded(codec, rows)
    assert encoded(codec, rows.clone()).equal(whole)
    some = torch.tensor([3, 7, 39])
    assert encoded(codec, rows[some], some).equal(whole[some]), "other rows or their number matter"
    for other in ({"seed": 8}, {"epoch": 1}, {"step": 1}, {"layer": 2}, {"phase": "backward"}, {"rank": 1}):
        assert not encoded(codec, rows, here=replace(HERE, **other)).equal(whole), other
    assert len({tuple(row) for row in encoded(codec, rows[:1].expand(40, 33)).tolist()}) > 30


def test_a_row_that_goes_to_two_peers_is_encoded_alike() -> None:
    row = torch.rand(1, 33, generator=torch.Generator().manual_seed(5))
    there = replace(HERE, send=(0, 1), gathered=torch.tensor([12, 12]))
    (packed,) = does(EncodeRows, Stochastic(bits=4))(there, row.expand(2, 33).contiguous())
    assert packed[0].equal(packed[1])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_rows_that_are_not_finite_are_refused(value: float) -> None:
    rows = torch.ones(5, 4)
    rows[3, 2] = value
    with pytest.raises(BackendError, match="row 3 of 5"):
        encoded(stochastic(8), rows)


def drifting(policy: RowCodes) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows that drift for 40 epochs, what their sender holds of them, and what their receiver has."""
    generator = torch.Generator().manual_seed(6)
    freshness, threshold = AdaptiveVertex(epsilon=0.0, adapt=False), torch.zeros(1, 3)
    select, encode, decode = (does(action, freshness, policy) for action in (SelectMoved, EncodeMoved, DecodeMoved))
    rows, sent, kept = torch.randn(20, 9, generator=generator), torch.zeros(20, 9), torch.zeros(20, 9)
    for epoch in range(40):
        here = PolicyContext(0, epoch, 0, 1, "forward", 0, 2, (0, 20), (20, 0))
        rows = rows + 0.1 * torch.randn(20, 9, generator=generator)
        mask, chosen = select(here, rows, sent, threshold)
        packed, sent = encode(here, rows, chosen, sent)
        _, kept = decode(here, packed, mask, kept)
    return rows, sent, kept


@pytest.mark.parametrize("kind", [Linear, Stochastic])
def test_without_feedback_senders_are_exact_and_receivers_drift(kind: type[RowCodes]) -> None:
    rows, sent, kept = drifting(kind.model_validate({"bits": 4}))
    assert sent.equal(kept)
    fed_back = float((rows - kept).abs().max())
    rows, sent, kept = drifting(kind.model_validate({"bits": 4, "feedback": False}))
    assert sent.equal(rows)
    assert float((rows - kept).abs().max()) > 2 * fed_back
