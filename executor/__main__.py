"""``python -m executor run DIR``: start the ranks of a prepared run on this host, or be one of them under torchrun."""

import argparse
import os
import signal
import sys
import warnings
from pathlib import Path

from executor.launch.startup import lasting_imports, leave_working_directory
from executor.memory.allocator import tune_allocator
from executor.world.environment import LAUNCHER, follow_launcher
from simgnn.errors import SimgnnError
from simgnn.process_end import follow_starter

USAGE = """\
python -m executor run DIR [--resume] [--device auto|cpu|cuda] [--log tensorboard]

Trains what `simgnn run --prepare` wrote into DIR: starts one process for each rank on this machine. On a cluster:
torchrun --nproc-per-node P -m executor run DIR

python -m executor testbed --help: a cluster of network namespaces with limited links on this machine
"""


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line, run the ranks, and return the exit status."""
    follow_starter()
    words = sys.argv[1:] if arguments is None else arguments
    if words[:1] == ["testbed"]:
        # the testbed: loaded by its own command
        from executor.testbed.command import main as testbed

        return testbed(words[1:])
    parser = argparse.ArgumentParser(prog="python -m executor", usage=USAGE)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", usage=USAGE)
    run.add_argument("directory", type=Path)
    run.add_argument("--resume", action="store_true", help="go on from the last checkpoint in DIR")
    run.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    run.add_argument("--log", help="also write event files into DIR/tensorboard: tensorboard")
    options = parser.parse_args(words)
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return _rank(options.directory, options.device, options.resume, options.log)
    # pyarrow: loaded by the launcher, and by ranks only after their allocator is tuned
    from executor.launch.launcher import launch
    from simgnn.record.logs import check_log

    passed = ["--device", options.device, *(["--resume"] if options.resume else [])]
    passed += ["--log", options.log] if options.log else []
    try:
        check_log(options.log)
        return launch(options.directory, passed)
    except SimgnnError as error:
        print(f"executor: error: {error}", file=sys.stderr)
        return error.exit_status


def _rank(directory: Path, device: str, resume: bool, log: str | None) -> int:
    leave_working_directory()
    tune_allocator()  # first: importing pyarrow starts a thread, which would share its heap with others
    if LAUNCHER in os.environ:
        # Ctrl-C reaches all processes of the terminal; the launcher handles it and ends its ranks
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        follow_launcher(int(os.environ[LAUNCHER]))
    with lasting_imports():
        # torch and pyarrow: loaded by ranks, after the allocator is tuned
        from executor.rank.session import end_process, run_rank

    # torch warns once a process; tests cover the few functions that are used
    warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
    warnings.filterwarnings("ignore", message="Sparse invariant checks are implicitly disabled")
    status = run_rank(directory, device, resume, log)
    end_process(status)
    return status


if __name__ == "__main__":
    from simgnn.process_end import ended_quietly

    sys.exit(ended_quietly(main))
