"""Runs of a base between those of others: pairing, and what resuming makes of it."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgnn.record.result import Result, write_result
from simgnn.record.rundir import RunDirectory
from tests.benchmarks.bench_speedups import folders_of, run_repeat
from tests.benchmarks.paired import between, over_neighbours

OTHERS = ["cagnet", "cdfgnn, no cache", "sancus-E"]


def drifting(order: list[str], rest: dict[str, float], drift: float) -> list[float]:
    """Times of runs, one after the other, on a machine that gets slower by ``drift`` a second. A run lasts as long as
    it would at rest (``rest``, seconds), and takes its time there by how slow the machine is over its length."""
    clock, seconds = 0.0, []
    for name in order:
        seconds.append(rest[name] * (1 + drift * (clock + rest[name] / 2)))
        clock += rest[name]
    return seconds


@given(repeat=st.integers(0, 1000), count=st.integers(0, 8))
def test_the_base_runs_before_and_after_every_other(repeat: int, count: int) -> None:
    others = [f"system {number}" for number in range(count)]
    order = between("vanilla", others, repeat)
    assert order[::2] == ["vanilla"] * (count + 1)
    assert sorted(order[1::2]) == others
    assert order == between("vanilla", others, repeat)


def test_the_order_of_others_changes_with_the_repeat() -> None:
    assert len({tuple(between("vanilla", OTHERS, repeat)) for repeat in range(20)}) > 1


def test_a_speed_up_is_the_mean_of_both_neighbours_over_the_run() -> None:
    assert over_neighbours(["v", "a", "v", "b", "v"], [1.0, 4.0, 3.0, 0.5, 5.0]) == {"a": 0.5, "b": 8.0}


@given(
    repeat=st.integers(0, 1000),
    base=st.floats(0.1, 100),
    lengths=st.lists(st.floats(0.1, 100), min_size=1, max_size=6),
    drift=st.floats(0, 0.1),
)
def test_an_even_drift_leaves_speed_ups_as_they_are_at_rest(
    repeat: int, base: float, lengths: list[float], drift: float
) -> None:
    others = {f"system {number}": length for number, length in enumerate(lengths)}
    order = between("vanilla", list(others), repeat)
    found = over_neighbours(order, drifting(order, {"vanilla": base, **others}, drift))
    assert found == pytest.approx({name: base / length for name, length in others.items()}, rel=1e-9)


def test_the_first_run_of_the_base_alone_would_be_off_under_that_drift() -> None:
    rest = {"vanilla": 0.5, "cagnet": 25.0, "sancus-E": 5.0}
    order = between("vanilla", ["cagnet", "sancus-E"], 1)
    seconds = drifting(order, rest, 0.01)
    errors = [seconds[0] / seconds[place] / (rest["vanilla"] / rest[order[place]]) - 1 for place in (1, 3)]
    assert min(errors) < -0.1


class Stopping:
    """A testbed that stops for good at the run after ``allowed``; a run takes a time of its own for its folder."""

    def __init__(self, allowed: int) -> None:
        self.allowed = allowed
        self.begun: list[str] = []

    def run(self, directory: Path, testbed: Path) -> Result:
        if len(self.begun) == self.allowed:
            raise KeyboardInterrupt
        self.begun.append(directory.name)
        own = 1.0 + int(directory.name.split("-")[0]) ** 2
        result = Result(backend="executor", status="ok", name="made up", digest=None, program_digest="d", seed=0,
                        ranks=1, hosts=1, epochs=3, epoch_s=[9.0, own, own], epoch_s_median=own)  # fmt: skip
        write_result(result, RunDirectory(directory).result)
        return result


def ready(out: Path) -> Path:
    """A folder of the benchmark in which every system is prepared."""
    for name in ("vanilla", *OTHERS):
        (out / name / "ready").mkdir(parents=True)
        (out / name / "ready" / "experiment.toml").write_text("")
    return out


@pytest.mark.parametrize("stopped_after", range(2 * len(OTHERS) + 1))
def test_a_repeat_goes_on_where_it_stopped_with_the_same_pairs(tmp_path: Path, stopped_after: int) -> None:
    order, whole = between("vanilla", OTHERS, 2), Stopping(100)
    at_once = run_repeat(ready(tmp_path / "whole"), 2, order, tmp_path, whole)
    assert [1.0 + place**2 for place in range(7)] == at_once

    out, stopping, again = ready(tmp_path / "stopped"), Stopping(stopped_after), Stopping(100)
    with pytest.raises(KeyboardInterrupt):
        run_repeat(out, 2, order, tmp_path, stopping)
    assert run_repeat(out, 2, order, tmp_path, again) == at_once
    assert stopping.begun + again.begun == whole.begun  # nothing twice, nothing left out
    assert len(set(whole.begun)) == 7


def test_one_more_repeat_leaves_the_runs_before_alone(tmp_path: Path) -> None:
    out, before, after = ready(tmp_path), Stopping(100), Stopping(100)
    run_repeat(out, 1, between("vanilla", OTHERS, 1), tmp_path, before)
    for repeat in (1, 2):
        run_repeat(out, repeat, between("vanilla", OTHERS, repeat), tmp_path, after)
    assert len(after.begun) == 7


def test_runs_at_other_places_are_refused(tmp_path: Path) -> None:
    out = ready(tmp_path)
    run_repeat(out, 1, ["vanilla", "cagnet", "vanilla"], tmp_path, Stopping(100))
    assert len(folders_of(out, 1, ["vanilla", "cagnet", "vanilla", "sancus-E", "vanilla"])) == 5
    with pytest.raises(SystemExit, match="01-cagnet"):
        folders_of(out, 1, ["vanilla", "sancus-E", "vanilla", "cagnet", "vanilla"])
