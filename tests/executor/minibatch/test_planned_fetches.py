"""Fetches planned from presampled batches against those that ranks agree upon by telling one another."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from executor.state.context import GroupHandle, LocalRoute
from executor.store.features import FeatureStore, Places
from simgnn.partition.local.contiguous_ids import IdMaps
from simgnn.partition.local.serving import Serving
from simgnn.sampling.fetches.fetch_plan import FetchPlan, plan_fetches
from tests.executor.harness import run_ranks
from tests.executor.minibatch.told_lists import rows_along, told_routes
from tests.sampling.fetch_cases import EPOCHS, SOURCE, make_case

HOSTS = (0, 0, 1)
HOT_ROWS = (0, 25, 10**6)
FEATURES = np.random.default_rng(2).standard_normal((300, 3)).astype(np.float32)
"""By id of the vertex."""


def _store(rank: int, owner: np.ndarray) -> FeatureStore:
    maps = IdMaps.of(np.array(HOSTS, np.int32)[owner], 2)
    places = Places(rank, maps, Serving(HOSTS))
    store = FeatureStore(places, GroupHandle(dist.group.WORLD, tuple(range(len(HOSTS))), torch.device("cpu")))
    store.share("feat", 3, "float32", lambda: FEATURES[maps.core(places.host)])
    return store


def _tensor(array: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(array, dtype=np.int64))


def _both(rank: int, ranks: int, owner: np.ndarray, plans: list[FetchPlan], inputs: Any) -> dict[str, bool]:
    """Whether the two agree on ``rank``, for every number of hot rows, epoch and step."""
    store, agreed = _store(rank, owner), {"routes": True, "rows": True, "empty": True, "skipped": False, "sent": False}
    new = store.places.maps.old2new
    for plan in plans:
        for epoch in range(EPOCHS):
            mine, served, batches = plan.gather(epoch, rank), plan.serve(epoch, rank), inputs[epoch][rank]
            kept = []  # places of the rows that are not hot
            for number in range(len(served.index)):
                hits = mine.gather(number).hits if number < len(mine) else np.empty(0, np.int32)
                count = len(batches[number]) if number < len(batches) else 0
                kept.append(np.setdiff1d(np.arange(count), hits))
            gids = [
                _tensor(new[np.array(batches[number], np.int64)[places]]) if len(places) else _tensor([])
                for number, places in enumerate(kept)
            ]
            told = told_routes(gids, store.places, store.group)
            for number, (route, places) in enumerate(zip(told, kept, strict=True)):
                pulls = mine.gather(number).pulls if number < len(mine) else np.empty(0, np.int32)
                counts = mine.gather(number).counts if number < len(mine) else np.zeros(ranks, np.int64)
                planned = LocalRoute(
                    _tensor(served.rows(number)),
                    _tensor(np.searchsorted(places, pulls)),
                    tuple(served.index[number].tolist()),
                    tuple(counts.tolist()),
                    not served.exchanged[number],
                )
                same = [torch.equal(planned.gather, route.gather), torch.equal(planned.scatter, route.scatter)]
                agreed["routes"] &= all(same) and (planned.send, planned.receive) == (route.send, route.receive)
                agreed["empty"] &= planned.empty == route.empty
                agreed["skipped"] |= planned.empty
                agreed["sent"] |= sum(planned.send) > 0
                rows = rows_along(store, "feat", gids[number], planned)
                expected = FEATURES[store.places.maps.new2old[gids[number].numpy()]]
                agreed["rows"] &= bool(np.array_equal(rows.numpy(), expected))
    return agreed


@pytest.fixture(scope="module")
def agreed(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, bool]]:
    folder: Path = tmp_path_factory.mktemp("planned")
    case = make_case(folder / "batches", HOSTS)
    plans = [plan_fetches(case.plan, SOURCE, case.folder, EPOCHS, case.rank_hosts, rows) for rows in HOT_ROWS]
    inputs = [[case.inputs(epoch, rank) for rank in range(len(HOSTS))] for epoch in range(EPOCHS)]
    return run_ranks(len(HOSTS), _both, folder / "ranks", case.plan.owner, plans, inputs)


def test_plans_and_ranks_that_tell_one_another_agree_on_every_row(agreed: list[dict[str, bool]]) -> None:
    assert all(one["routes"] and one["empty"] for one in agreed)
    assert any(one["sent"] for one in agreed)
    assert all(one["skipped"] for one in agreed)  # with every row hot nobody sends


def test_rows_pulled_by_the_plan_are_the_features(agreed: list[dict[str, bool]]) -> None:
    assert all(one["rows"] for one in agreed)
