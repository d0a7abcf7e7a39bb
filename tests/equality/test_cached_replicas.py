"""The adaptive cache and codecs over masters and mirrors: exact at a threshold of zero, sums are of their parts, all
copies of a vertex go on with the same bits, and program, simulation and transport send the same bytes."""

import numpy as np
import pytest
import torch

from simgnn.partition.store import PartitionArtifact
from simgnn.record.activity import read_activity
from simgnn.record.rundir import RunDirectory, read_table
from tests.equality.cached_runs import (
    CACHE,
    DRAWN,
    EIGHT_BITS,
    FIXED,
    Runs,
    check_bytes,
    check_exact,
    check_learns,
    check_repeats,
)
from tests.equality.cases import EPOCHS, Case
from tests.equality.conftest import Bench
from tests.equality.counting import counted_rows

pytest.importorskip("dgl", reason="the reference is made of DGL's layers (Python below 3.12)")

PAPER = ("model.hoist=never",)
ATTENTION = ("model.kind=gat",)
LISTED = ("freshness.index=ids", "freshness.fold_on_active=true")
LOSSY = [
    (*CACHE, *PAPER),
    (*CACHE, *EIGHT_BITS, *PAPER),
    (*CACHE, "codec.kind=linear", "codec.bits=2"),
    (*CACHE, *LISTED, *DRAWN, *PAPER),
    (*CACHE, *ATTENTION, "codec.kind=bfloat16"),
]
EXACT_SENDERS = (*CACHE, *EIGHT_BITS, "codec.feedback=false", *PAPER)
CODED = [*LOSSY, (*EIGHT_BITS, *PAPER), (*DRAWN, *PAPER), EXACT_SENDERS]


@pytest.fixture(scope="module")
def runs(bench: Bench) -> Runs:
    return Runs(bench)


def case(*extra: str, ranks: int = 3, model: str = "gcn") -> Case:
    return Case("communities", model, "ebv", ranks, extra=extra)


IDENTITY = [
    case(*FIXED, *PAPER),
    case(*FIXED, *PAPER, ranks=2, model="sage"),
    case(*FIXED, *LISTED, *PAPER),
    case(*FIXED, model="gat"),
]
WHOLE = [
    case(*FIXED, *more, ranks=ranks, model=model)
    for model in ("gcn", "sage", "gin", "gat")
    for ranks in (1, 2, 3, 4)
    for more in ((), PAPER, (*LISTED, "model.layers=3"))
]


@pytest.mark.parametrize(
    "one",
    [*IDENTITY, *(pytest.param(one, marks=pytest.mark.slow) for one in WHOLE if one not in IDENTITY)],
    ids=lambda one: one.name,
)
def test_a_threshold_of_zero_is_exact_training(bench: Bench, one: Case) -> None:
    check_exact(bench, one)


def test_a_threshold_of_zero_is_exact_in_float32_too(bench: Bench) -> None:
    one = Case("communities", "gcn", "ebv", 3, "float32-sgd", (*FIXED, *PAPER))
    found = bench.errors(one)
    assert max(found[name] for name in ("losses", "first gradients", "last gradients", "parameters")) <= 1e-5


@pytest.mark.parametrize("extra", [*LOSSY[:2], *LOSSY[3:], (*EIGHT_BITS, *PAPER), EXACT_SENDERS], ids="-".join)
def test_lossy_training_still_learns(runs: Runs, extra: tuple[str, ...]) -> None:
    attends = [one for one in extra if one.startswith("model.kind")]
    check_learns(runs.of(case(*extra)), runs.of(case(*PAPER, *attends)))


@pytest.mark.parametrize("extra", LOSSY, ids="-".join)
def test_sums_are_of_their_parts_and_copies_hold_the_same_bits(runs: Runs, extra: tuple[str, ...]) -> None:
    finished = runs.of(case(*extra)).finished
    artifact = PartitionArtifact.open(finished.plan.partition)
    states = [rank["caches"] for rank in finished.ranks]
    points = sorted({name.removeprefix("sums/").split("#")[0] for name in states[0] if name.startswith("sums/")})
    assert "1/forward" in points or "2/forward" in points
    for point in points:
        parts, sums, published, kept = (dict[int, torch.Tensor]() for _ in range(4))
        for rank, state in enumerate(states):
            local = artifact.local(rank)
            lists = local.row_lists["mirrors"]
            assert lists.arriving is not None
            mirrors = _vertices(local.vertices, lists.arriving)
            shared = np.unique(np.concatenate([np.empty(0, dtype=np.int32), *lists.leaving.values()]))
            for place, vertex in enumerate(local.vertices[shared].tolist()):
                sums[vertex] = state[f"sums/{point}#0"][place]
                published[vertex] = state.get(f"published/{point}#0", state[f"sums/{point}#0"])[place]
                parts[vertex] = parts.get(vertex, 0) + state[f"own/{point}#0"][place]
            for place, vertex in enumerate(mirrors):
                # masters of lower ranks come first or last: every mirror of a vertex keeps the same row
                row = state[f"kept/{point}/scatter#0"][place]
                assert vertex not in kept or kept[vertex].equal(row)
                kept[vertex] = row
                if f"sent/{point}/gather#0" in state:
                    parts[vertex] = parts.get(vertex, 0) + state[f"sent/{point}/gather#0"][place]
        assert set(kept) == set(sums) == set(parts)
        assert any(row.any() for row in kept.values()), point
        for vertex, row in kept.items():
            assert row.equal(published[vertex]), (point, vertex)
            assert torch.allclose(parts[vertex], sums[vertex], rtol=1e-9, atol=1e-12), (point, vertex)


def _vertices(names: np.ndarray, lists: dict[int, np.ndarray]) -> list[int]:
    """Vertices of a route's rows in the order of the wire."""
    joined = np.concatenate([np.empty(0, dtype=np.int32), *(lists[peer] for peer in sorted(lists))])
    found: list[int] = names[joined].tolist()
    return found


@pytest.mark.parametrize("extra", CODED, ids="-".join)
def test_program_simulation_and_transport_agree(runs: Runs, extra: tuple[str, ...]) -> None:
    check_bytes(runs.of(case(*extra)))


def test_a_sync_sends_what_the_paper_says(runs: Runs) -> None:
    """Section 6: ceil(n / 8) bytes of mask and k (header + ceil(w B / 8)) bytes of rows, and no gather at the top
    backward."""
    program = runs.of(case(*LOSSY[1])).program
    ops = {op.name: op for op in program.templates["steady"].ops}
    mirrors = program.sizes.routes["mirrors"].matrix(3)
    for phase, layer, width in (("forward", 1, 16), ("forward", 2, 6), ("backward", 1, 16)):
        for stage, expected in (("gather", mirrors.T), ("scatter", mirrors)):
            mask = ops.get(f"{phase}/{layer}/{stage}/mask")
            if mask is None and phase == "backward":
                continue
            assert mask is not None
            assert mask.route is not None
            assert program.sizes.routes[mask.route].matrix(3).tolist() == (-(-expected // 8)).tolist()
            transfer = ops[f"{phase}/{layer}/{stage}/exchange"].transfer
            assert transfer is not None
            assert transfer.row_bytes == 16 + width
    top = [name for name in ops if name.startswith("backward/2/") and "/gather/" in name]
    assert not top


def test_two_runs_are_alike_bit_for_bit_and_ranks_share_a_threshold(runs: Runs) -> None:
    first, again = (runs.of(case(*LOSSY[3], *more)) for more in ((), ("train.timeout=299",)))
    check_repeats(first, again)
    assert first.finished.ranks[0]["caches"]["threshold#0"][0, 0] != 0.03, "the threshold never moved"


def test_lists_change_what_goes_ahead_and_nothing_else(runs: Runs) -> None:
    """Section 6: 8 bytes of count a pair that has rows and 4 a row that travels, in place of ceil(n / 8)."""
    lists, masks = (runs.of(case(*CACHE, *PAPER, *extra)) for extra in (("freshness.index=ids",), ()))
    assert lists.losses == masks.losses
    assert lists.finished.ranks[0]["parameters"].equal(masks.finished.ranks[0]["parameters"])
    tables = [read_activity(RunDirectory(run.finished.folder).activity) for run in (lists, masks)]
    assert tables[0].equals(tables[1])
    program, told = lists.program, counted_rows(read_table(RunDirectory(lists.finished.folder).trace))
    mirrors = program.sizes.routes["mirrors"].matrix(3)
    checked = 0
    for template, op in program.ops:
        if op.route is None or op.transfer is None or not op.transfer.control:
            continue
        outward = "/scatter/" in op.name
        pairs = mirrors if outward else mirrors.T
        for rank in range(3):
            for epoch in range(EPOCHS):
                found = told.get((rank, epoch, 0, program.op_ids[template, op.name]))
                if found is None:  # the template of other epochs
                    continue
                if op.name.endswith("/count"):
                    assert found[2] == 8 * np.count_nonzero(pairs[rank])
                else:
                    assert op.name.endswith("/ids")
                    name = f"sync/{op.layer}/{op.phase}/{'scatter' if outward else 'gather'}/rows"
                    assert found[2] == 4 * lists.decided[name][rank, :, epoch].sum()
                checked += 1
    # count and ids of each rank and epoch, of gather and scatter of four syncs, without the gather at the top
    assert checked == 3 * EPOCHS * 2 * 7


def test_attention_whose_reference_was_renewed_is_exact(bench: Bench) -> None:
    """Parts of several epochs are relative to one reference; where that moves too far, everything is sent anew."""
    one = case(*FIXED, "train.learning_rate=0.1", model="gat")
    found = bench.errors(one)
    assert max(found[name] for name in ("losses", "first gradients", "last gradients", "parameters")) <= 1e-7
    states = [rank["caches"] for rank in bench.run(one).ranks]
    shifts = [state[f"shift/{layer}#0"] for state in states for layer in (1, 2)]
    assert any(shift.any() for shift in shifts), "no score moved by more than 5: nothing was renewed"


def test_woken_masters_are_counted_by_their_replicas(runs: Runs) -> None:
    recorded = runs.of(case(*LOSSY[1]))
    program, decided = recorded.program, recorded.decided
    pairs = {r: route.matrix(3) for r, route in program.publications[0].rows(program.sizes).items()}
    assert sum(pairs.values()).tolist() == program.sizes.routes["mirrors"].matrix(3).tolist()
    by_replicas = {r: rows.sum(axis=1) for r, rows in pairs.items()}
    assert set(by_replicas) == {2, 3}
    assert len(program.publications) == 3
    for one in program.publications:
        tallies = {r: np.maximum(0, decided[f"{one.tally}-{r}"]) for r in by_replicas}
        assert np.array_equal(sum(tallies.values()), decided[one.active])
        # a vertex with r replicas is published to r - 1 mirrors
        rows = sum((r - 1) * counts for r, counts in tallies.items())
        assert np.array_equal(rows, decided[one.published].sum(axis=1))
        for r, counts in tallies.items():
            assert np.all(counts <= (by_replicas[r] // (r - 1))[:, None, None])
