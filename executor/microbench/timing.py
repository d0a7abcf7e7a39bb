"""Interleaved timing: every round runs every probe once in a new random order, so that drift hits all alike."""

import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from executor.microbench.samples import Sample
from executor.microbench.world import World

Run = Callable[[], object]
Make = Callable[[World], Run | None]
Who = Literal["all", "alone"]
Scope = Literal["host", "all"]
CHEAP_S = 2e-3
CHEAP_VISITS = 4
"""A probe below CHEAP_S runs this often in a round: short ops are noisier and cost little."""
CACHED_S = 20e-3
"""A probe below CACHED_S runs once untimed before it is timed: in training its inputs were just written by another op
and lie in a cache if they fit. Longer probes work on more than caches hold."""
OUTLIER_DEVIATIONS = 10
FEWEST = 3
"""Fewest repeats for a standard deviation."""
GAP_S = 4e-3
GAP_ITEMS = 1 << 20
GAP_UNEVENNESS = 0.5
"""Before a probe that is ``amid_work`` every rank adds up GAP_ITEMS numbers again and again, for GAP_S plus or minus a
random share of up to GAP_UNEVENNESS; after it, for GAP_S."""


@dataclass(frozen=True)
class Probe:
    """One thing to time. ``make(world)`` builds its inputs and returns the call, or None on a rank that has no part in
    it; every round calls it again.

    ``who``: every rank at once, or the first of each host alone while the others wait. ``group``: whether this is a
    communication op, whose time counts from the latest start of its ranks. ``scope``: whether the ranks of each host
    give one sample, or all ranks together. ``locality``: as in :class:`Sample`.

    ``amid_work``: every rank works before the probe, some longer than others, and goes on working as soon as its own
    part is done, as in training. So the network's threads are asleep, their data is out of the caches, and the sending
    of data to a late rank competes for a core with the sender's own work.
    """

    primitive: str
    form: str
    sizes: Mapping[str, float]
    make: Make
    who: Who = "all"
    group: bool = False
    amid_work: bool = False
    locality: Sequence[float] | None = None
    scope: Scope = "host"


@dataclass(frozen=True)
class Plan:
    """How long to measure: at least ``least`` rounds, at most ``most``, and within ``budget_s`` after the first."""

    budget_s: float
    least: int
    most: int
    seed: int = 0


Part = tuple[list[float], list[float]]
"""Starts and ends of a probe on one rank, by the clock of rank 0; empty where the rank did not run it."""


def measure(
    probes: Sequence[Probe], world: World, plan: Plan, tell: Callable[[float], None] = lambda elapsed_s: None
) -> list[Sample]:
    """Time all probes on all ranks; returns the samples on rank 0, nothing on others.

    First every probe runs once without being timed: that compiles kernels and touches memory. A round that has begun
    is completed, unless twice the budget has passed: then probes that have been timed before are left out. ``tell``
    gets the seconds that have passed, after every round.
    """
    order = list(range(len(probes)))
    shuffle = random.Random(plan.seed).shuffle
    records: list[Part] = [([], []) for _ in probes]
    for probe in probes:
        if call := _call(probe, world):
            call()
    world.barrier()
    begun = time.perf_counter()
    gaps = random.Random(f"{plan.seed}/{world.rank}")
    for turn in range(plan.most):
        ahead = world.clock_ahead_s()
        shuffle(order)
        for index in order:
            elapsed = time.perf_counter() - begun
            late = world.any(elapsed > 2 * plan.budget_s)
            if not (late and turn > 0):
                _visit(probes[index], records[index], world, ahead, gaps)
        elapsed = time.perf_counter() - begun
        tell(elapsed)
        if world.any(turn + 1 >= plan.least and elapsed * (turn + 2) / (turn + 1) > plan.budget_s):
            break
    gathered = world.gather(records)
    if world.rank != 0:
        return []
    found: list[Sample] = []
    for index, probe in enumerate(probes):
        found += samples_of(probe, [part[index] for part in gathered], world)
    return found


def _call(probe: Probe, world: World) -> Run | None:
    acts = probe.group or (world.works if probe.who == "all" else world.leads)
    return probe.make(world) if acts else None


def _visit(probe: Probe, record: Part, world: World, ahead_s: float, gaps: random.Random) -> None:
    """Run a probe once, or a few times when it is cheap, with all ranks starting together. ``ahead_s``: how far this
    rank's clock is ahead of rank 0's, by which all times are recorded; ``gaps``: draws work done before it."""
    call, (starts, ends) = _call(probe, world), record
    # decided together: a communication must be called by every rank or by none
    cached = world.any(call is not None and (not ends or ends[-1] - starts[-1] < CACHED_S))
    if call is not None and cached:
        call()
    visits = 1
    done = 0
    while done < visits:
        world.barrier()
        if probe.amid_work:
            _work(world, GAP_S * gaps.uniform(1 - GAP_UNEVENNESS, 1 + GAP_UNEVENNESS))
        if call is not None:
            start = time.perf_counter()
            call()
            world.synchronize()
            end = time.perf_counter()
            starts.append(start - ahead_s)
            ends.append(end - ahead_s)
        if probe.amid_work:
            _work(world, GAP_S)
        if done == 0 and world.any(bool(ends) and ends[-1] - starts[-1] < CHEAP_S):
            visits = CHEAP_VISITS
        done += 1


def expected(repeats: Sequence[float]) -> float:
    """Return the mean of the repeats without outliers: the slowest twentieth of three or more repeats (at least one),
    as far as they are more than OUTLIER_DEVIATIONS median absolute deviations above the median.

    An epoch is a sum over many ops, and means add up where medians do not: if a third of all messages wait for a tick
    of the scheduler, an epoch takes longer by these waits, and the median message does not.
    """
    limit = statistics.median(repeats) + OUTLIER_DEVIATIONS * _deviation(repeats)
    ordered = sorted(repeats)
    rare = max(1, len(ordered) // 20) if len(ordered) > 2 else 0
    kept = ordered[: len(ordered) - rare]
    return statistics.fmean(kept + [value for value in ordered[len(kept) :] if value <= limit])


def _deviation(repeats: Sequence[float]) -> float:
    middle = statistics.median(repeats)
    return statistics.median(abs(value - middle) for value in repeats)


def _work(world: World, seconds: float) -> None:
    numbers = torch.ones(GAP_ITEMS, device=world.device)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        numbers.add_(1.0)
        world.synchronize()


def samples_of(probe: Probe, parts: Sequence[Part], world: World) -> list[Sample]:
    """Return the expected times of one probe: a sample for each host whose ranks ran it, or one for all ranks that did.

    ``parts`` [P]: starts and ends of every rank.
    """
    acting = [rank for rank, part in enumerate(parts) if part[0]]
    groups = [acting] if probe.scope == "all" else [[r for r in acting if r in ranks] for ranks in world.members]
    return [_sample(probe, group, parts, world) for group in groups if group]


def _sample(probe: Probe, acting: Sequence[int], parts: Sequence[Part], world: World) -> Sample:
    starts, ends = (np.array([parts[rank][end] for rank in acting]) for end in range(2))  # [ranks, repeats]
    # a root that has sent may be gone before the last rank comes: nobody waits for it
    spans = np.maximum(0.0, ends - starts.max(0)) if probe.group else ends - starts
    mean = spans.mean(0).tolist()
    deviation = _deviation(mean)
    limit = statistics.median(mean) + OUTLIER_DEVIATIONS * deviation
    # all ranks end a communication together: it has no jitter of one rank by itself
    own, common = (None, None) if probe.group else split_jitter(spans, limit)
    hosts = sorted({world.hosts[rank] for rank in acting})
    return Sample(
        primitive=probe.primitive,
        form=probe.form,
        sizes=dict(probe.sizes),
        hosts=hosts,
        ranks=sum(len(world.members[host]) for host in hosts),
        active=max(Counter(world.hosts[rank] for rank in acting).values()),
        threads=world.threads_of[acting[0]],
        seconds=expected(mean),
        last_s=expected(spans.max(0).tolist()),
        mad_s=deviation,
        repeats=len(mean),
        locality=probe.locality,
        jitter_s=own,
        drift_s=common,
    )


def split_jitter(spans: NDArray[np.float64], limit: float) -> tuple[float | None, float | None]:
    """Return the jitter from repeat to repeat as two standard deviations in seconds: of a rank by itself, which makes
    ranks wait for one another, and of all ranks together, which makes whole epochs longer or shorter. Both are None
    with fewer than FEWEST repeats.

    ``spans`` float64 [ranks, repeats]: times of ranks that ran the same op at once. Repeats whose mean over ranks lies
    above ``limit`` are outliers and left out. The method is a two-way analysis of variance: persistent
    differences between ranks are removed; the common part is the variance of the mean over ranks, minus the share of
    it that the ranks' own jitter explains. With one rank all jitter is its own.
    """
    kept = spans[:, spans.mean(0) <= limit]
    ranks, repeats = kept.shape
    if repeats < FEWEST:
        return None, None
    rows, columns = kept.mean(1, keepdims=True), kept.mean(0)
    common = float(columns.var(ddof=1))
    if ranks == 1:
        return sqrt(common), 0.0
    own = float(((kept - rows - columns + kept.mean()) ** 2).sum()) / ((ranks - 1) * (repeats - 1))
    return sqrt(own), sqrt(max(common - own / ranks, 0.0))
