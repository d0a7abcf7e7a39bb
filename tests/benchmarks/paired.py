"""Timing of contenders in alternated rounds of one run, and paired ratios with an interval."""

import gc
import time
from collections.abc import Callable, Mapping
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
