"""``python -m executor.microbench --ranks P --out FILE [--quick]``: start the ranks, or be one of them (torchrun)."""

import argparse
import os
import sys
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import torch.distributed as dist

from executor.allocator import tune_allocator
from executor.microbench.facts import read_facts
from executor.microbench.kept import Kept, stage_key
from executor.microbench.sample import Sample, write_samples
from executor.microbench.suite import FULL, QUICK, Bench, Suite, communication_probes
from executor.microbench.timing import Plan, Probe, Who, measure
from executor.microbench.world import World, join, spawn

SEVERAL_HOSTS = (
    "fits do not tell links between hosts from links inside one yet; calibrate one host, and declare the links between "
    "hosts in a profile of your own"
)
PROGRESS = "progress"
"""First word of a line that tells how much is through."""


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m executor.microbench", description=__doc__)
    parser.add_argument("--ranks", type=int, default=2, help="ranks at once on this host (torchrun decides by itself)")
    parser.add_argument("--out", type=Path, required=True, help="JSON file of samples")
    parser.add_argument("--quick", action="store_true", help="few sizes, about ten seconds")
    parser.add_argument("--backend", choices=("auto", "gloo", "nccl"), default="auto")
    parser.add_argument("--only", choices=("all", "compute", "communication"), default="all")
    parser.add_argument("--keep", type=Path, help="folder for samples of finished stages; a second call goes on there")
    parser.add_argument("--one-host", action="store_true", help="refuse ranks on several hosts")
    parser.add_argument("--fresh", action="store_true", help="do not use what is kept")
    return parser.parse_args(arguments)


def work(options: argparse.Namespace) -> None:
    """Measure as one rank; rank 0 writes the file."""
    warnings.filterwarnings("ignore", message="Sparse", category=UserWarning)
    allocator = tune_allocator()
    world = join(options.backend)
    if options.one_host and not world.same_host:
        _say(world, f"got ranks on the hosts {', '.join(sorted(set(world.hosts)))}, expected one host: {SEVERAL_HOSTS}")
        dist.destroy_process_group()
        raise SystemExit(2)
    started = datetime.now(UTC)
    suite = QUICK if options.quick else FULL
    facts = {**read_facts(world.device), "allocator": allocator.applied}
    key = stage_key(world, facts, suite, options.quick)
    kept = Kept(options.keep, key, lambda text: _say(world, text), options.fresh)
    samples = _measure(options.only, suite, world, kept)
    if world.rank == 0:
        header = {
            "started": started.isoformat(timespec="seconds"),
            "facts": facts,
            "backend": world.backend,
            "ranks": world.ranks,
            "threads": world.threads,
            "quick": options.quick,
        }
        write_samples(options.out, header, samples)
    world.barrier()
    dist.destroy_process_group()


def _measure(only: str, suite: Suite, world: World, kept: Kept) -> list[Sample]:
    stages: list[tuple[str, str, Plan, Callable[[], list[Probe]]]] = []
    bench: list[Bench] = []

    def work(who: Who) -> list[Probe]:
        if not bench:  # its inputs take a while to build, and a stage that is kept needs none
            bench.append(Bench(suite, world))
        return bench[0].compute_probes(who)

    if only != "compute" and world.ranks > 1:
        text = f"communication of {world.ranks} ranks"
        stages.append(("communication", text, suite.communicate, lambda: communication_probes(suite, world)))
    if only != "communication":
        text = f"work of {world.ranks} ranks at once, {world.threads} threads each"
        stages.append(("work", text, suite.compute, lambda: work("all")))
        if suite.alone is not None and world.ranks > 1:
            stages.append(("alone", "work of one rank alone", suite.alone, lambda: work("alone")))
    total = sum(plan.budget_s for _, _, plan, _ in stages)
    samples: list[Sample] = []
    done = 0.0
    for name, text, plan, probes in stages:
        tell = _progress(world, text, done, plan.budget_s, total)
        tell(0.0)
        samples += kept.measured(name, world, lambda: measure(probes(), world, plan, tell))  # noqa: B023
        done += plan.budget_s
    return samples


def _progress(world: World, text: str, done: float, budget_s: float, total: float) -> Callable[[float], None]:
    """Tells how much of this call's measuring is through: "progress SHARE TEXT" for ``simgnn calibrate``."""

    def tell(elapsed_s: float) -> None:
        _say(world, f"{PROGRESS} {(done + min(elapsed_s, budget_s)) / total:.3f} {text}")

    return tell


def _say(world: World, text: str) -> None:
    if world.rank == 0:
        print(text, file=sys.stderr, flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Entry point; the exit status."""
    options = parse(arguments)
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        work(options)
        return 0
    if options.ranks < 1:
        print(f"--ranks must be at least 1, got {options.ranks}", file=sys.stderr)
        return 2
    passed = ["--out", str(options.out), "--backend", options.backend, "--only", options.only]
    passed += ["--keep", str(options.keep)] if options.keep is not None else []
    passed += [f"--{name}" for name in ("quick", "fresh") if getattr(options, name)]
    passed += ["--one-host"] if options.one_host else []
    return spawn(options.ranks, passed)


if __name__ == "__main__":
    sys.exit(main())
