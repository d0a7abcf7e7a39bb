"""What one rank does: it measures stage after stage with all others; rank 0 writes the file."""

import argparse
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import torch.distributed as dist

from executor.memory.allocator import tune_allocator
from executor.microbench.affordable_sizes import affordable, slowest_pair_s
from executor.microbench.facts import read_facts
from executor.microbench.finished_stages import Kept, stage_key
from executor.microbench.probes.bench import Bench
from executor.microbench.sample import Sample, write_samples
from executor.microbench.suite import FULL, QUICK, Suite, cluster_probes, host_probes, pair_probes
from executor.microbench.timing import Plan, Probe, measure
from executor.microbench.world import World, join

PROGRESS = "progress"
"""First word of a line that tells how much is through: seconds of the plan done, and in all, and what is measured."""


@dataclass(frozen=True)
class Stage:
    """Probes that are measured together and kept together. ``text`` says what they are."""

    name: str
    text: str
    plan: Plan
    probes: Callable[[], list[Probe]]


def work(options: argparse.Namespace) -> None:
    """Measure as one rank; rank 0 writes the file."""
    warnings.filterwarnings("ignore", message="Sparse", category=UserWarning)
    allocator = tune_allocator()
    world = join(options.backend)
    started = datetime.now(UTC)
    suite = QUICK if options.quick else FULL
    told = world.gather({**read_facts(world.device), "allocator": allocator.applied})
    hosts = [{"ranks": list(ranks), "facts": told[ranks[0]]} for ranks in world.members]
    key = stage_key(world, hosts, suite, options.quick)
    kept = Kept(options.keep, key, lambda text: _say(world, text), options.fresh)
    samples = _measure(stages(options.only, suite, world), world, kept)
    if world.rank == 0:
        header: dict[str, Any] = {
            "started": started.isoformat(timespec="seconds"),
            "hosts": hosts,
            "backend": world.backend,
            "ranks": world.ranks,
            "threads": world.threads,
            "quick": options.quick,
        }
        write_samples(options.out, header, samples)
    world.barrier()
    dist.destroy_process_group()


def stages(only: str, suite: Suite, world: World) -> list[Stage]:
    """What this group of ranks measures: communication first (inside hosts, between them, of all), then work."""
    found: list[Stage] = []
    bench: list[Bench] = []
    several = len(world.members) > 1
    slow: list[float] = []

    def sizes() -> Suite:
        """The suite, less the sizes that the links between hosts would take too long for."""
        if not slow:
            slow.append(slowest_pair_s(world))
        return affordable(suite, slow[0])

    def compute() -> Bench:
        if not bench:  # its inputs take a while to build, and a stage that is kept needs none
            bench.append(suite.bench(world))
        return bench[0]

    if only != "compute":
        each = max(map(len, world.members))
        if each > 1:
            where = f" inside each of {len(world.members)} hosts" if several else ""
            text = f"messages and collectives of {each} ranks{where}"
            found.append(Stage("communication", text, suite.communicate, lambda: host_probes(suite, world)))
        if several:
            text = f"links between {len(world.members)} hosts, pair by pair"
            found.append(Stage("links", text, suite.communicate, lambda: pair_probes(sizes(), world)))
            text = f"messages and collectives of all {world.ranks} ranks"
            found.append(Stage("cluster", text, suite.communicate, lambda: cluster_probes(sizes(), world)))
    if only != "communication":
        busy = max(sum(part) for part in _by_host(world, world.gather(int(world.works))))
        threads = f"{world.threads} thread{'s' if world.threads > 1 else ''} each"
        text = f"work of {busy} ranks at once, {threads}" if busy > 1 else f"work of one rank, {threads}"
        found.append(Stage("work", text, suite.compute, lambda: compute().compute_probes("all")))
        if suite.alone is not None and busy > 1:
            text = "work of one rank alone"
            found.append(Stage("alone", text, suite.alone, lambda: compute().compute_probes("alone")))
    return found


def _by_host(world: World, values: list[int]) -> list[list[int]]:
    return [[values[rank] for rank in ranks] for ranks in world.members]


def _measure(planned: list[Stage], world: World, kept: Kept) -> list[Sample]:
    total = sum(stage.plan.budget_s for stage in planned)
    samples: list[Sample] = []
    done = 0.0
    for stage in planned:
        tell = _progress(world, stage, done, total)
        tell(0.0)
        samples += kept.measured(stage.name, world, lambda: measure(stage.probes(), world, stage.plan, tell))  # noqa: B023
        done += stage.plan.budget_s
    return samples


def _progress(world: World, stage: Stage, done: float, total: float) -> Callable[[float], None]:
    """Tells how much of this call's measuring is through, for ``simgnn calibrate``."""

    def tell(elapsed_s: float) -> None:
        through = done + min(elapsed_s, stage.plan.budget_s)
        _say(world, f"{PROGRESS} {through:.2f} {total:.2f} {stage.text}")

    return tell


def _say(world: World, text: str) -> None:
    if world.rank == 0:
        print(text, file=sys.stderr, flush=True)
