"""Skip-broadcast in real runs: exact where its bound is zero, bounded where it is not, and replayed byte by byte."""

import itertools
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

from simgnn.policies.freshness.skip_broadcast import SkipBroadcast
from simgnn.program.kinds import OpKind
from simgnn.program.sizes import IntArray
from simgnn.record.activity import decisions_of, read_activity
from simgnn.record.rundir import RunDirectory, read_table
from tests.equality.block_runs import (
    FIRST,
    agrees_with_one_process,
    block_case,
    broadcast_bytes,
    collective_bytes,
    example,
    nothing_is_lost,
    parameters,
    simulated,
    told,
)
from tests.equality.cases import EPOCHS, Case
from tests.equality.conftest import Bench, Finished
from tests.equality.counting import differences

SKIP = "freshness.kind=skip-broadcast"


def fixed(bound: int) -> tuple[str, ...]:
    return (SKIP, "freshness.rule=epoch-fixed", f"freshness.bound_epochs={bound}")


def adaptive(bound: int) -> tuple[str, ...]:
    return (SKIP, "freshness.rule=epoch-adaptive", f"freshness.bound_epochs={bound}")


def gap(bound: float) -> tuple[str, ...]:
    return (SKIP, "freshness.rule=variation-gap", f"freshness.bound_change={bound}")


CODED = ("codec.kind=linear", "codec.bits=16")


def activity(finished: Finished) -> dict[str, IntArray]:
    """What the run's policies decided."""
    return decisions_of(read_activity(RunDirectory(finished.folder).activity), finished.plan.ranks)


def policy_of(finished: Finished) -> SkipBroadcast:
    found = finished.plan.policies["freshness"]
    assert isinstance(found, SkipBroadcast)
    return found


# -- exact where nothing is skipped ------------------------------------------------------------------------------------

ZERO: Mapping[str, tuple[str, ...]] = {
    "epoch-fixed": (FIRST, *fixed(0)),
    "epoch-adaptive": (FIRST, *adaptive(0)),
    "variation-gap": (FIRST, *gap(0.0)),
    "gradients": (FIRST, *fixed(0), "freshness.skip=gradients"),
    "warm-up": (FIRST, *fixed(3), f"freshness.warmup_epochs={EPOCHS}"),
}
ATTENDING = {name: [one for one in settings if one != FIRST] for name, settings in ZERO.items()}
QUICK = [("gcn", 3, "epoch-fixed"), ("sage", 2, "epoch-adaptive"), ("gin", 4, "variation-gap"), ("gat", 2, "gradients")]
WHOLE = [one for one in itertools.product(("gcn", "sage", "gin", "gat"), (1, 2, 3, 4), ZERO) if one not in QUICK]


@pytest.mark.parametrize(("model", "ranks", "rule"), QUICK)
def test_some_bounds_of_zero_agree_with_one_process(model: str, ranks: int, rule: str, bench: Bench) -> None:
    agrees_with_one_process(bench, block_case(model, ranks, *(ATTENDING if model == "gat" else ZERO)[rule]))


@pytest.mark.slow
@pytest.mark.parametrize(("model", "ranks", "rule"), WHOLE)
def test_every_bound_of_zero_agrees_with_one_process(model: str, ranks: int, rule: str, bench: Bench) -> None:
    agrees_with_one_process(bench, block_case(model, ranks, *(ATTENDING if model == "gat" else ZERO)[rule]))


@pytest.mark.parametrize("ranks", [1, 3])
def test_bounds_of_zero_change_no_bit(ranks: int, bench: Bench) -> None:
    exact = bench.run(block_case("gcn", ranks, FIRST))
    total = collective_bytes(exact)
    for settings in (fixed(0), adaptive(0)):
        found = bench.run(block_case("gcn", ranks, FIRST, *settings))
        assert torch.equal(parameters(found), parameters(exact))
        assert collective_bytes(found) == total
    found = bench.run(block_case("gcn", ranks, FIRST, *gap(0.0)))
    assert torch.equal(parameters(found), parameters(exact))
    if ranks > 1:
        assert collective_bytes(found) < total, "features never change, so they are sent once"


@pytest.mark.slow
def test_equal_schedules_are_equal_in_every_bit(bench: Bench) -> None:
    together = bench.run(block_case("sage", 3, FIRST, *fixed(2)))
    apart = bench.run(block_case("sage", 3, FIRST, *adaptive(2)))
    plain = bench.run(block_case("sage", 3, FIRST, *adaptive(2), "freshness.stagger=false"))
    assert torch.equal(parameters(plain), parameters(together))
    assert not torch.equal(parameters(apart), parameters(together))
    ahead = bench.run(block_case("sage", 3, FIRST, *fixed(2), "communication.blocks_ahead=1"))
    assert torch.equal(parameters(ahead), parameters(together)), "the order of sums is the same"
    cached = bench.run(block_case("sage", 3, FIRST, *fixed(2), "freshness.own_block=cached"))
    assert not torch.equal(parameters(cached), parameters(together))
    exact = bench.run(block_case("sage", 3, FIRST))
    cached = bench.run(block_case("sage", 3, FIRST, *fixed(0), "freshness.own_block=cached"))
    assert torch.equal(parameters(cached), parameters(exact)), "a bound of zero leaves nothing old in use"


# -- bytes -------------------------------------------------------------------------------------------------------------


def test_the_example_of_the_text(bench: Bench) -> None:
    backward = 4 * 1000 * (16 + 5)
    odd = broadcast_bytes(bench.run(example(*fixed(1))))
    assert odd.tolist() == [276_000, backward, 276_000, backward], "63 000 for each rank in odd epochs"
    halves = broadcast_bytes(bench.run(example(*adaptive(1))))
    assert halves.tolist() == [276_000, *[backward + (276_000 - backward) // 2] * 3]
    gradients = broadcast_bytes(bench.run(example(*fixed(1), "freshness.skip=gradients")))
    assert gradients.tolist() == [276_000, 4 * 1000 * (32 + 16)] * 2
    inputs = broadcast_bytes(bench.run(example(*fixed(1), "freshness.inputs=always")))
    assert inputs.tolist() == [276_000, backward + 4 * 1000 * 32] * 2


SKIPPED = [
    block_case("sage", 4, FIRST, *fixed(2)),
    block_case("gin", 3, FIRST, *adaptive(1), graph="small"),
    block_case("gcn", 3, FIRST, *gap(0.2), "freshness.warmup_epochs=2"),
    block_case("gcn", 4, FIRST, *gap(0.2), "freshness.skip=gradients", graph="small"),
    block_case("sage", 3, *fixed(1), "communication.resend_inputs=false", "communication.blocks_ahead=1"),
    block_case("gcn", 2, FIRST, *gap(0.2), "freshness.own_block=cached", partition="metis"),
    block_case("gcn", 3, FIRST, *gap(0.2), "codec.kind=linear", "codec.bits=8", graph="small"),
    block_case("sage", 3, FIRST, *adaptive(1), "codec.kind=linear", "codec.bits=4", "freshness.own_block=cached"),
    block_case("gat", 3, *gap(0.2), "freshness.own_block=cached", "codec.kind=bfloat16", graph="small"),
]


@pytest.mark.parametrize("wanted", SKIPPED, ids=lambda one: one.name)
def test_nothing_is_lost_on_the_way(wanted: Case, bench: Bench) -> None:
    """The simulation replays what was decided, for every op of every epoch."""
    finished = bench.run(wanted)
    decided = activity(finished)
    assert any((values == 0).any() for values in decided.values()), "something is skipped"
    nothing_is_lost(finished, decided)


@pytest.mark.parametrize("settings", [fixed(2), adaptive(1), adaptive(3)], ids=str)
def test_schedules_need_no_activity(settings: tuple[str, ...], bench: Bench) -> None:
    """Fixed and adaptive guards are simulated from the policy, and are those that the run took."""
    finished = bench.run(block_case("gcn", 3, FIRST, *settings))
    scheduled, recorded = policy_of(finished).scheduled(finished.plan.program, EPOCHS), activity(finished)
    assert scheduled
    assert set(scheduled) == set(recorded)
    for name, values in scheduled.items():
        assert np.array_equal(values, recorded[name]), name
    executed = told(read_table(RunDirectory(finished.folder).trace))
    assert not differences(told(simulated(finished, scheduled).trace), executed)


# -- bounded where something is skipped --------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", SKIPPED, ids=lambda one: one.name)
def test_ranks_agree_and_hold_the_same_copies(wanted: Case, bench: Bench) -> None:
    """docs/systems/sancus.md: guards, versions and copies are the same on all ranks that have
    them, and no copy in use is older than the bound."""
    finished = bench.run(wanted)
    oldest = policy_of(finished).oldest_epochs
    for name, values in activity(finished).items():
        assert (values == values[:1]).all(), f"{name}: ranks differ"
        sends = np.flatnonzero(values[0, :, 0])
        assert sends[0] == 0
        if oldest is not None:
            assert np.diff(np.append(sends, EPOCHS)).max() - 1 <= oldest
    kept: dict[str, list[torch.Tensor]] = {}
    for result in finished.ranks:
        for name, value in result["caches"].items():
            if value.numel() and name.startswith(("cache/", "versions/")):
                kept.setdefault(name, []).append(value)
    ranks = finished.plan.ranks
    assert any(name.startswith("cache/") for name in kept)
    for name, values in kept.items():
        assert len(values) == (ranks if name.startswith("versions/") else ranks - 1), name
        assert all(torch.equal(value, values[0]) for value in values[1:]), name


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("gcn", (FIRST, *gap(0.2), *CODED)), ("gat", gap(0.2)), ("gat", fixed(0)),
    ],
)  # fmt: skip
def test_a_rank_without_rows_takes_part(
    model: str, settings: tuple[str, ...], bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/systems/sancus.md: it sends no block, and receives all others."""

    def none_for_the_first(vertices: int, ranks: int, seed: int) -> np.ndarray:
        return (np.arange(vertices) % (ranks - 1) + 1).astype(np.int32)

    monkeypatch.setattr("simgnn.partition.partitioners.random.random_owner", none_for_the_first)
    wanted = block_case(model, 3, *settings, "partition.seed=77", graph="small", partition="random")
    finished = bench.run(wanted)
    assert finished.plan.program.sizes.columns["rows"].tolist() == [0, 45, 45]
    roots = {op.root for _, op in finished.plan.program.ops if op.kind is OpKind.BROADCAST}
    assert roots == {1, 2}
    parameters(finished)
    nothing_is_lost(finished, activity(finished))
    if settings[-1].endswith("=0"):
        agrees_with_one_process(bench, wanted)


def test_codes_on_blocks_cost_little_and_send_less(bench: Bench) -> None:
    """The same codec as on listed rows; sixteen bits hardly change what is learned."""
    plain, coded = (bench.run(block_case("gcn", 3, FIRST, *extra)) for extra in ((), CODED))
    loss, other = plain.ranks[0]["losses"], coded.ranks[0]["losses"]
    assert other != loss
    assert other == pytest.approx(loss, rel=1e-3)
    # smallest value and step of a row are float64, then two bytes an element
    widths = [24, 16, 16, 6]
    expected = 1500 * sum(2 * 8 + 2 * width for width in widths)
    assert broadcast_bytes(coded).tolist() == [expected] * EPOCHS
    nothing_is_lost(coded, {})


def test_a_model_that_stands_still_sends_nothing_new(bench: Bench) -> None:
    still = "train.learning_rate=1e-30"
    found = broadcast_bytes(bench.run(block_case("gcn", 2, FIRST, *gap(0.0), still, graph="small")))
    backward = 8 * 90 * (16 + 5)
    assert found[1:].tolist() == [backward] * (EPOCHS - 1)
    assert found[0] == backward + 8 * 90 * (12 + 16)
    found = broadcast_bytes(bench.run(block_case("gcn", 2, FIRST, *fixed(1), still, graph="small")))
    assert found[2] == found[0] > found[1] == backward


def test_a_wider_gap_sends_less(bench: Bench) -> None:
    runs = [bench.run(block_case("gcn", 3, FIRST, *gap(bound))) for bound in (0.0, 0.2, 1e30)]
    totals = [int(broadcast_bytes(run).sum()) for run in runs]
    assert totals[0] > totals[1] > totals[2]
    layers = runs[0].plan.layers
    forward, backward = (sum(getattr(one, width) for one in layers) for width in ("width_in", "width_out"))
    assert totals[2] == 8 * 1500 * (forward + EPOCHS * backward), "only the first epoch sends"


@pytest.mark.slow
@pytest.mark.parametrize("settings", [
    *(fixed(bound) for bound in (1, 2, 3)), *(adaptive(bound) for bound in (1, 2, 3)),
    *(gap(bound) for bound in (0.01, 0.02, 0.03)), (*fixed(1), "freshness.skip=gradients"),
], ids=str)  # fmt: skip
def test_presets_learn_nearly_as_well(settings: tuple[str, ...], bench: Bench) -> None:
    """docs/systems/sancus.md: a trend, not a benchmark."""
    long = ("train.epochs=100", FIRST, "train.clip_norm=1.0")
    exact = bench.run(block_case("gcn", 3, *long)).ranks[0]["losses"]
    found = bench.run(block_case("gcn", 3, *long, *settings)).ranks[0]["losses"]
    assert found[-1] == pytest.approx(exact[-1], rel=0.1)
    assert exact[-1] < 0.5 * exact[0]


@pytest.mark.realdata
@pytest.mark.slow
def test_attention_to_old_blocks_learns(bench: Bench, data_dir: Path) -> None:
    """Scores of today's rows far above the greatest of older ones made gradients of any size: the loss rose to 16."""
    wanted = block_case("gat", 3, *fixed(4), "train.epochs=60", "train.clip_norm=1.0", "model.hidden=64", graph="cora")
    losses = bench.run(wanted).ranks[0]["losses"]
    assert losses[-1] < 0.01 * losses[0]
