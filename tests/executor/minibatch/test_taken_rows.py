"""Whence ranks took the rows of their batches, counted where rows moved: from the very places that a dry run and a
simulation say, for caches of any size, and told where it is not so."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from executor.minibatch.input_rows import PlannedOrigins
from executor.recording.side_records import merged_records
from executor.state.plan import RunPlan
from simgnn.analysis.compare import compare_runs
from simgnn.cli.tables.one_result import show_result
from simgnn.record.batches import batch_table, batches_that_differ, input_rows
from simgnn.record.result import InputRows, Result, read_result, write_result
from simgnn.record.rundir import RunDirectory, ops_table, read_table, write_table
from simgnn.report.text import print_comparison
from simgnn.sampling.fetches.fetch_lists import Gather
from simgnn.sampling.fetches.measured_sizes import forecast
from tests.executor.harness import run_ranks
from tests.executor.minibatch.batch_checks import elsewhere_notes
from tests.executor.minibatch.batch_runs import EPOCHS, prepared_batches, sampling_of
from tests.executor.runs import small_graph, train_in_process
from tests.sim.worlds import machine
from tests.sim.worlds import run as simulate_exactly

HOT_ROWS = (0, 2, 12, 1000)
"""None, few, some, all that any rank needs."""
CLUSTERS = [(2, 1), pytest.param((2, 2), marks=pytest.mark.slow), pytest.param((4, 1), marks=pytest.mark.slow)]
"""Hosts, and ranks on each."""
SETTINGS = ["train.dtype=float32", "batching.batch_size=3", "batching.split=local", "batching.evaluation=none"]


@dataclass(frozen=True)
class Swept:
    """Runs that differ in their hot rows alone. ``faulty``: one more, in which a hit that was planned is left out."""

    folders: Mapping[int, Path]
    faulty: Path

    def table(self, hot_rows: int) -> pa.Table:
        """What ranks counted."""
        return read_table(RunDirectory(self.folders[hot_rows]).batches)

    def rows(self, hot_rows: int) -> InputRows:
        """The run's sums."""
        found = read_result(RunDirectory(self.folders[hot_rows]).result).input_rows
        assert found is not None
        return found


def _prepared(folder: Path, hosts: int, each: int, hot_rows: int, *settings: str) -> Path:
    hot = f"placement.hot_rows={hot_rows}"
    return prepared_batches(small_graph(120, seed=3), folder, hosts, each, "rapidgnn", *SETTINGS, hot, *settings)


@pytest.fixture(scope="module", params=CLUSTERS, ids=str)
def swept(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Swept:
    (hosts, each), place = request.param, tmp_path_factory.mktemp("swept")
    folders = {count: _prepared(place / f"hot-{count}", hosts, each, count) for count in HOT_ROWS}
    faulty = _prepared(place / "faulty", hosts, each, 12)
    paths = [str(path) for path in folders.values()]
    run_ranks(hosts * each, _train, place / "ranks", paths, str(faulty), joined=False)
    return Swept(folders, faulty)


def _train(rank: int, ranks: int, folders: list[str], faulty: str) -> None:
    """The sound runs, then the one in which rank 1 does not ask its cache for a row of a batch."""
    train_in_process(rank, ranks, folders)
    original = PlannedOrigins.of

    def fewer(self: PlannedOrigins, epoch: int, step: int, vertices: Any) -> Gather:
        found = original(self, epoch, step, vertices)
        if (rank, epoch, step) != (1, 1, 0):
            return found
        assert len(found.hits)
        return replace(found, hits=found.hits[1:], slots=found.slots[1:])

    PlannedOrigins.of = fewer  # type: ignore[method-assign]
    train_in_process(rank, ranks, [faulty])


def _predicted(folder: Path, place: Path) -> Path:
    """The directory of a prediction of the same program."""
    plan, run = RunPlan.open(folder), RunDirectory(place)
    place.mkdir()
    on = machine(list(plan.program.hosts), kind="cpu", cores=64, threads=1)
    simulation = simulate_exactly(plan.program, on, EPOCHS)
    write_table(ops_table(plan.program), run.ops)
    write_table(simulation.trace, run.trace)
    write_table(simulation.traffic_table, run.traffic)
    table = batch_table(plan.program, simulation.trace)
    write_table(table, run.batches)
    told = Result(backend="sim", status="ok", name="predicted", digest=None, program_digest=plan.digest, seed=0,
                  ranks=plan.ranks, hosts=len(set(plan.program.hosts)), epochs=EPOCHS, epoch_s=simulation.epoch_s,
                  epoch_s_median=simulation.epoch_s_median, input_rows=input_rows(table))  # fmt: skip
    write_result(told, run.result)
    return place


@pytest.mark.parametrize("hot_rows", HOT_ROWS)
def test_ranks_take_their_rows_whence_the_simulation_says(swept: Swept, hot_rows: int, tmp_path: Path) -> None:
    folder = swept.folders[hot_rows]
    predicted = _predicted(folder, tmp_path / "predicted")
    assert read_table(RunDirectory(predicted).batches).num_rows == swept.table(hot_rows).num_rows
    assert compare_runs(predicted, folder).batches_differ == 0
    assert read_result(RunDirectory(predicted).result).input_rows == swept.rows(hot_rows)
    assert not elsewhere_notes(folder)
    for row in swept.table(hot_rows).to_pylist():
        assert row["rows_local"] + row["rows_hit"] + row["rows_pulled"] == row["rows"]
        assert sum(row["pulled_from"]) == row["rows_pulled"], "what was moved into the batch has arrived for it"


def test_ranks_take_their_rows_whence_the_dry_run_says(swept: Swept) -> None:
    """``simgnn sample --hot-rows`` tells of all sizes at once, from the batches alone, without a program."""
    plan = RunPlan.open(swept.folders[0])
    assert plan.batches is not None
    sampling, hosts = sampling_of(swept.folders[0]), np.array(plan.program.hosts, np.int64)
    dry = forecast(sampling, Path(plan.batches.folder), hosts, EPOCHS, list(HOT_ROWS))
    assert dry.curve.enough <= HOT_ROWS[-1]
    for at, hot_rows in enumerate(dry.sizes):
        table, counted = swept.table(hot_rows), swept.rows(hot_rows)
        assert counted.hit == dry.curve.hits(hot_rows)
        assert counted.pulled == dry.curve.pulled(hot_rows)
        assert counted.cached == dry.curve.cached(hot_rows)
        for rank in range(plan.ranks):
            mine = [row for row in table.to_pylist() if row["rank"] == rank]
            assert np.sum([row["pulled_from"] for row in mine], axis=0).tolist() == dry.pulled[at, rank].tolist()
            assert sum(row["rows_cached"] for row in mine) == dry.cached[at, rank].sum()


def test_more_hot_rows_hit_more_and_fetch_less(swept: Swept) -> None:
    """From no hit to nothing but hits. A cache brings no row that it does not save: what fills it and what batches
    pull never grow together."""
    rows = [swept.rows(hot_rows) for hot_rows in HOT_ROWS]
    rates = [one.hit_rate for one in rows]
    assert rates == sorted(set(rates)), "each cache hits more than a smaller one"
    assert (rates[0], rates[-1]) == (0.0, 1.0)
    assert all(larger.pulled < smaller.pulled for smaller, larger in pairwise(rows))
    assert all(b.pulled + b.cached <= a.pulled + a.cached for a, b in pairwise(rows))
    assert rows[-1].pulled == rows[0].hit == rows[0].cached == 0
    assert len({(one.local, one.hit + one.pulled) for one in rows}) == 1, "the same batches need the same rows"


def test_a_run_tells_how_much_its_caches_hit(swept: Swept, capsys: pytest.CaptureFixture[str]) -> None:
    result = read_result(RunDirectory(swept.folders[12]).result)
    rows = swept.rows(12)
    assert rows.hit_rate is not None
    show_result(result, as_json=False, written=None)
    assert f"{rows.hit:,} of {rows.hit + rows.pulled:,} ({100 * rows.hit_rate:.1f} %)" in capsys.readouterr().out
    show_result(result, as_json=True, written=None)
    assert json.loads(capsys.readouterr().out)["input_rows"] == rows.model_dump()


def _copied(folder: Path, place: Path, **changes: Any) -> Path:
    """The same run directory, a column of its batches changed."""
    shutil.copytree(folder, place, ignore=shutil.ignore_patterns("rendezvous*"))
    run = RunDirectory(place)
    table = read_table(run.batches)
    for name, values in changes.items():
        field = table.schema.field(name)
        table = table.set_column(table.schema.get_field_index(name), field, pa.array(values, field.type))
    write_table(table, run.batches)
    return place


def test_a_count_that_was_changed_is_told(swept: Swept, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = swept.folders[12]
    hits = swept.table(12)["rows_hit"].to_pylist()
    predicted = _predicted(folder, tmp_path / "predicted")
    for case, (number, changed) in enumerate(
        [(1, [hits[0] + 1, *hits[1:]]), (2, [None, hits[1] - 1, *hits[2:]]), (0, hits)]
    ):
        found = compare_runs(predicted, _copied(folder, tmp_path / str(case), rows_hit=changed))
        assert found.batches_differ == found.as_dict()["batches_differ"] == number
        print_comparison(found)
        printed = " ".join(capsys.readouterr().out.split())
        why = "differ in their rows or row sources, or are recorded by one side only"
        assert f"mini-batches: {number} {why}" in printed


def test_a_cache_that_is_not_asked_is_told(swept: Swept, tmp_path: Path) -> None:
    """The run says so by itself, and so does a comparison."""
    folder = swept.faulty
    run, plan = RunDirectory(folder), RunPlan.open(folder)
    result, table = read_result(run.result), read_table(run.batches)
    (note,) = elsewhere_notes(folder)
    assert note.startswith("1 batches ")
    planned = batch_table(plan.program, read_table(run.trace))
    assert batches_that_differ(planned, table) == 1
    (other,) = [
        (one, two) for one, two in zip(planned.to_pylist(), table.to_pylist(), strict=True)
        if one["rows_hit"] != two["rows_hit"]
    ]  # fmt: skip
    assert other[1] == {**other[0], "rows_hit": other[0]["rows_hit"] - 1, "loss_sum": other[1]["loss_sum"]}
    assert (other[1]["rank"], other[1]["epoch"], other[1]["step"]) == (1, 1, 0)
    rows = input_rows(planned)
    assert rows is not None
    assert result.input_rows == rows.model_copy(update={"hit": rows.hit - 1})
    assert compare_runs(_predicted(folder, tmp_path / "predicted"), folder).batches_differ == 1


def test_what_a_lost_rank_did_not_tell_is_not_known(swept: Swept) -> None:
    """And never taken from the plan; nor is it a sum."""
    folder = swept.folders[12]
    plan, run = RunPlan.open(folder), RunDirectory(folder)
    taken = merged_records(plan.trace, "taken")
    kept = taken.filter(pa.array((taken["rank"].to_numpy() == 0) | (taken["epoch"].to_numpy() < 2)))
    table = batch_table(plan.program, read_table(run.trace), None, kept)
    for row in table.to_pylist():
        untold = row["rank"] > 0 and row["epoch"] == 2
        for name in ("rows_local", "rows_hit", "rows_pulled", "rows_cached", "pulled_from", "asked"):
            assert (row[name] is None) == untold, (name, row)
        assert row["rows"] is not None
    assert input_rows(table) is None
    lost = plan.program.calendar.steps * (plan.ranks - 1)
    assert batches_that_differ(table, swept.table(12)) == batches_that_differ(table, table) == lost > 0
