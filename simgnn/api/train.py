"""Prepares, starts and extends training runs."""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, count
from pathlib import Path
from typing import Any

from simgnn.api.executor_process import check_executor, epoch_of, start_executor
from simgnn.api.experiments import PathLike, load_experiment, path_of
from simgnn.api.extend import check_resumable
from simgnn.api.memory.chunk_memory import simulated_needs
from simgnn.api.memory.device_budget import check_device_budget
from simgnn.api.predict import TRACE_EPOCHS, default_cluster, known_or_fallback, known_profile
from simgnn.api.results import Run
from simgnn.errors import BackendError, ConfigError
from simgnn.experiment.load import load_experiment as load
from simgnn.experiment.schema import Experiment
from simgnn.hardware.profile.profile import Profile
from simgnn.locks import locked_folder
from simgnn.outputs import free_room
from simgnn.partition.local.shards import shard_artifact
from simgnn.planner.directory import check_free, write_run_directory
from simgnn.planner.prepare import Prepared, prepare
from simgnn.progress import Progress, progress_of
from simgnn.record.logs import check_log
from simgnn.record.result import Result, check_unfinished, read_result
from simgnn.record.rundir import RunDirectory
from simgnn.report.perfetto import write_perfetto
from simgnn.tomlfile import load_toml


def prepare_run(experiment: Experiment, out: Path, progress: Progress, force: bool = False) -> Path:
    """Load, partition and plan an experiment, and write the run directory that the executor starts from."""
    check_executor()
    check_free(out, force)
    chosen = known_profile(experiment)
    cluster = None if chosen is None else default_cluster(chosen.profile)
    if cluster is None and experiment.cluster.ranks_per_host is None:
        raise ConfigError(
            "cluster.ranks_per_host: not given, and this machine was never calibrated; give a number, such as --ranks 2"
        )
    profile = None if chosen is None else chosen.profile
    needs = simulated_needs(known_or_fallback(chosen).profile)
    prepared = prepare(
        experiment, default_cluster=cluster, need_graph=True, profile=profile, needs=needs, progress=progress
    )
    check_device_budget(prepared, chosen, progress)
    return write_run(prepared, profile, out, progress, force)


def write_run(prepared: Prepared, profile: Profile | None, out: Path, progress: Progress, force: bool = False) -> Path:
    """Cut the data of a graph into shards and write the run directory of a prepared experiment."""
    assert prepared.graph is not None
    assert prepared.partition is not None
    dtype = prepared.experiment.train.dtype
    progress.stage(f"shards: {prepared.experiment.ranks} of {dtype}")
    shards = shard_artifact(prepared.graph, prepared.partition, dtype)
    return write_run_directory(prepared, out, profile, shards=shards.path, force=force)


def run(
    experiment: PathLike | Experiment,
    *,
    hardware: PathLike | None = None,
    ranks: int | None = None,
    epochs: int | None = None,
    set: Mapping[str, Any] | None = None,
    out: PathLike | None = None,
    force: bool = False,
    resume: bool = False,
    log: str | None = None,
    progress: Progress | Callable[[str], None] | None = None,
) -> Run:
    """Train an experiment for real, one process a rank on this machine, until it ends.

    ``experiment``, ``hardware``, ``ranks``, ``epochs``, ``set``: as in :func:`simgnn.load_experiment`. ``out``: run
    directory to write (default: the next free folder under ``runs``), ``force``: also in place of an earlier one,
    ``resume``: go on from its last checkpoint. ``log``: "tensorboard" writes event files, too. ``progress`` gets lines
    of text, as ``print`` does.

    Raises :class:`~simgnn.errors.ConfigError` for what cannot be run and for rows without a code that training meets,
    :class:`~simgnn.errors.BackendError` if it fails otherwise."""
    check_log(log)
    loaded = load_experiment(experiment, hardware=hardware, ranks=ranks, epochs=epochs, set=set)
    shown = progress_of(progress)
    place = path_of(out, "--out")
    if resume and place is not None:
        RunDirectory(place).check_outside_testbeds()
    directory = directory_for(loaded, place, shown, force, resume)
    result = carry_out(directory, loaded.train.epochs, shown, executor_options(resume, log))
    return Run(result, directory, loaded)


def run_in_testbed(
    testbed: Path, directory: Path, name: str | None, resume: bool, log: str | None, progress: Progress
) -> Result:
    """Train a prepared run directory inside a testbed until it ends. ``testbed``: its TOML file; ``name``: of the
    testbed, in place of the one in the file.

    Raises :class:`ConfigError` for what cannot be run, :class:`BackendError` if training fails."""
    check_log(log)
    run = RunDirectory(directory)
    if not run.experiment.is_file() or not run.plan.is_dir():
        raise ConfigError(
            f"DIR: got {directory}, which is not a run directory; expected one that simgnn run --prepare wrote"
        )
    check_unfinished(run.result)
    load_toml(testbed)  # raises before anything is started
    words = [*executor_options(resume, log), *(["--name", name] if name else [])]
    return carry_out(directory, load(run.experiment).train.epochs, progress, words, testbed)


def executor_options(resume: bool, log: str | None) -> list[str]:
    """Return the command-line options with which the executor resumes a run and writes logs."""
    return [*(["--resume"] if resume else []), *(["--log", log] if log else [])]


def directory_for(experiment: Experiment, out: Path | None, progress: Progress, force: bool, resume: bool) -> Path:
    """Return the directory of a run that can be started: prepared now, or ready to be resumed."""
    if resume:
        return check_resumable(experiment, out, progress)
    return prepare_run(experiment, out or free_directory(Path("runs"), experiment.name), progress, force)


def carry_out(
    directory: Path, epochs: int, progress: Progress, arguments: Sequence[str] = (), testbed: Path | None = None
) -> Result:
    """Start the executor on a prepared run directory, inside a ``testbed`` if one is given, show its progress, and read
    the result."""
    processes = load(RunDirectory(directory).experiment).ranks
    inside = "" if testbed is None else f" inside {testbed}"
    progress.stage(f"training: {directory}{inside} (starts {processes} processes, each of which loads PyTorch first)")
    with progress.counting("training", epochs) as counter:

        def tell(line: str) -> None:
            reached = epoch_of(line)
            if reached is None:
                progress.stage(line)
            else:
                counter.at(reached[0], reached[2])

        with locked_folder(directory, "--out"):
            start_executor(directory, list(arguments), tell, testbed=testbed)
    return read_ended(directory)


def read_ended(directory: Path) -> Result:
    """Read the result of a run that has ended, and draw its trace."""
    run = RunDirectory(directory)
    try:
        result = read_result(run.result)
        if result.status == "ok":
            write_perfetto({"measured": directory}, run.perfetto, TRACE_EPOCHS)
    except (OSError, ConfigError) as error:
        if not run.plan.is_dir():
            raise BackendError(
                f"run: the run directory {directory} is gone: it was deleted, moved or unmounted when training ended"
            ) from error
        if isinstance(error, OSError):
            raise BackendError(
                f"run: {run.perfetto} cannot be written ({error.strerror}); {free_room(directory)}. Training has "
                "ended, and all other files are complete"
            ) from error
        raise
    return result


def torchrun_command(directory: Path, arguments: Sequence[str] = ()) -> str:
    """Return the command that starts a prepared run with ``arguments``; on a cluster, run it on every host. A run that
    was trained inside a testbed is resumed there."""
    run = RunDirectory(directory)
    if "--resume" in arguments and run.testbed.is_file():
        return " ".join([run.resumes_in_testbed(), *(word for word in arguments if word != "--resume")])
    cluster = load(RunDirectory(directory).experiment).cluster
    nodes = "" if cluster.hosts == 1 else f"--nnodes {cluster.hosts} --rdzv-backend c10d --rdzv-endpoint HOST:29500 "
    start = f"torchrun {nodes}--nproc-per-node {cluster.ranks_per_host} -m executor run {directory}"
    return " ".join([start, *arguments])


def free_directory(root: Path, name: str) -> Path:
    """Return the first of ``root/name``, ``root/name-2``, ``root/name-3`` ... that does not exist."""
    names = chain([name], (f"{name}-{number}" for number in count(2)))
    return next(root / free for free in names if not (root / free).exists())
