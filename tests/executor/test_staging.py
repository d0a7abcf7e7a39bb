"""Where input rows of batches come from: lists made ahead against those worked out, caches piece by piece, and how much
memory of the device they take."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from executor.kernels import rows as row_kernels
from executor.kernels.rows import move_rows
from executor.minibatch.batches import DrawnBatches, PresampledBatches, SampledBatches
from executor.minibatch.input_rows import FoundOrigins, PlannedOrigins, ScheduledRows, StagedRows, Staging
from executor.state.context import PolicyContext
from simgnn.errors import BackendError, ConfigError
from simgnn.sampling.fetches.fetch_plan import FetchPlan, plan_fetches, refill_of
from simgnn.sampling.fetches.remote_rows import Sources, rows_on_hosts
from tests.sampling.fetch_cases import EPOCHS, SOURCE, Case, make_case

HOSTS = (0, 0, 1)
WIDTH = 3
FEATURES = torch.from_numpy(np.random.default_rng(2).standard_normal((300, WIDTH)).astype(np.float32))
"""By id of the vertex."""


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return make_case(tmp_path_factory.mktemp("staging") / "batches", HOSTS)


def _fetches(case: Case, hot_rows: int) -> FetchPlan:
    made = plan_fetches(case.plan, SOURCE, case.folder, EPOCHS, case.rank_hosts, hot_rows)
    return FetchPlan.open(made.path, EPOCHS)


def _tables(case: Case) -> list[torch.Tensor]:
    """The rows of each rank's host, as they lie in its memory."""
    rows, tables = rows_on_hosts(np.asarray(case.plan.owner), case.rank_hosts), []
    for host in case.hosts:
        here = case.rank_hosts[np.asarray(case.plan.owner)] == host
        table = torch.zeros((int(here.sum()), WIDTH))
        table[torch.from_numpy(np.asarray(rows)[here].astype(np.int64))] = FEATURES[torch.from_numpy(here)]
        tables.append(table)
    return tables


def _staging(case: Case, window: int, hot_rows: int = 0) -> Staging:
    largest = max(len(batch) for epoch in range(EPOCHS) for rank in range(3) for batch in case.inputs(epoch, rank))
    return Staging(case.plan.steps, window, largest, hot_rows, WIDTH, torch.float32, torch.device("cpu"))


def _at(epoch: int, step: int, rank: int) -> PolicyContext:
    return PolicyContext(0, epoch, step, 0, "forward", rank, 3)


@pytest.mark.parametrize("compiled", [True, False])
def test_rows_are_moved_to_their_places(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not compiled:
        monkeypatch.setattr(row_kernels, "compiled_for", lambda rows: False)
    draw = np.random.default_rng(0)
    picked, places = draw.integers(0, 300, 20).astype(np.int32), draw.permutation(40)[:20]
    target = torch.full((40, WIDTH), 7.0)
    expected = target.clone()
    expected[torch.from_numpy(places)] = FEATURES[torch.from_numpy(picked.astype(np.int64))]
    move_rows(FEATURES, picked, target, places)
    assert torch.equal(target, expected)
    move_rows(FEATURES, None, target, places)
    expected[torch.from_numpy(places)] = FEATURES[:20]
    assert torch.equal(target, expected)
    for ids, at in (([300], [0]), ([0], [40]), ([-1], [0])):
        with pytest.raises(IndexError, match="rows must lie in 0"):
            move_rows(FEATURES, np.array(ids), target, np.array(at))
    with pytest.raises(IndexError, match="got 1 rows to move, expected at least 2"):
        move_rows(FEATURES[:1], None, target, np.array([0, 1]))


@pytest.mark.parametrize("rank", range(3))
def test_a_batch_is_the_same_sampled_now_or_read(case: Case, rank: int) -> None:
    """Also beyond a worker's last batch, where both are empty; several may be drawn at once, in any order."""
    plan = case.plan
    sources = SampledBatches(plan, rank, lanes=2), PresampledBatches(case.folder, plan, SOURCE, rank, EPOCHS)
    planned = np.zeros((len(plan.fanouts) + 1, EPOCHS, plan.steps), np.int64)
    for epoch in range(EPOCHS):
        for step in range(plan.batches(rank)):
            planned[:, epoch, step] = sources[1].batch(epoch, step).sizes
    drawn = [DrawnBatches(source, plan.workers[rank], planned) for source in sources]
    for epoch, step in ((0, 0), (1, 0), (0, plan.steps - 1), (EPOCHS - 1, plan.steps - 1)):
        now, read = (one.draw(_at(epoch, step, rank)) for one in drawn)
        for one, other in zip(_flat(now), _flat(read), strict=True):
            assert one.dtype == other.dtype
            assert torch.equal(one, other)
        vertices, seeds, *blocks = now
        assert torch.equal(vertices[: len(seeds)], torch.from_numpy(plan.workers[rank])[seeds])
        assert (len(seeds) > 0) == (step < plan.batches(rank))
        assert len(blocks[0][0]) - 1 == len(seeds)
    if plan.batches(rank):
        planned[-1, 0, 0] += 1
        with pytest.raises(BackendError, match=r"batch 1 of epoch 1 has .* prepare the run again"):
            drawn[0].draw(_at(0, 0, rank))


def _flat(values: object) -> Iterator[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        yield values
    else:
        for value in values:  # type: ignore[attr-defined]
            yield from _flat(value)


def test_batches_of_other_settings_or_damaged_are_refused_before_training(case: Case, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="of other settings than this run's"):
        PresampledBatches(case.folder, replace(case.plan, seed=6), SOURCE, 0, 1)
    with pytest.raises(ConfigError, match="expected presampled batches"):
        PresampledBatches(case.folder, case.plan, SOURCE, 0, EPOCHS + 1)
    with pytest.raises(ConfigError, match=r"fetches.json: cannot be read .*expected a file"):
        FetchPlan.open(tmp_path, 1)


@pytest.mark.parametrize("rank", range(3))
def test_planned_origins_are_those_worked_out_where_nothing_is_cached(case: Case, rank: int) -> None:
    planned = PlannedOrigins(_fetches(case, 0), rank)
    sources = Sources.of_worker(case.plan.owner, case.rank_hosts, rank)
    found = FoundOrigins(sources, rows_on_hosts(np.asarray(case.plan.owner), case.rank_hosts))
    for epoch in range(EPOCHS):
        batches = case.inputs(epoch, rank)
        for step in range(case.plan.steps):
            vertices = torch.tensor(batches[step] if step < len(batches) else [], dtype=torch.int64)
            one, other = planned.of(epoch, step, vertices), found.of(epoch, step, vertices)
            for name in ("local", "local_rows", "hits", "slots", "pulls", "pulled_rows", "counts"):
                assert np.array_equal(getattr(one, name), getattr(other, name)), name


@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize("hot_rows", [0, 25, 10**6])
def test_every_batch_gets_its_rows_whatever_is_cached(case: Case, hot_rows: int, delta: bool) -> None:
    """All ranks in one process: what is served is handed to those that wait for it. Batches have their rows bit for
    bit, and the device no more than the buffers of the window and two caches."""
    fetches, tables, window = _fetches(case, hot_rows), _tables(case), 2
    slots = [max(len(fetches.hot(epoch, rank).hot) for epoch in range(EPOCHS)) for rank in range(3)]
    turns = [(epoch, step) for epoch in range(EPOCHS) for step in range(case.plan.steps)]
    rooms = [torch.zeros(max(len(fetches.serve(e, r).rows(s)) for e, s in turns), WIDTH) for r in range(3)]
    sizes = [replace(_staging(case, window, slots[rank]), leaving=rooms[rank]) for rank in range(3)]
    ranks = [ScheduledRows(fetches, rank, sizes[rank], delta) for rank in range(3)]
    for rank, staged in enumerate(ranks):
        device_rows = sum(map(len, [*staged._buffers, *staged.caches]))
        assert device_rows == 2 * slots[rank] + window * staged.staging.largest
    served = [staged.serve_cache(_at(0, 0, rank), tables[rank], first=True)[0] for rank, staged in enumerate(ranks)]
    first = _exchanged(served, [[refill_of(fetches, 0, of, 1, delta) for of in range(3)]] * 3, 0)
    caches = [staged.cache(_at(0, 0, rank), first[rank], first=True)[0] for rank, staged in enumerate(ranks)]
    for epoch in range(EPOCHS):
        coming = list(caches)
        for step in range(case.plan.steps):
            served = [staged.serve(_at(epoch, step, rank), tables[rank])[0] for rank, staged in enumerate(ranks)]
            assert [rows.data_ptr() for rows in served] == [room.data_ptr() for room in rooms], "made once"
            for rank, staged in enumerate(ranks):
                here, batches = _at(epoch, step, rank), case.inputs(epoch, rank)
                vertices = torch.tensor(batches[step] if step < len(batches) else [], dtype=torch.int64)
                parts = [_part(served[sender], fetches.serve(epoch, sender).index[step], rank) for sender in range(3)]
                (inputs,) = staged.inputs(here, vertices, tables[rank], torch.cat(parts))
                (inputs,) = staged.hits(here, caches[rank], inputs)
                assert torch.equal(inputs, FEATURES[vertices])
            served = [staged.serve_cache(_at(epoch, step, rank), tables[rank])[0] for rank, staged in enumerate(ranks)]
            if epoch + 1 == EPOCHS:
                assert not any(map(len, served)), "nothing follows the last epoch"
                continue
            refills = [refill_of(fetches, epoch + 1, of, case.plan.steps, delta) for of in range(3)]
            arrived = _exchanged(served, [refills] * 3, step)
            for rank, staged in enumerate(ranks):
                (coming[rank],) = staged.cache(_at(epoch, step, rank), arrived[rank])
                if delta:
                    (coming[rank],) = staged.kept(_at(epoch, step, rank), caches[rank], coming[rank])
        caches = coming


def _part(served: torch.Tensor, counts: np.ndarray, rank: int) -> torch.Tensor:
    """What of a sender's rows goes to ``rank``."""
    begin = int(counts[:rank].sum())
    return served[begin : begin + int(counts[rank])]


def _exchanged(served: list[torch.Tensor], refills: list[list], step: int) -> list[torch.Tensor]:
    """Rows for caches, by rank, from what each sender has for all of them."""
    arrived: list[torch.Tensor] = []
    for rank in range(3):
        parts = []
        for sender in range(3):
            counts = np.array([len(refills[sender][of].of_sender(step, sender)) for of in range(3)])
            parts.append(_part(served[sender], counts, rank))
        arrived.append(torch.cat(parts))
    return arrived


def test_rows_that_stay_in_the_cache_are_not_pulled_again(case: Case) -> None:
    fetches, moved = _fetches(case, 25), {}
    for delta in (False, True):
        refills = [refill_of(fetches, epoch, rank, 4, delta) for epoch in range(1, EPOCHS) for rank in range(3)]
        moved[delta] = sum(len(refill.slots) for refill in refills)
        kept = sum(len(refill.kept) for refill in refills)
        assert moved[delta] + kept == sum(len(fetches.hot(e, r).hot) for e in range(1, EPOCHS) for r in range(3))
        assert (kept > 0) == delta
    assert moved[True] < moved[False]


def test_only_rows_of_other_hosts_are_asked_for(case: Case) -> None:
    sources = Sources.of_worker(case.plan.owner, case.rank_hosts, 2)
    rows = rows_on_hosts(np.asarray(case.plan.owner), case.rank_hosts)
    staged, tables = StagedRows(FoundOrigins(sources, rows), _staging(case, 1)), _tables(case)
    vertices = torch.tensor(case.inputs(0, 2)[0], dtype=torch.int64)
    owner, position = staged.remote(_at(0, 0, 2), vertices)
    wanted = [v for v in case.inputs(0, 2)[0] if case.far(2, v)]
    assert len(owner) == len(wanted) > 0
    assert torch.equal(owner, owner.sort().values)
    pulled = torch.stack([tables[int(rank)][int(place)] for rank, place in zip(owner, position, strict=True)])
    assert torch.equal(staged.inputs(_at(0, 0, 2), vertices, tables[2], pulled)[0], FEATURES[vertices])
