"""``python -m executor.microbench --ranks P --out FILE [--quick]``: start the ranks, or be one of them (torchrun)."""

import argparse
import os
import sys
from datetime import UTC, datetime
from pathlib import Path

import torch.distributed as dist

from executor.microbench.facts import read_facts
from executor.microbench.pool import Pool
from executor.microbench.sample import write_samples
from executor.microbench.suite import FULL, QUICK, communication_probes, compute_probes
from executor.microbench.timing import measure
from executor.microbench.world import join, spawn


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
    world = join(options.backend)
    suite = QUICK if options.quick else FULL
    started = datetime.now(UTC)
    samples = []
    if options.only != "compute":
        samples += measure(communication_probes(suite, world), world, suite.communicate)
        _say(world.rank, f"communication of {world.ranks} ranks measured")
    if options.only != "communication":
        pool = Pool(suite.pool_items, world.device)
        samples += measure(compute_probes(suite, pool), world, suite.compute)
        _say(world.rank, f"compute of {world.ranks} ranks at once measured")
    if world.rank == 0:
        header = {
            "started": started.isoformat(timespec="seconds"),
            "facts": read_facts(world.device),
            "backend": world.backend,
            "ranks": world.ranks,
            "threads": world.threads,
            "quick": options.quick,
        }
        write_samples(options.out, header, samples)
    world.barrier()
    dist.destroy_process_group()


def _say(rank: int, text: str) -> None:
    if rank == 0:
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
