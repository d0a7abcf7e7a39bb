"""``python -m executor.microbench --ranks P --out FILE [--quick]``: start the ranks, or be one of them (torchrun)."""

import argparse
import os
import sys
import tempfile
from pathlib import Path

from executor.launch.launcher import environment_of, run_together
from executor.launch.startup import lasting_imports, leave_working_directory
from executor.memory.allocator import tune_allocator
from executor.world.environment import LAUNCHER, RENDEZVOUS, follow_launcher
from simgnn.process_end import follow_starter


def main(arguments: list[str] | None = None) -> int:
    """Start the ranks, or run one of them; return the exit status. When a rank fails, the others are ended."""
    follow_starter()
    words = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(prog="python -m executor.microbench", description=__doc__)
    parser.add_argument("--ranks", type=int, default=2, help="ranks at once on this host (torchrun decides by itself)")
    parser.add_argument("--out", type=Path, required=True, help="JSON file of samples")
    parser.add_argument("--quick", action="store_true", help="few sizes, about ten seconds")
    parser.add_argument("--backend", choices=("auto", "gloo", "nccl"), default="auto")
    parser.add_argument("--only", choices=("all", "compute", "communication"), default="all")
    parser.add_argument("--keep", type=Path, help="folder for samples of finished stages; a second call continues")
    parser.add_argument("--fresh", action="store_true", help="do not use kept samples")
    options = parser.parse_args(words)
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        leave_working_directory()
        tune_allocator()  # as a run does
        if LAUNCHER in os.environ:
            follow_launcher(int(os.environ[LAUNCHER]))
        with lasting_imports():
            from executor.microbench.rank import work  # loads torch, which starting ranks has no need of

        work(options)
        return 0
    if options.ranks < 1:
        print(f"--ranks must be at least 1, got {options.ranks}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="simgnn-calibrate-") as folder:
        meeting = {RENDEZVOUS: str(Path(folder) / "rendezvous")}
        environments = [environment_of(rank, options.ranks, None) | meeting for rank in range(options.ranks)]
        return run_together([[sys.executable, "-P", "-m", "executor.microbench", *words]] * options.ranks, environments)


if __name__ == "__main__":
    sys.exit(main())
