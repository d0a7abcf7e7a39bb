"""Codecs: bounds of their error, exact cases, refusals, the bytes themselves, and one arithmetic everywhere."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from executor.policies.accelerated import accelerated
from simgnn.emit.caches.masks import WireMask
from simgnn.errors import BackendError, ConfigError
from simgnn.experiment.load import load_experiment
from simgnn.policies.codec.bfloat16 import Bfloat16
from simgnn.policies.codec.float32 import Float32
from simgnn.policies.codec.linear import Linear
from simgnn.policies.codec.none import Plain
from simgnn.policies.codec.stochastic import Stochastic
from simgnn.policies.freshness.adaptive_vertex import AdaptiveVertex
from simgnn.policy import Codec
from tests.policies.acting import HERE, decoded, encoded

BITS = (1, 2, 4, 8, 16)
FINITE = st.floats(-(2.0**99), 2.0**99, width=32)
ROWS = arrays(np.float32, st.tuples(st.integers(0, 6), st.integers(1, 19)), elements=FINITE)


def linear(bits: int) -> Linear:
    return accelerated(Linear.model_validate({"bits": bits}))


def check_bound(rows: torch.Tensor, bits: int) -> torch.Tensor:
    """Encode and decode; every element within the codec's bound of what it was."""
    codec = linear(bits)
    packed = encoded(codec, rows)
    kind = str(rows.dtype).removeprefix("torch.")
    assert packed.shape == (len(rows), codec.row_bytes(rows.shape[1], kind))
    found = decoded(codec, packed, rows.shape[1], rows)
    if len(rows):
        low, high = rows.amin(1).double(), rows.amax(1).double()
        rounding = 4 * torch.finfo(rows.dtype).eps / 2 * torch.maximum(low.abs(), high.abs())
        bound = (high - low) / (2 * (2**bits - 1)) + rounding + 1e-35
        assert bool(((found.double() - rows.double()).abs() <= bound[:, None]).all())
    return found


@pytest.mark.parametrize("bits", BITS)
@settings(deadline=None, max_examples=60)
@given(values=ROWS)
def test_every_element_is_within_the_bound(bits: int, values: np.ndarray) -> None:
    check_bound(torch.from_numpy(values), bits)
    check_bound(torch.from_numpy(values.astype(np.float64)), bits)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(
    "row",
    [
        [0.0],
        [3.0],
        [1e-45, 3e-45, 0.0],
        [1e30, -1e30, 5e29],
        [1e-38, 1.1e-38, -1e-38],
        [1.0, 1.0 + 2**-23],
        [-0.0, 0.0],
    ],
    ids=str,
)
def test_the_edges_of_the_numbers(bits: int, row: list[float]) -> None:
    check_bound(torch.tensor([row], dtype=torch.float32), bits)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_of_one_value_and_their_ends_are_exact(bits: int, dtype: torch.dtype) -> None:
    constant = torch.full((3, 7), 1 / 3, dtype=dtype)
    assert decoded(linear(bits), linear(bits).pack(constant), 7, constant).equal(constant)
    rows = torch.tensor([[-1.0, 2.0, 2.0, -1.0]], dtype=dtype)
    assert decoded(linear(bits), linear(bits).pack(rows), 4, rows).tolist() == rows.tolist()


def test_the_bytes_of_a_row() -> None:
    """Smallest value, step, then codes from the lowest bits up, padded to a byte."""
    rows = torch.tensor([[0.0, 3.0, 1.0, 2.0, 3.0]])
    packed = linear(2).pack(rows)[0]
    assert packed[:8].contiguous().view(torch.float32).tolist() == [0.0, 1.0]
    assert packed[8:].tolist() == [0b10_01_11_00, 0b11]
    wide = linear(16).pack(torch.tensor([[0.0, 65535.0, 258.0]]))[0]
    assert wide[8:].tolist() == [0, 0, 255, 255, 2, 1]


CODECS = (
    *(Linear.model_validate({"bits": bits}) for bits in BITS),
    *(Stochastic.model_validate({"bits": bits}) for bits in (2, 4, 8)),
    Float32(), Bfloat16(), Plain(),
)  # fmt: skip


@pytest.mark.parametrize("codec", CODECS, ids=str)
@pytest.mark.parametrize("kind", [np.float32, np.float64])
@settings(deadline=None, max_examples=25)
@given(values=ROWS)
def test_arrays_tensors_and_kernels_give_the_same_bytes(codec: Codec, kind: type, values: np.ndarray) -> None:
    rows = values.astype(kind) + 0.0  # which of two zeros is the smallest, each library decides for itself
    packed = encoded(codec, rows)
    assert packed.dtype == np.uint8
    assert packed.shape == (len(rows), codec.row_bytes(rows.shape[1], rows.dtype.name))
    back = decoded(codec, packed, rows.shape[1], rows)
    assert (back.dtype, back.shape) == (rows.dtype, rows.shape)
    for one in (codec, accelerated(codec)):
        wire = encoded(one, torch.from_numpy(rows))
        assert np.array_equal(wire.numpy(), packed)
        assert np.array_equal(decoded(one, wire, rows.shape[1], torch.from_numpy(rows)).numpy(), back)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_rows_that_are_not_finite_are_refused(value: float) -> None:
    rows = torch.ones(5, 4)
    rows[3, 2] = value
    with pytest.raises(BackendError, match="row 3 of 5"):
        linear(8).pack(rows)
    with pytest.raises(BackendError, match="row 3 of 5"):
        Linear().pack(rows.numpy())


def test_a_range_that_overflows_is_refused() -> None:
    with pytest.raises(BackendError, match="its range overflows float32"):
        linear(8).pack(torch.tensor([[3e38, -3e38]]))


def test_narrower_types() -> None:
    rows = torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for policy, dtype, error in ((Float32(), torch.float32, 2**-24), (Bfloat16(), torch.bfloat16, 2**-8)):
        packed = encoded(policy, rows)
        assert packed.shape == (6, policy.row_bytes(5, "float64"))
        found = decoded(policy, packed, 5, rows)
        assert found.equal(rows.to(dtype).double())
        assert bool(((found - rows).abs() <= error * rows.abs()).all())


@settings(deadline=None, max_examples=60)
@given(values=ROWS)
def test_codes_that_repeat_are_their_own(values: np.ndarray) -> None:
    """What lets rows pass through other ranks: codes of decoded rows are the same bytes."""
    rows = torch.from_numpy(values).double()
    repeatable = [policy for policy in (Float32(), Bfloat16(), Linear()) if policy.repeatable]
    assert [policy.kind for policy in repeatable] == ["float32", "bfloat16"]
    for policy in repeatable:
        packed = encoded(policy, rows)
        assert encoded(policy, decoded(policy, packed, rows.shape[1], rows)).equal(packed)


@settings(deadline=None, max_examples=60)
@given(
    values=st.integers(1, 12).flatmap(
        lambda width: arrays(np.float32, (2, 5, width), elements=st.floats(-2, 2, width=32) | st.just(np.nan))
    ),
    epsilon=st.sampled_from([0.0, 0.01, 0.3]),
    reference=st.sampled_from(["current", "cached"]),
)
def test_the_compiled_test_of_rows_is_the_policy(values: np.ndarray, epsilon: float, reference: str) -> None:
    policy = AdaptiveVertex.model_validate({"epsilon": epsilon, "adapt": False, "reference": reference})
    rows, cached = (torch.from_numpy(part.copy()) for part in values)
    with np.errstate(invalid="ignore"):
        expected = policy.moved(HERE, *values, (epsilon, 0.0))
    for one in (policy, accelerated(policy)):
        assert one.moved(HERE, rows, cached, (epsilon, 0.0)).tolist() == expected.tolist()


@given(st.lists(st.lists(st.booleans(), max_size=20), max_size=5))
def test_masks_come_back_as_they_were(peers: list[list[bool]]) -> None:
    mask = WireMask([len(rows) for rows in peers], torch.zeros(0))
    chosen = torch.tensor([bit for rows in peers for bit in rows], dtype=torch.bool)
    packed = mask.pack(chosen)
    assert len(packed) == sum(-(-len(rows) // 8) for rows in peers)
    assert mask.unpack(packed).equal(chosen)
    if peers:
        assert mask.chosen_of_peers(packed) == [sum(rows) for rows in peers]


def test_the_bits_of_a_mask() -> None:
    mask = WireMask([3, 0, 9], torch.zeros(0))
    chosen = torch.tensor([1, 0, 1, *[0] * 8, 1], dtype=torch.bool)
    assert mask.pack(chosen).tolist() == [0b101, 0, 0b1]


def test_a_small_sum_of_weights_does_not_survive_one_range_with_large_sums() -> None:
    """Why codes with one range a row are refused for attention on a vertex-cut: of two heads one sees one neighbour,
    the other three hundred; what divides the first becomes nothing like one."""
    sums = torch.cat((torch.full((1, 4), 0.5), torch.linspace(-299.4, 300, 4)[None], torch.tensor([[1.0, 300.0]])), 1)
    coarse = decoded(linear(8), linear(8).pack(sums), 10, sums)
    assert abs(float(coarse[0, 8]) - 1) > 0.3
    for policy in (Float32(), Bfloat16()):
        assert policy.relative
        found = decoded(policy, encoded(policy, sums), 10, sums)
        assert bool(((found - sums).abs() <= 2**-8 * sums.abs()).all())
    with pytest.raises(ConfigError, match=r"codec\.kind: got 'linear' with model\.kind = 'gat' .*bfloat16"):
        load_experiment("cdfgnn", ["model.kind=gat", "freshness={kind='always'}"])
    load_experiment("cdfgnn", ["model.kind=gat", "freshness={kind='always'}", "codec={kind='bfloat16'}"])
