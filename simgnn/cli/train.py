"""Prepares and runs training, for ``simgnn run``, ``demo`` and studies."""

from collections.abc import Sequence
from itertools import chain, count
from pathlib import Path

from simgnn.cli.executor_process import check_executor, epoch_of, start_executor
from simgnn.cli.predict import TRACE_EPOCHS, default_cluster, known_profile
from simgnn.cli.tables.console import Reporter
from simgnn.errors import ConfigError
from simgnn.experiment.load import load_experiment
from simgnn.experiment.schema import Experiment
from simgnn.hardware.profile.profile import Profile
from simgnn.locks import locked_folder
from simgnn.partition.local.shards import shard_artifact
from simgnn.planner.directory import check_free, write_run_directory
from simgnn.planner.prepare import Prepared, prepare
from simgnn.record.result import Result, read_result
from simgnn.record.rundir import RunDirectory
from simgnn.report.perfetto import write_perfetto


def prepare_run(experiment: Experiment, out: Path, reporter: Reporter, force: bool = False) -> Path:
    """Load, partition and plan an experiment, and write the run directory that the executor starts from."""
    check_executor()
    check_free(out, force)
    chosen = known_profile(experiment)
    cluster = None if chosen is None else default_cluster(chosen.profile)
    if cluster is None and experiment.cluster.ranks_per_host is None:
        raise ConfigError(
            "cluster.ranks_per_host: not given, and this machine was never calibrated; give a number, such as --ranks 2"
        )
    prepared = prepare(experiment, default_cluster=cluster, need_graph=True, stage=reporter.stage)
    return write_run(prepared, None if chosen is None else chosen.profile, out, reporter, force)


def write_run(prepared: Prepared, profile: Profile | None, out: Path, reporter: Reporter, force: bool = False) -> Path:
    """Cut the data of a graph into shards and write the run directory of a prepared experiment."""
    assert prepared.graph is not None
    assert prepared.partition is not None
    dtype = prepared.experiment.train.dtype
    reporter.stage(f"shards: {prepared.experiment.ranks} of {dtype}")
    shards = shard_artifact(prepared.graph, prepared.partition, dtype)
    return write_run_directory(prepared, out, profile, shards=shards.path, force=force)


def carry_out(directory: Path, epochs: int, reporter: Reporter, arguments: Sequence[str] = ()) -> Result:
    """Start the executor on a prepared run directory, show its progress, and read the result."""
    reporter.stage(f"training: {directory}")
    with reporter.counting("training", epochs) as counter:

        def tell(line: str) -> None:
            progress = epoch_of(line)
            if progress is None:
                reporter.stage(line)
            else:
                counter.at(progress[0], progress[2])

        with locked_folder(directory, "--out"):
            start_executor(directory, list(arguments), tell)
    run = RunDirectory(directory)
    result = read_result(run.result)
    if result.status == "ok":
        write_perfetto({"measured": directory}, run.perfetto, TRACE_EPOCHS)
    return result


def torchrun_command(directory: Path, arguments: Sequence[str] = ()) -> str:
    """Return the command that starts a prepared run with ``arguments``; on a cluster, run it on every host."""
    cluster = load_experiment(RunDirectory(directory).experiment).cluster
    nodes = "" if cluster.hosts == 1 else f"--nnodes {cluster.hosts} --rdzv-backend c10d --rdzv-endpoint HOST:29500 "
    start = f"torchrun {nodes}--nproc-per-node {cluster.ranks_per_host} -m executor run {directory}"
    return " ".join([start, *arguments])


def free_directory(root: Path, name: str) -> Path:
    """Return the first of ``root/name``, ``root/name-2``, ``root/name-3`` ... that does not exist."""
    names = chain([name], (f"{name}-{number}" for number in count(2)))
    return next(root / free for free in names if not (root / free).exists())
