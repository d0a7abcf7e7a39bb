"""``python -m executor run DIR``: start the ranks of a prepared run on this host, or be one of them under torchrun."""

import argparse
import os
import signal
import sys
import warnings
from collections.abc import Callable
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
    export = commands.add_parser("export", help="write a trained model as a plain PyTorch module")
    export.add_argument("directory", type=Path)
    export.add_argument("--weights", choices=("last", "best"), required=True)
    export.add_argument("--to", choices=("pyg", "torch"), required=True)
    export.add_argument("--out", type=Path, required=True)
    infer = commands.add_parser("infer", help="compute the scores of all vertices with a trained model")
    infer.add_argument("directory", type=Path)
    infer.add_argument("--run", type=Path, required=True)
    infer.add_argument("--weights", choices=("last", "best"), required=True)
    infer.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    run = commands.add_parser("run", usage=USAGE)
    run.add_argument("directory", type=Path)
    run.add_argument("--resume", action="store_true", help="go on from the last checkpoint in DIR")
    run.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    run.add_argument("--log", help="also write event files into DIR/tensorboard: tensorboard")
    options = parser.parse_args(words)
    if options.command == "export":
        return _told(lambda: _export(options))
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return _rank(options)
    # pyarrow: loaded by the launcher, and by ranks only after their allocator is tuned
    from executor.launch.launcher import launch, run_plan
    from executor.state.plan import RunPlan
    from simgnn.record.logs import check_log

    if options.command == "infer":
        command = [sys.executable, "-P", "-m", "executor", *words]
        return _told(lambda: run_plan(RunPlan.open(options.directory), command)[0])
    passed = ["--device", options.device, *(["--resume"] if options.resume else [])]
    passed += ["--log", options.log] if options.log else []

    def start() -> int:
        check_log(options.log)
        return launch(options.directory, passed)

    return _told(start)


def _told(work: Callable[[], int]) -> int:
    """Return the exit status of ``work``, or print the error that it raises and return that of the error."""
    try:
        return work()
    except SimgnnError as error:
        print(f"executor: error: {error}", file=sys.stderr)
        return error.exit_status


def _export(options: argparse.Namespace) -> int:
    # torch: loaded by the commands that need it
    from executor.trained.export import export_model
    from simgnn.record.trained import open_trained

    for note in export_model(open_trained(options.directory, options.weights), options.to, options.out):
        print(note)
    return 0


def _rank(options: argparse.Namespace) -> int:
    leave_working_directory()
    tune_allocator()  # first: importing pyarrow starts a thread, which would share its heap with others
    if LAUNCHER in os.environ:
        # Ctrl-C reaches all processes of the terminal; the launcher handles it and ends its ranks
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        follow_launcher(int(os.environ[LAUNCHER]))
    with lasting_imports():
        # torch and pyarrow: loaded by ranks, after the allocator is tuned
        from executor.rank.session import end_process, run_rank

        if options.command == "infer":
            # safetensors and the modules of exports: needed by no other rank
            from executor.trained.inference import infer_rank

    # torch warns once a process; tests cover the few functions that are used
    warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
    warnings.filterwarnings("ignore", message="Sparse invariant checks are implicitly disabled")
    if options.command == "infer":
        status = infer_rank(options.directory, options.run, options.weights, options.device)
    else:
        status = run_rank(options.directory, options.device, options.resume, options.log)
    end_process(status)
    return status


if __name__ == "__main__":
    from simgnn.process_end import ended_quietly

    sys.exit(ended_quietly(main))
