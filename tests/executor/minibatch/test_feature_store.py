"""The feature store on real ranks over Gloo: rows, bytes and refusals (DistDGL 8, 13.2, 13.3)."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.minibatch.embeddings import sum_by_id
from executor.rank.interpreter import Interpreter
from executor.state.context import GroupHandle
from executor.store.features import FeatureStore
from simgnn.errors import BackendError, GraphError
from simgnn.program.kinds import OpKind
from simgnn.program.ops import Buffer, Op
from tests.equality.wiretap import tapped
from tests.executor.harness import Notes, acting, reads, run_ranks, tiny_program, world_context
from tests.executor.minibatch.store_world import (
    CASES,
    RANKS,
    ROWS,
    VERTICES,
    WIDTH,
    groups,
    ids_of,
    mapping_of,
    maps_of,
    names_left,
    share,
    store_of,
    tapped_bytes,
    wanted_rows,
)


def _pull(store: FeatureStore, rank: int, ranks: int) -> dict[str, Any]:
    with tapped() as calls:
        rows = store.pull("feat", ids_of(rank))
    return {"rows": rows, "tapped": tapped_bytes(calls, ranks)}


def _through_an_op(store: FeatureStore, rank: int, ranks: int) -> dict[str, Any]:
    """The op ``fetch`` with the store's places as its policy, in rounds of ten ids."""
    op = Op("fetch", OpKind.FETCH, "comm", reads("ids", "rows"), reads("fetched"), module="store",
            action="locate", options={"round_rows": 10})  # fmt: skip
    buffers = [Buffer(name, 0, WIDTH, persistent=True) for name in ("ids", "rows", "fetched")]
    program = tiny_program(ranks, {"steady": [op]}, buffers)

    def locate(_: Any, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        part = store.places.part_of(ids)
        return store.places.server_of(part), store.places.position_of(ids, part)

    constants = {"ids": ids_of(rank), "rows": store.table("feat")}
    context, notes = (
        world_context(program, rank, constants, policies={"store": acting(locate=locate)}),
        Notes(),
    )
    Interpreter(program, context, notes).train(range(1))
    return {"rows": context.store.values[context.store.slot("fetched")], "sent": list(notes.rows[0][4])}


def _in_place(store: FeatureStore, group: Any) -> dict[str, Any]:
    """The last rank of each host writes; every rank then looks. Where its table lies, as the kernel says."""
    store.share("scratch", 2, "float64", lambda: np.zeros((store.places.rows, 2)))
    table, places = store.table("scratch"), store.places
    if places.rank == places.serving.members[places.host][-1]:
        table[0] = places.rank + 1.0
    dist.barrier(group=group)
    name, inode = mapping_of(table.data_ptr())
    return {"seen": table[0].tolist(), "inode": inode, "mapped": name}


def _refused(store: FeatureStore) -> dict[str, str]:
    """Host 1 loads rows of a wrong width: what each rank hears."""
    places = store.places
    width = WIDTH + (places.host == 1)
    try:
        store.share("wrong", WIDTH, "float32", lambda: np.zeros((places.rows, width), dtype=np.float32))
    except (BackendError, GraphError) as error:
        return {"kind": type(error).__name__, "message": str(error)}
    return {}


def _everything(rank: int, ranks: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for case, group in groups().items():
        size = len(group.members)
        if rank < size:
            store = store_of(case, rank, group)
            share(store)
            found[case] = {
                "pull": _pull(store, rank, size),
                "stored": store.table("feat").clone(),
            }
    found["op"] = _through_an_op(store, rank, ranks)
    found["refused"] = _refused(store)
    found["place"] = _in_place(store, group.process_group)
    found["left"] = names_left()
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What four ranks found in all cases, the last of which has two hosts of two ranks."""
    return run_ranks(RANKS, _everything, tmp_path_factory.mktemp("store"))


def _ranks(found: list[dict[str, Any]], case: str, what: str) -> list[dict[str, Any]]:
    hosts, each = CASES[case]
    return [one[case][what] for one in found[: hosts * each]]


@pytest.mark.parametrize("case", CASES)
def test_pull_gives_the_rows_of_the_whole_graph(found: list[dict[str, Any]], case: str) -> None:
    new2old = maps_of(CASES[case][0]).new2old
    for rank, one in enumerate(_ranks(found, case, "pull")):
        np.testing.assert_array_equal(one["rows"].numpy(), ROWS[new2old[ids_of(rank).numpy()]])


@pytest.mark.parametrize("case", CASES)
def test_pulled_bytes_are_the_formula(found: list[dict[str, Any]], case: str) -> None:
    told = _ranks(found, case, "pull")
    ids = [ids_of(rank) for rank in range(len(told))]
    rows = wanted_rows(case, ids)
    assert rows.any() == (CASES[case][0] > 1)
    for rank, one in enumerate(told):
        total = 8 * rows[rank] + 4 * WIDTH * rows[:, rank]
        assert one["tapped"] == total.tolist()


@pytest.mark.parametrize("case", CASES)
def test_only_core_rows_are_stored(found: list[dict[str, Any]], case: str) -> None:
    maps = maps_of(CASES[case][0])
    for rank, stored in enumerate(_ranks(found, case, "stored")):
        np.testing.assert_array_equal(stored.numpy(), ROWS[maps.core(rank // CASES[case][1])])


def test_the_op_fetch_finds_rows_through_the_store(found: list[dict[str, Any]]) -> None:
    rows = wanted_rows("2x2", [ids_of(rank) for rank in range(RANKS)])
    for rank, one in enumerate(found):
        assert torch.equal(one["op"]["rows"], one["2x2"]["pull"]["rows"])
        assert one["op"]["sent"][0] == 8 * rows[rank].sum() + 4 * WIDTH * rows[:, rank].sum()


def test_ranks_of_a_host_use_one_memory(found: list[dict[str, Any]]) -> None:
    places = [one["place"] for one in found]
    assert [place["seen"][0] for place in places] == [2.0, 2.0, 4.0, 4.0]
    inodes = [place["inode"] for place in places]
    assert inodes[0] == inodes[1] != inodes[2] == inodes[3]
    assert all(place["mapped"].startswith("/dev/shm/simgnn-") for place in places)
    assert all(place["mapped"].endswith("(deleted)") for place in places)


def test_wrong_rows_of_a_host_are_refused_on_all_ranks(found: list[dict[str, Any]]) -> None:
    heard = [one["refused"] for one in found]
    assert [one["kind"] for one in heard] == ["BackendError", "BackendError", "GraphError", "BackendError"]
    assert (
        f"expected dense float32 [{maps_of(2).node_map[2] - maps_of(2).node_map[1]}, 3], got ndarray"
        in (heard[2]["message"])
    )
    assert all(heard[rank]["message"].startswith("rank 2 could not share its rows: ") for rank in (0, 1, 3))
    assert [one["left"] for one in found] == [[]] * RANKS


@pytest.fixture
def alone() -> FeatureStore:
    """A store of one rank."""
    store = store_of("1x1", 0, GroupHandle(None, (0,), torch.device("cpu")))
    share(store)
    return store


@pytest.mark.parametrize("wrong", [[VERTICES], [0, -1]])
def test_ids_out_of_range_are_refused(alone: FeatureStore, wrong: list[int]) -> None:
    gids = torch.tensor(wrong)
    with pytest.raises(GraphError, match=rf"gids: expected 0\.\.{VERTICES - 1}, got"):
        alone.pull("feat", gids)


def test_rows_of_another_type_are_refused(alone: FeatureStore) -> None:
    with pytest.raises(GraphError, match=r"expected dense float64 \[43, 2\], got ndarray float32 \[43, 2\]"):
        alone.share("label", 2, "float64", lambda: np.zeros((VERTICES, 2), dtype=np.float32))
    assert not list(Path("/dev/shm").glob(f"simgnn-{os.getpid()}-*"))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 6), max_size=40), st.integers(0, 3), st.sampled_from([torch.float32, torch.float64]))
def test_sums_by_id_add_in_order(ids: list[int], seed: int, dtype: torch.dtype) -> None:
    rows = torch.randn(len(ids), 2, dtype=dtype, generator=torch.Generator().manual_seed(seed))
    different, sums = sum_by_id(torch.tensor(ids, dtype=torch.int64), rows)
    assert different.tolist() == sorted(set(ids))
    assert sums.shape == (len(different), 2)
    for gid, found in zip(different.tolist(), sums, strict=True):
        expected = torch.zeros(2, dtype=dtype)
        for place, other in enumerate(ids):
            if other == gid:
                expected = expected + rows[place]
        assert torch.equal(found, expected)
