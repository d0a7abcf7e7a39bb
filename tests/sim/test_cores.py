"""Ranks that share cores: processor sharing in closed form."""

import json

import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.worlds import PS
from simgnn.cli.main import invoke
from simgnn.sim.shared_processors import HostCores


def ends(cores: float, threads: float, jobs: list[tuple[float, float]]) -> list[float]:
    """When jobs (start, seconds alone) are done."""
    env = simpy.Environment(initial_time=0)
    shared = HostCores(env, cores, threads)
    found = [0.0] * len(jobs)

    def work(place: int, start: float, seconds: float):
        yield env.timeout(round(start * PS))
        yield shared.run(round(seconds * PS))
        found[place] = env.now / PS

    for place, (start, seconds) in enumerate(jobs):
        env.process(work(place, start, seconds))
    env.run()
    return found


@pytest.mark.parametrize(
    ("cores", "threads", "jobs", "expected"),
    [
        (2, 1, [(0, 1), (0, 1)], [1, 1]),  # enough cores
        (2, 1, [(0, 1), (0, 1), (0, 1)], [1.5, 1.5, 1.5]),  # three on two cores
        (1, 1, [(0, 1), (0, 2)], [2, 3]),  # the first leaves at 2, the second has 1 left
        (1, 1, [(0, 3), (1, 1)], [4, 3]),  # alone for 1, shared for 2, alone for 1
        (3, 2, [(0, 3), (0, 3)], [4, 4]),  # four threads on three cores
        (4, 1, [(0, 1), (5, 1)], [1, 6]),  # idle between
    ],
)
def test_processor_sharing(cores: float, threads: float, jobs: list, expected: list) -> None:
    assert ends(cores, threads, jobs) == pytest.approx(expected, abs=2 / PS)


@settings(max_examples=100, deadline=None)
@given(
    st.integers(1, 8), st.integers(1, 4),
    st.lists(st.tuples(st.floats(0.0, 5.0), st.floats(0.001, 5.0)), min_size=1, max_size=12),
)  # fmt: skip
def test_sharing_slows_down_by_what_is_shared(cores: int, threads: int, jobs: list) -> None:
    jobs = [(round(start, 6), round(seconds, 6)) for start, seconds in jobs]
    found = ends(cores, threads, jobs)
    tick = (len(jobs) + 2) / PS
    wanted = len(jobs) * threads
    for (start, seconds), end in zip(jobs, found, strict=True):
        assert end >= start + seconds - tick, "nobody is faster than alone"
        assert end <= start + seconds * max(wanted / cores, 1.0) + tick, (
            "nobody is slower than if all were there always"
        )
    # while cores are short none of them idles, and else everybody moves at full speed
    busy = sum(seconds for _, seconds in jobs) * threads / cores + max(seconds for _, seconds in jobs)
    assert max(found) <= max(start for start, _ in jobs) + busy + tick
    if len({start for start, _ in jobs}) == 1 and wanted <= cores:
        assert found == pytest.approx([start + seconds for start, seconds in jobs], abs=2 / PS), (
            "alone, or cores enough"
        )


def test_more_threads_than_cores_take_as_long_as_one_a_core(capsys: pytest.CaptureFixture[str]) -> None:
    def seconds(threads: int, ranks: int) -> float:
        words = [
            "hardware",
            "time",
            "vm-epyc-2",
            "matmul",
            "--rows",
            "1e3",
            "--inner",
            "1e3",
            "--outer",
            "1e3",
            "--json",
        ]
        assert invoke([*words, "--ranks", str(ranks), "--threads", str(threads)]) == 0
        return float(json.loads(capsys.readouterr().out)["seconds"])

    alone = seconds(2, 1)
    assert seconds(8, 1) == pytest.approx(alone)
    assert seconds(8, 2) == pytest.approx(2 * alone), "two ranks take turns on all cores"
