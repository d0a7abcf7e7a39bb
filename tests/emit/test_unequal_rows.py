"""Messages of rows with unequal bits: where rows lie, what comes back, groups that both ends derive alike."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.policies.accelerated import accelerated
from simgnn.emit.bit_widths.actions import ChooseBits, DecodeUnequal, EncodeUnequal, TraceRanges
from simgnn.emit.bit_widths.rows import group_counts, group_sizes, group_sums, grouped
from simgnn.policies.codec.stochastic import Stochastic
from simgnn.policy import EncodeRows, RefusedRowsError
from tests.policies.acting import HERE, does

COUNTS = st.lists(st.integers(0, 9), min_size=2, max_size=4)
WIDTHS = st.integers(1, 19)


def codec(**options: Any) -> Stochastic:
    return accelerated(Stochastic.model_validate({"bits": "adaptive", **options}))


def case(seed: int, counts: list[int], width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows [n, F], and the bits of each, of which some are not assigned yet."""
    draw = np.random.default_rng(seed)
    rows = draw.standard_normal((sum(counts), width)).astype(np.float32)
    return torch.from_numpy(rows), torch.from_numpy(draw.choice([0, 2, 4, 8], (len(rows), 1)).astype(np.uint8))


def sent(rows: Any, bits: Any, counts: list[int], fast: bool = True, **options: Any) -> Any:
    """What :class:`EncodeUnequal` writes, of a rank that receives nothing."""
    none = bits[:0]
    here = replace(HERE, ranks=len(counts), send=tuple(counts), receive=(0,) * len(counts), **options)
    return does(EncodeUnequal, codec() if fast else Stochastic(bits="adaptive"), fast=fast)(here, rows, bits, none)


def back(message: Any, bits: Any, counts: list[int], width: int) -> Any:
    here = replace(HERE, ranks=len(counts), receive=tuple(counts), width=width)
    return does(DecodeUnequal, codec())(here, message, bits)[0]


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 99), counts=COUNTS, width=WIDTHS)
def test_rows_come_back_as_codes_of_their_own_bits(seed: int, counts: list[int], width: int) -> None:
    rows, bits = case(seed, counts, width)
    message, told, _ = sent(rows, bits, counts)
    found = back(message, bits, counts, width)
    names = torch.arange(len(rows))
    sizes = np.zeros(len(counts), dtype=int)
    peer = np.repeat(np.arange(len(counts)), counts)
    for place, (row, of_row) in enumerate(zip(rows, bits.flatten().tolist(), strict=True)):
        alone = codec().at(of_row or 8)
        packed = alone.encode(HERE, row[None], names[place : place + 1])
        assert torch.equal(found[place], alone.decode(HERE, packed, width, "float32")[0])
        assert packed.shape[1] == 8 + -(-width * (of_row or 8) // 8), "a header of 8 bytes, and the codes"
        sizes[peer[place]] += packed.shape[1]
    assert told.flatten().tolist() == [int(size) for size, count in zip(sizes, counts, strict=True) if count]
    assert len(message) == sizes.sum()


@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 99), counts=COUNTS, width=WIDTHS)
def test_arrays_of_numpy_give_the_same_bytes(seed: int, counts: list[int], width: int) -> None:
    rows, bits = case(seed, counts, width)
    message, told, _ = sent(rows, bits, counts)
    plain, same, _ = sent(rows.numpy(), bits.numpy(), counts, fast=False)
    assert np.array_equal(message.numpy(), plain)
    assert told.tolist() == same.tolist()


def test_ends_and_constant_rows_are_exact_and_others_within_a_step() -> None:
    rows, counts = torch.rand(60, 33, generator=torch.Generator().manual_seed(5)), [0, 25, 35]
    rows[7], rows[40] = 0.3, -2.0
    bits = torch.tensor([2, 4, 8] * 20, dtype=torch.uint8)[:, None]
    found = back(sent(rows, bits, counts)[0], bits, counts, 33)
    assert torch.equal(found[[7, 40]], rows[[7, 40]])
    low, high = rows.amin(1, keepdim=True), rows.amax(1, keepdim=True)
    step = (high - low) / (2.0 ** bits.float() - 1)
    assert bool(((found - rows).abs() <= step * (1 + 1e-5)).all())
    assert torch.equal(found.amin(1), rows.amin(1))
    torch.testing.assert_close(found.amax(1), rows.amax(1), rtol=1e-6, atol=1e-7)
    error = (found - rows).abs().mean(1)
    kept = torch.ones(60, dtype=torch.bool)
    kept[[7, 40]] = False
    few, some, most = (error[(bits[:, 0] == each) & kept].mean() for each in (2, 4, 8))
    assert most < some < few


def test_rows_are_right_on_average() -> None:
    """Copies of a row have other names, and so other random numbers."""
    copies, width = 10_000, 16
    values = torch.rand(6, width, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    rows, bits = values.repeat(copies, 1), torch.tensor([2, 4, 8] * 2, dtype=torch.uint8)[:, None]
    counts, many = [0, 6 * copies], bits.repeat(copies, 1)
    here = replace(HERE, receive=tuple(counts), width=width, dtype="float64")
    found = does(DecodeUnequal, codec())(here, sent(rows, many, counts)[0], many)[0]
    mean = found.reshape(copies, 6, width).mean(0)
    low, high = values.amin(1, keepdim=True), values.amax(1, keepdim=True)
    step = (high - low) / (2.0 ** bits.double() - 1)
    share = ((values - low) / step) % 1
    error = step * (share * (1 - share) / copies).sqrt()
    assert bool(((mean - values).abs() <= 5 * error + 5 * step / copies).all())


def test_both_ends_derive_the_same_groups_of_rows() -> None:
    rows, bits = case(3, [0, 11, 14], 9)
    counts, options = (0, 11, 14), {"width": 9, "dtype": "float32"}
    message = sent(rows, bits, list(counts))[0]
    weights = torch.rand(25, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    none, nothing = torch.empty((0, 1), dtype=torch.uint8), torch.empty((0, 1), dtype=torch.float64)
    act = does(TraceRanges, codec(group_size=4))
    sender = replace(HERE, rank=0, ranks=3, send=counts, receive=(0, 0, 0), options=options)
    receiver = replace(HERE, rank=1, ranks=3, send=(0, 0, 0), receive=counts, options=options)
    out, _, told, own = act(sender, message, bits, none, none, weights, nothing)
    _, arrived, _, _ = act(receiver, none, none, message, bits, nothing, weights)
    assert torch.equal(out, arrived)
    assert len(told) == 0, "rank 0 tells itself nothing"
    spread = (rows.amax(1) - rows.amin(1)).double()
    beta = 9 / 6 * spread**2 * weights[:, 0]
    for peer, part in ((1, slice(0, 11)), (2, slice(11, 25))):
        order = torch.argsort(beta[part])
        assert (out[part][order, 0].diff() >= 0).all(), "groups are by weight"
        of_peer = own[own[:, 2] == peer]
        assert of_peer[:, 1].tolist() == ([4, 4, 3] if peer == 1 else [4, 4, 4, 2])
        for group, (total, _, _) in zip(out[part].unique(), of_peer.tolist(), strict=True):
            expected = beta[part][out[part][:, 0] == group].sum()
            assert total == pytest.approx(float(expected), rel=1e-5)  # the step in the header is a float32


@settings(deadline=None, max_examples=20)
@given(counts=COUNTS, size=st.integers(1, 12), seed=st.integers(0, 50))
def test_groups_are_full_but_for_the_last_of_a_message(counts: list[int], size: int, seed: int) -> None:
    beta = np.random.default_rng(seed).integers(0, 4, sum(counts)).astype(float)  # with equal ones
    group = grouped(beta, counts, size)
    groups = sum(group_counts(counts, size))
    assert np.bincount(group, minlength=groups).tolist() == group_sizes(counts, size)
    assert torch.equal(torch.from_numpy(group), grouped(torch.from_numpy(beta), counts, size))
    sums = group_sums(beta, group, groups, size) if groups else np.empty(0)
    np.testing.assert_allclose(sums, np.bincount(group, beta, minlength=groups))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_rows_that_are_not_finite_are_refused(value: float) -> None:
    rows, bits = case(1, [0, 8], 5)
    rows[6, 2] = value
    named = r"rank 0, layer 1: the row of vertex 106 \(values\)"
    with pytest.raises(RefusedRowsError, match=named):
        sent(rows, bits, [0, 8], vertex_of=lambda row: 100 + row)
    here = replace(HERE, vertex_of=lambda row: 100 + row)
    with pytest.raises(RefusedRowsError, match=named):
        does(EncodeRows, accelerated(Stochastic()))(here, rows)


def test_a_message_counts_in_bytes_that_travel_within_a_host() -> None:
    nbytes = np.arange(9)
    plain = codec().links((0, 0, 1)).times(nbytes)
    assert plain.tolist() == nbytes.tolist(), "all links are alike and messages start at once"
    stated = codec(between_hosts=4, message_bytes=100).links((0, 0, 1)).times(nbytes).reshape(3, 3)
    assert stated.tolist() == [[100, 101, 108], [103, 104, 120], [124, 128, 108]]


def of_links(**options: Any) -> tuple[set[int], set[int]]:
    """The bits of messages within hosts and between them, of two hosts of two ranks. Each rank sends a group of equal
    rows to each other one."""
    ranks, hosts = 4, np.array([0, 0, 1, 1])
    sender, receiver = np.nonzero(~np.eye(ranks, dtype=bool))
    stated = np.column_stack([np.ones(len(sender)), np.full(len(sender), 10), receiver])
    here = replace(
        HERE, rank=0, ranks=ranks, hosts=tuple(hosts.tolist()), receive=(0, 3, 3, 3),
        options={"width": 64, "dtype": "float32"},
    )  # fmt: skip
    out, mine = does(ChooseBits, codec(**options))(here, *map(torch.from_numpy, (stated[:3], stated[3:])))
    given = torch.split(torch.cat((mine, out)).flatten(), 6)  # of each rank: three groups sent, three received
    sent = torch.cat([part[:3] for part in given]).numpy()
    received = torch.cat([part[3:] for part in given]).numpy()
    by_pair = np.zeros((ranks, ranks), dtype=int)
    by_pair[sender, receiver] = sent
    assert received.tolist() == by_pair.T[sender, receiver].tolist(), "both ends get the same bits"
    near = hosts[sender] == hosts[receiver]
    return {*sent[near].tolist()}, {*sent[~near].tolist()}


def test_slower_bytes_between_hosts_take_bits_from_their_messages_alone() -> None:
    """At 4 bits the objective is least if all links are alike. Within hosts, 8 bits then take no longer than that."""
    assert of_links() == ({4}, {4})
    assert of_links(between_hosts=20.0) == ({8}, {4})
    assert of_links(between_hosts=20.0, lam=0.0) == ({8}, {2})


def test_where_the_start_of_a_message_takes_longest_bits_cost_nothing() -> None:
    assert of_links(message_bytes=1e9) == ({8}, {8})
    assert of_links(message_bytes=1e9, between_hosts=20.0) == ({8}, {8})
