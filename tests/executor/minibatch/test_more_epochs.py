"""A mini-batch run that goes on with more epochs than it was planned for gives the losses of one long run."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from executor.state.plan import RunPlan
from simgnn.api.extend import extend_run, replan
from simgnn.cli.tables.console import Reporter
from simgnn.errors import ConfigError
from simgnn.experiment.load import load_experiment
from simgnn.record.plan import read_plan
from simgnn.record.rundir import RunDirectory
from tests.executor.harness import run_ranks
from tests.executor.minibatch.batch_runs import batches_prepared, prepared_batches
from tests.executor.runs import small_graph, train_in_process

HOT = ("placement.hot_rows=9", "train.eval_every=2")
CASES: dict[str, tuple[str, tuple[str, ...]]] = {
    "hot": ("rapidgnn", (*HOT, "placement.pull=delta", "schedule.window=3")),
    "auto": ("rapidgnn", ("train.optimizer=sgd", "train.momentum=0.9")),
    "asked": ("distdgl", ("train.learning_rate_schedule.kind=plateau", "train.learning_rate_schedule.patience=0")),
    "embeddings": ("distdgl", ("placement.sparse_embedding=3", "placement.sparse_delay=1", "model.kind=gcn")),
}
SHORT, LONG = 2, 5
"""Epochs before and after."""
SAME = ("loss", "bytes_sent", "bytes_sent_first_epoch", "messages", "input_rows", "epochs", "payload_epochs")


def _trained(folders: list[Path], place: Path, ranks: int, resume: bool = False) -> list[list[dict[str, Any]]]:
    return run_ranks(ranks, train_in_process, place, list(map(str, folders)), None, resume, joined=False)


def _longer(folder: Path, hosts: int, each: int, case: str, epochs: int) -> None:
    """Plan more epochs for a run whose graph is not in a file, with the caches that it has."""
    system, settings = CASES[case]
    run = RunDirectory(folder)
    described = read_plan(run.plan / "plan.json")
    kept = [f"placement.hot_rows={described.acting()['placement'].model_dump()['hot_rows']}"]
    wanted = [*settings, *(kept if system == "rapidgnn" else []), f"train.epochs={epochs}"]
    replan(run, described, batches_prepared(small_graph(), folder.parent / "cache", hosts, each, system, *wanted)[0])
    (run.root / "result.json").unlink()


def _check(folder: Path, long: Path, ranks: int) -> None:
    ours, whole = (json.loads((one / "result.json").read_text()) for one in (folder, long))
    for field in SAME:
        assert ours[field] == whole[field], field
    assert not any("did not take their rows" in note for note in ours["notes"])
    tables = [pq.read_table(one / "batches.parquet").drop(["staged", "wait_s"]) for one in (folder, long)]
    assert tables[0].equals(tables[1])
    traffic = [pq.read_table(one / "traffic.parquet").to_pylist() for one in (folder, long)]
    evaluated = {op["op_id"] for op in pq.read_table(long / "ops.parquet").to_pylist() if op["template"] == "evaluate"}
    training = [[row for row in rows if row["op_id"] not in evaluated] for rows in traffic]
    assert training[0] == training[1]


def _check_cases(cases: list[str], hosts: int, each: int, place: Path) -> None:
    ranks = hosts * each
    runs = {
        epochs: [prepared_batches(small_graph(), place / f"{epochs}-{case}", hosts, each, CASES[case][0],
                                  f"train.epochs={epochs}", *CASES[case][1]) for case in cases]
        for epochs in (SHORT, LONG)
    }  # fmt: skip
    expected = _trained(runs[LONG], place / "long", ranks)
    _trained(runs[SHORT], place / "short", ranks)
    for case, folder in zip(cases, runs[SHORT], strict=True):
        _longer(folder, hosts, each, case, LONG)
    got = _trained(runs[SHORT], place / "more", ranks, resume=True)
    for position, case in enumerate(cases):
        for rank in range(ranks):
            one, other = expected[rank][position], got[rank][position]
            assert other["losses"] == one["losses"], case
            assert len(one["losses"]) == LONG
            assert torch.equal(other["parameters"], one["parameters"]), case
            assert other["caches"].keys() == one["caches"].keys()
        if case != "auto":  # there the long run keeps more rows
            _check(runs[SHORT][position], runs[LONG][position], ranks)


@pytest.mark.slow
def test_more_epochs_on_two_hosts(tmp_path: Path) -> None:
    _check_cases(["hot"], 2, 1, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("hosts", "each"), [(1, 1), (1, 2), (2, 1), (2, 2)])
def test_more_epochs_on_any_cluster(hosts: int, each: int, tmp_path: Path) -> None:
    _check_cases(list(CASES), hosts, each, tmp_path)


def test_caches_of_a_whole_run_are_not_extended(tmp_path: Path) -> None:
    folder = prepared_batches(small_graph(), tmp_path / "run", 2, 1, "rapidgnn", *HOT, "placement.hot_scope=run")
    longer = load_experiment(folder / "experiment.toml", ["train.epochs=9"])
    before = (folder / "plan" / "plan.json").read_bytes()
    with pytest.raises(
        ConfigError, match=r"--resume: train\.epochs: got 9, expected 3: .*placement\.hot_scope = 'run'"
    ):
        extend_run(folder, longer, Reporter(quiet=True))
    assert (folder / "plan" / "plan.json").read_bytes() == before


def test_a_plan_of_another_graph_is_not_gone_on_with(tmp_path: Path) -> None:
    folder = prepared_batches(small_graph(), tmp_path / "run", 2, 1, "distdgl")
    other, _ = batches_prepared(small_graph(seed=1), tmp_path / "cache", 2, 1, "distdgl", "train.epochs=9")
    run = RunDirectory(folder)
    described = read_plan(run.plan / "plan.json")
    with pytest.raises(ConfigError, match=r"--resume: train\.epochs: got 9, expected 3: .*another partition_digest"):
        replan(run, described, other)
    assert read_plan(run.plan / "plan.json") == described
    assert sorted(path.name for path in folder.iterdir()) == ["experiment.toml", "plan"]
    assert RunPlan.open(folder).program
