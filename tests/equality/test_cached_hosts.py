"""The adaptive cache where hosts add up their mirrors first: exact at a threshold of zero, equal to the direct exchange
where every host has one rank, the same bits on all copies, and what travels between hosts is counted."""

import numpy as np
import pytest
import torch

from simgnn.analysis.replay.activity import Recording, read_recording, replay
from simgnn.errors import ConfigError
from simgnn.partition.store import PartitionArtifact
from simgnn.record.activity import decisions_in
from tests.equality.cached_runs import (
    CACHE,
    DRAWN,
    EIGHT_BITS,
    FIXED,
    Recorded,
    Runs,
    check_bytes,
    check_exact,
    check_learns,
    check_repeats,
)
from tests.equality.cases import EPOCHS, Case
from tests.equality.conftest import Bench

pytest.importorskip("dgl", reason="the reference is made of DGL's layers (Python below 3.12)")

PAPER = ("model.hoist=never",)
AGGREGATED = ("communication.exchange=host-aggregated",)


@pytest.fixture(scope="module")
def runs(bench: Bench) -> Runs:
    return Runs(bench)


def on_hosts(
    *extra: str, hosts: int = 2, ranks: int = 4, model: str = "gcn", training: str = "float64-adam",
    exchange: tuple[str, ...] = AGGREGATED,
) -> Case:  # fmt: skip
    return Case("communities", model, "ebv", ranks, training, (*exchange, *PAPER, *extra), hosts=hosts)


IDENTITY = [on_hosts(*FIXED)]
WHOLE = [
    on_hosts(*FIXED, *more, model=model, hosts=hosts, ranks=ranks)
    for model in ("gcn", "sage", "gin", "gat")
    for hosts, ranks in ((2, 4), (4, 4), (2, 2), (2, 6))
    for more in ((), ("freshness.index=ids", "freshness.fold_on_active=true", "model.layers=3"))
]
LOSSY = [
    (*CACHE, *EIGHT_BITS),
    (*CACHE, "freshness.index=ids", *DRAWN),
    (*CACHE, "model.kind=gat", "codec.kind=bfloat16"),
]


@pytest.mark.parametrize(
    "one",
    [*IDENTITY, *(pytest.param(one, marks=pytest.mark.slow) for one in WHOLE if one not in IDENTITY)],
    ids=lambda one: one.name,
)
def test_a_threshold_of_zero_is_exact_training(bench: Bench, one: Case) -> None:
    check_exact(bench, one)


@pytest.mark.slow
def test_hosts_of_one_rank_each_trade_directly(runs: Runs) -> None:
    """Then a host's part is its rank's, and nothing travels within hosts."""
    extra = (*CACHE, *EIGHT_BITS)
    direct, across = (runs.of(on_hosts(*extra, hosts=2, ranks=2, exchange=how)) for how in ((), AGGREGATED))
    assert across.losses == direct.losses
    assert across.finished.ranks[0]["parameters"].equal(direct.finished.ranks[0]["parameters"])
    for stage in ("gather", "scatter"):
        for point in ("1/forward", "2/forward", "1/backward"):
            rows = direct.decided[f"sync/{point}/{stage}/rows"]
            assert np.array_equal(across.decided[f"sync/{point}/{stage}/across/rows"], rows)
            assert not across.decided[f"sync/{point}/{stage}/within/rows"].any()


@pytest.mark.slow
@pytest.mark.parametrize("extra", LOSSY, ids="-".join)
def test_lossy_training_still_learns(runs: Runs, extra: tuple[str, ...]) -> None:
    attends = [one for one in extra if one.startswith("model.kind")]
    check_learns(runs.of(on_hosts(*extra)), runs.of(on_hosts(*attends)))


@pytest.mark.parametrize(
    "extra", [LOSSY[0], *(pytest.param(extra, marks=pytest.mark.slow) for extra in LOSSY[1:])], ids="-".join
)
def test_program_simulation_and_transport_agree(runs: Runs, extra: tuple[str, ...]) -> None:
    check_bytes(runs.of(on_hosts(*extra)))


def test_codecs_without_a_cache_agree_too(runs: Runs) -> None:
    check_bytes(runs.of(on_hosts("codec.kind=bfloat16")))


@pytest.mark.parametrize(
    "extra", [LOSSY[0], *(pytest.param(extra, marks=pytest.mark.slow) for extra in LOSSY[1:])], ids="-".join
)
def test_copies_hold_the_same_bits_and_sums_are_of_their_parts(runs: Runs, extra: tuple[str, ...]) -> None:
    """What masters published is what every mirror keeps, whichever hops it took; the sum is of the hosts' parts."""
    recorded = runs.of(on_hosts(*extra))
    states = [rank["caches"] for rank in recorded.finished.ranks]
    artifact = PartitionArtifact.open(recorded.finished.plan.partition)
    points = sorted({name.removeprefix("sums/").split("#")[0] for name in states[0] if name.startswith("sums/")})
    assert len(points) == 4
    for point in points:
        published, sums, parts = (dict[int, torch.Tensor]() for _ in range(3))
        kept: dict[int, list[torch.Tensor]] = {}
        for rank, state in enumerate(states):
            local = artifact.local(rank)
            shared = np.unique(np.concatenate([[], *local.row_lists["mirrors"].leaving.values()])).astype(np.int64)
            for place, vertex in enumerate(local.vertices[shared].tolist()):
                sums[vertex] = state[f"sums/{point}#0"][place]
                published[vertex] = state.get(f"published/{point}#0", state[f"sums/{point}#0"])[place]
                parts[vertex] = parts.get(vertex, 0) + state[f"own/{point}#0"][place]
            for level in ("across", "within"):
                lists = local.row_lists[f"mirrors/{level}"].arriving
                assert lists is not None
                rows = np.concatenate([[], *(lists[peer] for peer in sorted(lists))]).astype(np.int64)
                for place, vertex in enumerate(local.vertices[rows].tolist()):
                    kept.setdefault(vertex, []).append(state[f"kept/{point}/scatter/{level}#0"][place])
                    if level == "across" and f"sent/{point}/gather/across#0" in state:
                        parts[vertex] = parts.get(vertex, 0) + state[f"sent/{point}/gather/across#0"][place]
        assert set(kept) == set(published)
        assert max(len(rows) for rows in kept.values()) == 3, "no vertex lies on all ranks"
        assert any(row.any() for row in published.values()), point
        for vertex, rows in kept.items():
            assert all(row.equal(published[vertex]) for row in rows), (point, vertex)
            assert torch.allclose(parts[vertex], sums[vertex], rtol=1e-9, atol=1e-12), (point, vertex)


@pytest.mark.slow
def test_runs_repeat_bit_for_bit(runs: Runs) -> None:
    check_repeats(runs.of(on_hosts(*LOSSY[1])), runs.of(on_hosts(*LOSSY[1], "train.timeout=299")))


def test_rows_between_hosts_are_those_of_hosts(runs: Runs) -> None:
    """One row a vertex and host: a master that was woken and lies on h hosts sends h - 1 rows to other hosts."""
    recorded = runs.of(on_hosts(*LOSSY[0]))
    hosts = np.array(recorded.program.hosts)
    near = hosts[:, None] == hosts[None, :]
    for point in ("1/forward", "2/forward", "1/backward", "2/backward"):
        sync = f"sync/{point}/scatter"
        tallies = {h: np.maximum(0, recorded.decided[f"{sync}/across/hosts-{h}"]) for h in (1, 2)}
        assert np.array_equal(sum(tallies.values()), recorded.decided[f"{sync}/across/active"])
        across, within = (recorded.decided[f"{sync}/{level}/rows"] for level in ("across", "within"))
        assert np.array_equal(tallies[2], across.sum(axis=1))
        assert not across[near].any()
        assert not within[~near].any()
        assert across.any()
        assert within.any()


def test_fewer_rows_travel_between_hosts_than_directly(runs: Runs) -> None:
    direct, hosts = (runs.of(on_hosts(*LOSSY[0], exchange=how)) for how in ((), AGGREGATED))
    near = np.equal.outer(direct.program.hosts, direct.program.hosts)
    assert 0 < _rows(hosts)[~near].sum() < _rows(direct)[~near].sum()


def _rows(recorded: Recorded) -> np.ndarray:
    """Rows sent over the run between each pair of ranks."""
    sent = [values for name, values in recorded.decided.items() if name.endswith("/rows")]
    return np.sum([values.sum(axis=(2, 3)) for values in sent], axis=0)


def test_a_record_is_replayed_and_on_other_hosts_used_as_fractions(runs: Runs) -> None:
    recorded = runs.of(on_hosts(*LOSSY[0]))
    recording = read_recording(recorded.finished.folder)
    same = replay(recording, recorded.program, decisions_in(recorded.program), recording.digests, EPOCHS, 0, None)
    assert not same.transferred
    assert all(np.array_equal(values, recorded.decided[name]) for name, values in same.activity.items())
    # the same cut with every rank on a host of its own: other rows stand for their hosts
    apart = runs.of(on_hosts(*LOSSY[0], hosts=4)).program
    found = replay(recording, apart, decisions_in(apart), recording.digests, EPOCHS, 0, None)
    assert found.transferred
    assert set(found.activity) == decisions_in(apart)
    assert not any("without regard to" in note for note in found.notes)
    for name, values in found.activity.items():
        if name.endswith("/across/rows"):
            assert values.sum() > 0
        if name.endswith("/within/rows"):
            assert values.sum() == 0, "no rank has a neighbour on its host"
    with pytest.raises(ConfigError, match=r"within/rows' has no rows to choose from in the record"):
        replay(_recorded_on(runs, 4), recorded.program, decisions_in(recorded.program), frozenset(), EPOCHS, 0, None)


def _recorded_on(runs: Runs, hosts: int) -> Recording:
    return read_recording(runs.of(on_hosts(*LOSSY[0], hosts=hosts)).finished.folder)


def test_codes_that_repeat_pass_through_hosts(runs: Runs) -> None:
    """Without a cache: float32 on the wire is nothing for float32 training, and bfloat16 little, although rows are
    encoded twice."""
    exact, same = (runs.of(on_hosts(*extra, training="float32-adam")).losses for extra in ((), ("codec.kind=float32",)))
    assert same == exact
    losses = runs.of(on_hosts("codec.kind=bfloat16")).losses
    assert losses[-1] < losses[0]
    assert 0 < abs(losses[-1] - exact[-1]) <= 0.05 * exact[0]
