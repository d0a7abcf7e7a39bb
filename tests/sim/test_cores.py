"""Ranks that share cores: processor sharing in closed form."""

import pytest
import simpy

from sim.worlds import PS
from simgnn.sim.device import HostCores


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
