"""Runs one rank of a calibration: measures its stages with all other ranks; rank 0 writes the samples to a file."""

import argparse
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any

import torch.distributed as dist

from executor.memory.allocator import tune_allocator
from executor.microbench.facts import read_facts
from executor.microbench.probes.bench import Bench
from executor.microbench.samples import Kept, Sample, stage_key, write_samples
from executor.microbench.suite import FULL, QUICK, Suite, slowest_pair_s
from executor.microbench.timing import Plan, Probe, measure
from executor.microbench.world import World, join

PROGRESS = "progress"
"""First word of progress lines for ``simgnn calibrate``: seconds of the plan done, seconds in all, what is measured."""


@dataclass(frozen=True)
class Stage:
    """Probes that are measured together, and whose samples are stored in one file. ``text``: description for people."""

    name: str
    text: str
    plan: Plan
    probes: Callable[[], list[Probe]]


def work(options: argparse.Namespace) -> None:
    warnings.filterwarnings("ignore", message="Sparse", category=UserWarning)
    allocator = tune_allocator()
    world = join(options.backend)
    started = datetime.now(UTC)
    suite = QUICK if options.quick else FULL
    facts = world.gather({**read_facts(world.device), "allocator": allocator.applied})
    hosts = [{"ranks": list(ranks), "facts": facts[ranks[0]]} for ranks in world.members]
    key = stage_key(world, hosts, suite, options.quick)
    kept = Kept(options.keep, key, world.say, options.fresh)
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
    """Return the stages of this group of ranks: communication first (inside hosts, between them, of all), then work."""
    found: list[Stage] = []
    several = len(world.members) > 1
    # made when first needed, since a stage that is kept needs neither: a pilot exchange, and inputs of device work
    sizes = cache(lambda: suite.affordable(slowest_pair_s(world)))
    bench = cache(lambda: Bench(world, suite.pool_items, suite.quick))
    if only != "compute":
        each = max(map(len, world.members))
        if each > 1:
            where = f" inside each of {len(world.members)} hosts" if several else ""
            text = f"messages and collectives of {each} ranks{where}"
            found.append(Stage("communication", text, suite.communicate, lambda: suite.host_probes(world)))
        if several:
            text = f"links between {len(world.members)} hosts, pair by pair"
            found.append(Stage("links", text, suite.communicate, lambda: sizes().pair_probes(world)))
            text = f"messages and collectives of all {world.ranks} ranks"
            found.append(Stage("cluster", text, suite.communicate, lambda: sizes().cluster_probes(world)))
    if only != "communication":
        working = world.gather(int(world.works))
        busy = max(sum(working[rank] for rank in ranks) for ranks in world.members)
        threads = f"{world.threads} thread{'s' if world.threads > 1 else ''} each"
        text = f"work of {busy} ranks at once, {threads}" if busy > 1 else f"work of one rank, {threads}"
        found.append(Stage("work", text, suite.compute, lambda: bench().compute_probes("all")))
        if suite.alone is not None and busy > 1:
            text = "work of one rank alone"
            found.append(Stage("alone", text, suite.alone, lambda: bench().compute_probes("alone")))
    return found


def _measure(planned: list[Stage], world: World, kept: Kept) -> list[Sample]:
    total = sum(stage.plan.budget_s for stage in planned)
    samples: list[Sample] = []
    done = 0.0
    for stage in planned:

        def tell(elapsed_s: float, stage: Stage = stage, done: float = done) -> None:
            through = done + min(elapsed_s, stage.plan.budget_s)
            world.say(f"{PROGRESS} {through:.2f} {total:.2f} {stage.text}")

        tell(0.0)
        samples += kept.measured(stage.name, world, lambda: measure(stage.probes(), world, stage.plan, tell))  # noqa: B023
        done += stage.plan.budget_s
    return samples
