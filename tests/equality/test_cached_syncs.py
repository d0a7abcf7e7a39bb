"""Codecs and the adaptive cache on an edge-cut: identity settings are exact training, both ends hold the same bits,
errors are bounded, and what a run decided is what its program sends. What is replayed: test_replayed_activity.py."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from simgnn.analysis.replay.activity import read_recording
from simgnn.emit.caches.row_cache import DecodeMoved, EncodeMoved, SelectMoved
from simgnn.policies.codec.linear import Linear
from simgnn.policies.codec.none import Plain
from simgnn.policies.freshness.adaptive_vertex import AdaptiveVertex
from tests.equality.cached_runs import (
    CACHE,
    DRAWN,
    EIGHT_BITS,
    FIXED,
    TRANSFORMED,
    Runs,
    case,
    check_bytes,
    check_exact,
    check_learns,
    check_repeats,
)
from tests.equality.cases import Case
from tests.equality.conftest import Bench
from tests.equality.counting import planned_pairs, turns_of
from tests.policies.acting import does

pytest.importorskip("dgl", reason="the reference is made of DGL's layers (Python below 3.12)")


@pytest.fixture(scope="module")
def runs(bench: Bench) -> Runs:
    return Runs(bench)


# -- identity ------------------------------------------------------------------------------------------------------


IDENTITY = [
    case(*FIXED, *TRANSFORMED),
    case(*FIXED, *TRANSFORMED, ranks=3, model="sage"),
    case(*FIXED, ranks=4, model="gin"),
    case(*FIXED, ranks=2, model="gat"),
    case(*FIXED, ranks=1),
]
WHOLE = [case(*FIXED, ranks=ranks, model=model) for model in ("gcn", "sage", "gin", "gat") for ranks in (1, 2, 3, 4)]


@pytest.mark.parametrize(
    "one",
    [*IDENTITY, *(pytest.param(one, marks=pytest.mark.slow) for one in WHOLE if one not in IDENTITY)],
    ids=lambda one: one.name,
)
def test_a_threshold_of_zero_is_exact_training(bench: Bench, one: Case) -> None:
    check_exact(bench, one)


def test_a_threshold_of_zero_gives_the_bits_of_vanilla(runs: Runs) -> None:
    plain, cached = (runs.of(case(*TRANSFORMED, *more)).finished for more in ((), FIXED))
    assert cached.ranks[0]["parameters"].equal(plain.ranks[0]["parameters"])
    assert cached.ranks[0]["losses"] == plain.ranks[0]["losses"]


def test_float32_on_the_wire_is_nothing_for_float32_training(runs: Runs) -> None:
    losses = [
        runs.of(Case("communities", "gcn", "metis", 2, "float32-adam", extra)).finished.ranks[0]["losses"]
        for extra in ((), ("codec.kind=float32",))
    ]
    assert losses[0] == losses[1]


@pytest.mark.parametrize(
    "extra",
    [CACHE, (*CACHE, *EIGHT_BITS), EIGHT_BITS, ("codec.kind=linear", "codec.bits=16"), ("codec.kind=bfloat16",)],
    ids="-".join,
)
def test_lossy_training_still_learns(runs: Runs, extra: Sequence[str]) -> None:
    check_learns(runs.of(case(*extra, *TRANSFORMED)), runs.of(case(*TRANSFORMED)))


# -- caches --------------------------------------------------------------------------------------------------------

LOSSY = [
    (*CACHE, *TRANSFORMED),
    (*CACHE, *EIGHT_BITS, *TRANSFORMED),
    (*CACHE, "codec.kind=linear", "codec.bits=2"),
    (*CACHE, "freshness.index=ids", "codec.kind=stochastic", *TRANSFORMED),
]


@pytest.mark.parametrize("extra", LOSSY, ids="-".join)
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_both_ends_hold_the_same_bits(runs: Runs, extra: tuple[str, ...], ranks: int) -> None:
    recorded = runs.of(case(*extra, ranks=ranks))
    caches = [rank["caches"] for rank in recorded.finished.ranks]
    points = sorted({name.split("/", 1)[1] for name in caches[0] if name.startswith("sent/")})
    assert points
    for point in points:
        route = "halo" if "forward" in point else "halo/reverse"
        rows = recorded.program.sizes.routes[route].matrix(ranks)
        for source in range(ranks):
            sent = caches[source][f"sent/{point}"].split(rows[source].tolist())
            for target in range(ranks):
                kept = caches[target][f"kept/{point}"].split(rows[:, target].tolist())
                assert sent[target].equal(kept[source]), (point, source, target)
                assert not rows[source, target] or sent[target].any()
    assert all(other["threshold#0"].equal(caches[0]["threshold#0"]) for other in caches)


def test_no_cached_row_is_further_off_than_allowed() -> None:
    """After each round, |row - cached| is at most epsilon |row|, or for a sent row the codec's bound."""

    from executor.state.context import PolicyContext

    generator = torch.Generator().manual_seed(5)
    for bits in (None, 1, 8):
        policy = AdaptiveVertex(epsilon=0.05, adapt=False)
        codec = Plain() if bits is None else Linear.model_validate({"bits": bits})
        rows = torch.randn(40, 9, generator=generator)
        select, encode, decode = (does(action, policy, codec) for action in (SelectMoved, EncodeMoved, DecodeMoved))
        threshold = torch.zeros(1, 3, dtype=torch.float64)
        sent, kept = torch.zeros(40, 9), torch.zeros(40, 9)
        here = PolicyContext(0, 0, 0, 1, "forward", 0, 2, (0, 40), (40, 0))
        for _ in range(12):
            rows = rows + 0.02 * torch.randn(40, 9, generator=generator)
            before = sent.clone()
            mask, chosen = select(here, rows, sent, threshold)
            packed, sent = encode(here, rows, chosen, sent)
            out, kept = decode(here, packed, mask, kept)
            assert out.equal(kept)
            assert kept.equal(sent)
            off = (rows - sent).abs().amax(1)
            allowed = 0.05 * rows.abs().amax(1)
            if bits is not None:
                change = rows - before
                spread = change.amax(1) - change.amin(1)
                coded = spread / (2 * (2**bits - 1)) + 1e-5
                allowed = torch.where(torch.isin(torch.arange(40), chosen), coded, allowed)
            else:
                assert rows[chosen].equal(sent[chosen])
            assert bool((off <= allowed * (1 + 1e-6)).all())


def test_two_runs_are_alike_bit_for_bit(runs: Runs) -> None:
    check_repeats(runs.of(case(*LOSSY[1])), runs.of(case(*LOSSY[1], "train.timeout=299")))


# -- activity ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("extra", [*LOSSY, (*EIGHT_BITS, *TRANSFORMED), (*DRAWN, *TRANSFORMED)], ids="-".join)
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_program_simulation_and_transport_agree(runs: Runs, extra: tuple[str, ...], ranks: int) -> None:
    check_bytes(runs.of(case(*extra, ranks=ranks)))


def test_bytes_in_closed_form(runs: Runs) -> None:
    """ceil(n / 8) bytes of mask a pair and sync, and 16 + ceil(w B / 8) a row (float64: a header of 16)."""
    recorded = runs.of(case(*LOSSY[1]))
    program, result = recorded.program, recorded.finished
    rows = program.sizes.routes["halo"].matrix(2)
    ops = {op.name: op for op in program.templates["steady"].ops}
    for layer, width in ((1, 16), (2, 6)):
        for phase, route in (("forward", rows), ("backward", rows.T)):
            masks = planned_pairs(program, turns_of(program, 1, ()), recorded.decided)
            op = ops[f"{phase}/{layer}/mask"]
            steady = program.op_ids["steady", op.name]
            assert masks[steady, 0, 1] == (1, -(-int(route[0, 1]) // 8))
            transfer = ops[f"{phase}/{layer}/exchange"].transfer
            assert transfer is not None
            assert transfer.row_bytes == 16 + width
    assert result.plan.policies["codec"].label == "linear"


def test_every_row_is_sent_at_first_and_fewer_later(runs: Runs) -> None:
    recorded = runs.of(case(*CACHE, *TRANSFORMED))
    limit = recorded.program.sizes.routes["halo"].matrix(2)
    rows = recorded.decided["sync/1/forward/rows"][..., 0]
    assert np.array_equal(rows[:, :, 0], limit)
    assert rows[:, :, -1].sum() < limit.sum()


def test_the_threshold_follows_from_the_recorded_accuracies(runs: Runs) -> None:
    recorded = runs.of(case(*CACHE, *TRANSFORMED))
    policy = recorded.finished.plan.policies["freshness"]
    assert isinstance(policy, AdaptiveVertex)
    accuracies = read_recording(recorded.finished.folder).accuracies
    assert accuracies is not None
    state = policy.start()
    for accuracy in accuracies:
        state = policy.adjusted(state, accuracy)
    epsilon, mean, _ = recorded.finished.ranks[0]["caches"]["threshold#0"][0].tolist()
    assert (state.epsilon, state.mean_accuracy) == (epsilon, mean)
    assert epsilon != policy.epsilon
