"""Timing of contenders in alternated rounds of one run, or between two runs of a base, and paired ratios."""

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Paired:
    """A ratio of two contenders over rounds: median, its bootstrap 95 % interval, quartiles."""

    median: float
    low: float
    high: float
    quartiles: tuple[float, float]

    def __str__(self) -> str:
        lower, upper = self.quartiles
        return (
            f"{self.median:.2f}x (95 % of the median {self.low:.2f}-{self.high:.2f}, quartiles {lower:.2f}-{upper:.2f})"
        )


def alternate(
    contenders: Mapping[str, Callable[[], object]], rounds: int, warm_up: int = 2, seed: int = 0
) -> dict[str, NDArray[np.float64]]:
    """Seconds of each contender in each round; within a round all run once, in an order drawn anew."""
    rng = np.random.default_rng(seed)
    names = list(contenders)
    for name in names:
        for _ in range(warm_up):
            contenders[name]()
    times: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        for position in rng.permutation(len(names)):
            name = names[position]
            gc.collect()
            began = time.perf_counter()
            contenders[name]()
            times[name].append(time.perf_counter() - began)
    return {name: np.array(values) for name, values in times.items()}


def ratio(slower: NDArray[np.float64], faster: NDArray[np.float64], seed: int = 0) -> Paired:
    """How many times as long ``slower`` took as ``faster``, round by round."""
    ratios = slower / faster
    picks = np.random.default_rng(seed).integers(0, len(ratios), (2000, len(ratios)))
    low, high = np.percentile(np.median(ratios[picks], axis=1), [2.5, 97.5])
    first, third = np.percentile(ratios, [25, 75])
    return Paired(float(np.median(ratios)), float(low), float(high), (float(first), float(third)))


def between(base: str, others: Sequence[str], seed: int) -> list[str]:
    """Names in the order in which they run: ``base`` before and after each of ``others``, whose order is drawn."""
    order = [base]
    for place in np.random.default_rng(seed).permutation(len(others)):
        order += [others[place], base]
    return order


def over_neighbours(order: Sequence[str], seconds: Sequence[float]) -> dict[str, float]:
    """How many times as fast as the base each of the others was, of runs in the order of :func:`between`: the mean of
    the base's run before it and that after it, over its own time."""
    return {
        order[place]: (seconds[place - 1] + seconds[place + 1]) / 2 / seconds[place]
        for place in range(1, len(order), 2)
    }
