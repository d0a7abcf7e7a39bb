"""``python -m executor.microbench --ranks P --out FILE [--quick]``: start the ranks, or be one of them (torchrun)."""

import argparse
import os
import sys
import warnings
from datetime import UTC, datetime
from pathlib import Path

import torch.distributed as dist

from executor.allocator import tune_allocator
from executor.microbench.facts import read_facts
from executor.microbench.sample import Sample, write_samples
from executor.microbench.suite import FULL, QUICK, Bench, communication_probes
from executor.microbench.timing import measure
from executor.microbench.world import World, join, spawn


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m executor.microbench", description=__doc__)
    parser.add_argument("--ranks", type=int, default=2, help="ranks at once on this host (torchrun decides by itself)")
    parser.add_argument("--out", type=Path, required=True, help="JSON file of samples")
    parser.add_argument("--quick", action="store_true", help="few sizes, about ten seconds")
    parser.add_argument("--backend", choices=("auto", "gloo", "nccl"), default="auto")
    parser.add_argument("--only", choices=("all", "compute", "communication"), default="all")
    return parser.parse_args(arguments)


def work(options: argparse.Namespace) -> None:
    """Measure as one rank; rank 0 writes the file."""
    warnings.filterwarnings("ignore", message="Sparse", category=UserWarning)
    allocator = tune_allocator()
    world = join(options.backend)
    started = datetime.now(UTC)
    samples = _measure(options, world)
    if world.rank == 0:
        header = {
            "started": started.isoformat(timespec="seconds"),
            "facts": {**read_facts(world.device), "allocator": allocator.applied},
            "backend": world.backend,
            "ranks": world.ranks,
            "threads": world.threads,
            "quick": options.quick,
        }
        write_samples(options.out, header, samples)
    world.barrier()
    dist.destroy_process_group()


def _measure(options: argparse.Namespace, world: World) -> list[Sample]:
    suite = QUICK if options.quick else FULL
    samples: list[Sample] = []
    if options.only != "compute" and world.ranks > 1:
        samples += measure(communication_probes(suite, world), world, suite.communicate)
        _say(world, f"communication of {world.ranks} ranks measured")
    if options.only == "communication":
        return samples
    bench = Bench(suite, world)
    _say(world, "inputs built")
    samples += measure(bench.compute_probes(), world, suite.compute)
    _say(world, f"work of {world.ranks} ranks at once, {world.threads} threads each, measured")
    if suite.alone is not None and world.ranks > 1:
        samples += measure(bench.compute_probes("alone"), world, suite.alone)
        _say(world, "work of one rank alone measured")
    return samples


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
    return spawn(options.ranks, passed + (["--quick"] if options.quick else []))


if __name__ == "__main__":
    sys.exit(main())
