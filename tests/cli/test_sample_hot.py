"""``simgnn sample --hot-rows`` tells what caches save; ``placement.kind = "store"`` plans the fetches."""

import json
from pathlib import Path

import numpy as np
import pytest

from simgnn.cli.main import invoke

SEEDED = [
    *("--set", "batching.kind=seeded", "--set", "batching.batch_size=30", "--set", "batching.fanouts=[4, 3]"),
    *("--set", "partition.kind=random", "--set", "train.epochs=2"),
]
FOUR = ["--set", "cluster.hosts=4", "--set", "cluster.ranks_per_host=1"]
STORE = ["--set", "placement.kind=store", "--set", "placement.hot_rows=40"]
WINDOW = ["--set", "schedule.kind=prefetch", "--set", "schedule.window=3"]


def test_the_table_adds_up(small: Path, tmp_path: Path, capsys) -> None:
    arguments = ["sample", str(small), *SEEDED, *FOUR, *WINDOW, "--out", str(tmp_path / "b")]
    assert invoke([*arguments, "--hot-rows", "20, 0,100000,20", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    fetches = told["fetches"]
    assert [size["hot_rows"] for size in fetches["sizes"]] == [0, 20, 100_000]
    assert told["steps_per_epoch"] == 2  # fewer than the window: nothing is staged beyond an epoch
    assert (fetches["window"], fetches["row_bytes"], fetches["epochs"]) == (2, 16 * 4, 2)
    assert fetches["remote_rows"] == told["remote_rows"] == told["remote_rows_of_other_hosts"]
    plain, some, whole = fetches["sizes"]
    assert (plain["hits"], plain["rows_cached"], plain["rows_pulled"]) == (0, 0, told["remote_rows"])
    assert plain["steps_with_exchange"] == 2 * told["steps_per_epoch"] == fetches["steps"]
    assert (whole["rows_pulled"], whole["hit_rate"], whole["steps_with_exchange"]) == (0, 1.0, 0)
    assert 0 < some["hit_rate"] < 1
    for size in fetches["sizes"]:
        assert size["hits"] + size["rows_pulled"] == fetches["remote_rows"]
        assert size["bytes_per_epoch"] == (size["rows_pulled"] + size["rows_cached"]) * 64 / 2
        assert size["buffer_bytes"] == size["buffer_rows"] * 64
        assert sum(pair["pulled"] for pair in size["rows_by_rank_and_sender"]) == size["rows_pulled"]
        assert sum(pair["cached"] for pair in size["rows_by_rank_and_sender"]) == size["rows_cached"]
    owned = {(rank, owner): rows for rank, owner, rows in told["rows_by_rank_and_owner"] if rank != owner}
    assert {(pair["rank"], pair["sender"]): pair["pulled"] for pair in plain["rows_by_rank_and_sender"]} == owned
    assert plain["buffer_rows"] == 2 * fetches["largest_batch_rows"]
    assert some["buffer_rows"] <= plain["buffer_rows"] + 2 * 20
    assert "fetch_plan" not in told
    assert not list((tmp_path / "b").glob("hot-*"))
    assert invoke([*arguments, "--hot-rows", "20"]) == 0
    text = capsys.readouterr().out
    for name in ("hit rate", "rows cached", "two caches and 2 batches", "hot rows are enough"):
        assert name in " ".join(text.split())


def test_a_store_plans_its_fetches(small: Path, tmp_path: Path, capsys) -> None:
    arguments = ["sample", str(small), *SEEDED, *FOUR, *STORE, "--out", str(tmp_path / "b")]
    assert invoke([*arguments, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    plan = told["fetch_plan"]
    assert (plan["hot_rows"], plan["made"], plan["found"]) == (40, 2 * 2 * 4, 0)
    assert Path(plan["path"]) == tmp_path / "b" / "hot-40"
    assert json.loads((tmp_path / "b" / "hot-40" / "fetches.json").read_text())["digest"] == plan["digest"]
    assert [size["hot_rows"] for size in told["fetches"]["sizes"]] == [40]
    assert told["fetches"]["window"] == 1  # bsp stages nothing ahead
    assert invoke([*arguments, "--hot-rows", "0"]) == 0
    text = capsys.readouterr().out
    assert plan["digest"] in text.replace("\n", "")
    assert "16 found" in text


def test_online_batches_have_a_store_but_no_plan(small: Path, tmp_path: Path, capsys) -> None:
    online = [*SEEDED, "--set", "batching.kind=sampled", *FOUR, "--set", "placement.kind=store"]
    assert invoke(["sample", str(small), *online, "--out", str(tmp_path / "b"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert "fetch_plan" not in told
    assert [size["hits"] for size in told["fetches"]["sizes"]] == [0]


def test_one_host_and_missing_parts_say_so(small: Path, tmp_path: Path, capsys) -> None:
    arguments = ["sample", str(small), *SEEDED, "--ranks", "2", "--out", str(tmp_path / "b"), "--hot-rows", "5"]
    assert invoke([*arguments, "--only-rank", "0"]) == 0
    assert "fetches are not reported until the batches" in capsys.readouterr().err
    assert invoke(arguments) == 0
    captured = capsys.readouterr()
    assert "one host holds all rows, so none is pulled" in captured.err
    assert "0 hot rows are enough" in captured.out


def test_rows_without_features_have_no_bytes(tmp_path: Path, capsys) -> None:
    np.save(tmp_path / "list.npy", np.random.default_rng(0).integers(0, 90, (800, 2)))
    bare = ["--set", f"graph.source={tmp_path / 'list.npy'}", "--set", "graph.classes=3"]
    arguments = ["sample", "vanilla", *SEEDED, *bare, *FOUR, "--out", str(tmp_path / "b"), "--hot-rows", "5"]
    assert invoke([*arguments, "--json"]) == 0
    size = json.loads(capsys.readouterr().out)["fetches"]["sizes"][0]
    assert (size["bytes_per_epoch"], size["buffer_bytes"]) == (None, None)
    assert size["rows_pulled"] > 0
    assert invoke(arguments) == 0
    assert "the graph has no features, so rows have no bytes" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("extra", "told"),
    [
        (["--hot-rows", "1,x"], "--hot-rows: got '1,x', expected whole numbers 0..2147483647 with commas"),
        (["--hot-rows", "-1"], "--hot-rows: got '-1', expected whole numbers"),
        (["--hot-rows", ""], "--hot-rows: got '', expected whole numbers"),
        (["--hot-rows", "2147483648"], "expected whole numbers 0..2147483647"),
        (["--set", "placement.hot_rows=5"], "placement.hot_rows"),
        ([*STORE, "--set", "placement.hot_rows=-1"], "placement.hot_rows: got -1, expected a whole number >= 0"),
        ([*WINDOW, "--set", "schedule.window=0"], "schedule.window: got 0, expected a whole number >= 1"),
        (
            [*STORE, "--set", "batching.kind=sampled"],
            "placement.hot_rows: got 40 with batching.kind = 'sampled', expected 0: hot rows are counted in batches",
        ),
    ],
)
def test_bad_input_of_fetches_is_told_before_the_work(
    small: Path, tmp_path: Path, capsys, extra: list[str], told: str
) -> None:
    assert invoke(["sample", str(small), *SEEDED, *FOUR, "--out", str(tmp_path / "b"), *extra]) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("command", ["simulate", "run"])
def test_full_graph_training_with_a_store_is_refused_with_the_reason(small: Path, capsys, command: str) -> None:
    assert invoke([command, str(small), *STORE, *WINDOW]) == 2
    told = capsys.readouterr().err
    assert "placement.kind: got 'store' with batching.kind = 'full', expected 'device'" in told
    assert "schedule.kind: got 'prefetch' with batching.kind = 'full', expected one of 'bsp', 'pipelined'" in told


@pytest.mark.realdata
def test_a_real_graph_pulls_less_with_more_hot_rows(data_dir: Path, tmp_path: Path, capsys) -> None:
    source = ["--set", f"graph.source={data_dir / 'cora.npz'}", "--set", "batching.split=local"]
    arguments = ["sample", "vanilla", *SEEDED, *source, *FOUR, "--out", str(tmp_path / "b"), "--json"]
    assert invoke([*arguments, "--hot-rows", "0,1,10,100,1000,100000"]) == 0
    told = json.loads(capsys.readouterr().out)
    sizes = told["fetches"]["sizes"]
    assert sizes[0]["rows_pulled"] == told["remote_rows"]
    assert sizes[-1]["rows_pulled"] == 0
    rates = [size["hit_rate"] for size in sizes]
    assert rates == sorted(rates)
    assert len(set(rates)) > 3
    totals = [size["rows_pulled"] + size["rows_cached"] for size in sizes]
    assert totals == sorted(totals, reverse=True)
