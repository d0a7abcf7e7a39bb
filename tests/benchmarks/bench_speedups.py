"""Speed-ups of systems over ``vanilla`` on a testbed: measured, with their spread, and predicted.

    python tests/benchmarks/bench_speedups.py --profile machine.toml --out DIR --repeats 5 --epochs 12

Needs root and iproute2, a quiet machine, and a profile that was calibrated on it beforehand (``simgnn calibrate --ranks
1,2,4``), from which the testbed's declaration makes the profile that is predicted with, after it has measured what
its link does while messages fill it (ranks compute while others of their core receive). Every system is trained once to
record what it decides, and predicted with these decisions and no measured time; after the last prediction come the
repeats, each run in fresh processes. A time is the mean over all epochs but the first.

In a repeat ``vanilla`` runs before and after every other system, whose order changes from repeat to repeat. A speed-up
is the mean of the two runs of ``vanilla`` beside a system by the system's own. On a machine that others share, an epoch
of ``vanilla``, up to 50 times shorter than another's, varies by a quarter between runs: one run of it would put the
same error into all speed-ups of a repeat, and a machine that gets slower would seem to be a slower system. An even
drift drops out of the mean of before and after. Before the first run of a call ``vanilla`` runs once uncounted: the
first run after the machine has calibrated or idled took up to a quarter longer than all others.

On a machine whose speed changes over hours one calibration is of one hour. To predict with as many as there are
repeats, alternate: simgnn calibrate --passes 2 --samples S1, a call with --repeats 1, --samples S2, --repeats 2, and so
on; then simgnn calibrate --pool S1 --pool S2 ... --out P, and a call with --profile P: it predicts and runs nothing.

Interrupted, it goes on where it stopped, also within a repeat: run K of repeat N lies in DIR/repeat-N/K-SYSTEM. (Runs
that the interruption parts are further apart in time than other pairs.) It takes the same options and DIR; more
--repeats add to those that are there.
Ends with status 1 where a prediction is further off than 10 % and two standard errors, or the order of two systems
whose measured gap exceeds the noise is wrong. The graph comes from SIMGNN_DATA.
"""

import argparse
import json
import os
import shutil
import sys
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from paired import between, over_neighbours

from simgnn.api.backend import CommandBackend
from simgnn.api.predict import ChosenProfile, predict
from simgnn.api.train import write_run
from simgnn.cli.tables.console import Reporter
from simgnn.experiment.load import load_experiment
from simgnn.experiment.schema import Experiment
from simgnn.hardware.profile.profile import Profile, load_profile
from simgnn.planner.prepare import prepare
from simgnn.record.result import Result, read_result
from simgnn.record.rundir import RunDirectory
from simgnn.study.error_measures import NOISE_FACTOR, median_noise
from simgnn.tomlfile import write_toml

BAR = 0.10
VANILLA = "vanilla"
ASSIGNED = "codec.assign_period=4"
"""So that the bits of AdaQP are assigned twice within the 12 epochs of a run."""
RESENT, PIPELINED, BY_VERTICES = (
    "communication.resend_inputs=true", "schedule.kind=pipelined", 'partition.balance=["vertices"]',
)  # fmt: skip
CACHED = [RESENT, "freshness.kind=refresh-interval", "placement.device_rows=adaptive", "placement.host_rows=adaptive"]
SYSTEMS: dict[str, tuple[str, list[str]]] = {
    VANILLA: ("vanilla", []),
    "cdfgnn": ("cdfgnn", []),
    "cdfgnn, no cache": ("cdfgnn", ["freshness.kind=always"]),
    "cdfgnn, no codec": ("cdfgnn", ["codec.kind=none"]),
    "cdfgnn, neither": ("cdfgnn", ["freshness.kind=always", "codec.kind=none"]),
    "cagnet": ("cagnet", ["train.epochs=3"]),  # every epoch sends the same
    "sancus-E": ("sancus", ["freshness.rule=epoch-fixed", "train.epochs=5"]),
    "sancus-A": ("sancus", ["freshness.rule=epoch-adaptive", "train.epochs=5"]),
    "sancus-H": ("sancus", ["freshness.rule=variation-gap", "train.epochs=5"]),
    # of the same model as vanilla, so that a speed-up is that of the halo rows alone
    "resent": ("vanilla", ["communication.resend_inputs=true"]),
    "pipelined": ("vanilla", ["schedule.kind=pipelined"]),
    "pipegcn": ("vanilla", ["schedule.kind=pipelined", "freshness.kind=one-epoch-stale"]),
    "bnsgcn-0.1": ("vanilla", ["freshness.kind=boundary-sampling", "freshness.p=0.1"]),
    "bnsgcn-0.5": ("vanilla", ["freshness.kind=boundary-sampling", "freshness.p=0.5"]),
    "adaqp-8": ("vanilla", ["schedule.kind=pipelined", "codec.kind=stochastic"]),
    "adaqp": ("vanilla", ["schedule.kind=pipelined", "codec.kind=stochastic", "codec.bits=adaptive", ASSIGNED]),
    "vertices": ("vanilla", [RESENT, BY_VERTICES]),
    "edges": ("vanilla", [RESENT, 'partition.balance=["vertices", "edges"]']),
    "random": ("vanilla", [RESENT, "partition.kind=random"]),
    "rapa": ("vanilla", [RESENT, "partition.kind=rapa"]),
    "rapa, random": ("vanilla", [RESENT, "partition.kind=rapa", "partition.base=random"]),
    "jaca": ("vanilla", [*CACHED, BY_VERTICES]),
    "jaca, async": ("vanilla", [*CACHED, BY_VERTICES, "freshness.mode=async"]),
    "jaca, queues": ("vanilla", [*CACHED, BY_VERTICES, PIPELINED]),
    "rapa, jaca": ("vanilla", [*CACHED, "partition.kind=rapa"]),
    "rapa, jaca, random": ("vanilla", [*CACHED, "partition.kind=rapa", "partition.base=random"]),
    "capgnn": ("vanilla", [*CACHED, "partition.kind=rapa", PIPELINED]),
    "capgnn, gradients": ("vanilla", [*CACHED, "partition.kind=rapa", PIPELINED, "partition.inter_machine=gradients"]),
}
"""Name here -> shipped system and what is set on top."""


def seconds_of(result: Result) -> float:
    """Mean over all epochs but the first."""
    return float(np.mean(result.epoch_s[1:]))


def experiment_of(name: str, options: argparse.Namespace, profile: Path) -> Experiment:
    """A system on the graph, with the layers and width that all share."""
    source = Path(os.environ.get("SIMGNN_DATA", "")) / "ogbn_arxiv.npz"
    if not source.is_file():
        raise SystemExit(f"{source} is not there; set SIMGNN_DATA to the folder of the real graphs")
    system, settings = SYSTEMS[name]
    common = [f"graph.source={source}", "graph.stand_in_features=128", "model.hidden=256"]
    common += [f"train.epochs={options.epochs}", "train.eval_every=0", f"hardware.profile={profile}"]
    loaded = load_experiment(system, [*common, *settings, *options.set])
    return loaded.with_cluster(options.hosts, options.ranks_per_host)


def prediction_of(experiment: Experiment, profile: Profile, recorded: Path) -> float:
    """Seconds of an epoch, with the recorded decisions where there are any."""
    activity = recorded if RunDirectory(recorded).activity.is_file() else None
    chosen = ChosenProfile(profile, profile.meta.name, False)
    return seconds_of(predict(experiment, Reporter(quiet=True), chosen, activity=activity).result)


def run_once(ready: Path, directory: Path, testbed: Path, backend: CommandBackend) -> Result:
    """The result of a run of ``ready`` in ``directory``: the one that is there, if it ended well."""
    result = RunDirectory(directory).result
    if result.is_file() and read_result(result).status == "ok":
        return read_result(result)
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(ready, directory)
    return backend.run(directory, testbed)


def folders_of(out: Path, repeat: int, order: list[str]) -> list[Path]:
    """Where the runs of a repeat lie, in their order; refused where others lie there, which were paired otherwise."""
    folder = out / f"repeat-{repeat}"
    folders = [folder / f"{place:02d}-{name}" for place, name in enumerate(order)]
    strange = sorted(set(folder.iterdir()) - set(folders)) if folder.is_dir() else []
    if strange:
        raise SystemExit(f"{strange[0]} is no run of these --systems; name those of the earlier call, or another --out")
    return folders


def run_repeat(out: Path, repeat: int, order: list[str], testbed: Path, backend: CommandBackend) -> list[float]:
    """Seconds of an epoch of each run of a repeat, in their order; those that are there are not run again."""
    seconds = []
    for name, directory in zip(order, folders_of(out, repeat, order), strict=True):
        seconds.append(seconds_of(run_once(out / name / "ready", directory, testbed, backend)))
        print(f"repeat {repeat}: {name:18s} measured {seconds[-1]:.3f} s an epoch", flush=True)
    return seconds


def main() -> None:
    """Record, predict, run, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", type=Path, required=True, help="this machine as calibrated")
    parser.add_argument("--out", type=Path, required=True, help="a new folder, or that of an earlier call")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--ranks-per-host", type=int, default=2)
    parser.add_argument("--link", default="200 Mbit/s")
    parser.add_argument("--slow", nargs="*", default=[], metavar="RANK=SHARE", help="ranks slower than the others")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="more settings of every experiment")
    options = parser.parse_args()
    others = [name for name in dict.fromkeys(options.systems) if name != VANILLA]
    names = [VANILLA, *others]
    orders = {repeat: between(VANILLA, others, repeat) for repeat in range(1, options.repeats + 1)}
    for repeat, order in orders.items():
        folders_of(options.out, repeat, order)  # refused before anything runs
    first = next((repeat for repeat in orders if not (options.out / f"repeat-{repeat}").is_dir()), None)
    options.out.mkdir(parents=True, exist_ok=True)
    backend = CommandBackend(Reporter())
    testbed, declared = options.out / "testbed.toml", (options.out / "declared.toml").resolve()
    table = {"name": "speedups", "hosts": options.hosts, "ranks_per_host": options.ranks_per_host}
    linked = {"link": options.link} if options.hosts > 1 else {}
    slow = {rank: float(share) for rank, share in (text.split("=") for text in options.slow)}
    write_toml(testbed, {**table, **linked, **({"slow": slow} if slow else {})})
    backend.declare(testbed, options.profile, declared, measure_load=options.hosts > 1)
    profile = load_profile(declared)
    predicted: dict[str, float] = {}
    measured: dict[str, list[float]] = {name: [] for name in names}
    ratios: dict[str, list[float]] = {name: [] for name in others}
    backend.up(testbed)
    try:
        for name in names:
            experiment = experiment_of(name, options, declared)
            ready, recorded = options.out / name / "ready", options.out / name / "recorded"
            if not ready.is_dir():
                write_run(prepare(experiment, need_graph=True, profile=profile), profile, ready, Reporter(quiet=True))
            run_once(ready, recorded, testbed, backend)
            predicted[name] = prediction_of(experiment, profile, recorded)
            print(f"{name:18s} predicted {predicted[name]:.3f} s an epoch", flush=True)
        for repeat, order in orders.items():
            if repeat == first:
                shutil.rmtree(options.out / "uncounted", ignore_errors=True)
                uncounted = seconds_of(
                    run_once(options.out / VANILLA / "ready", options.out / "uncounted", testbed, backend)
                )
                print(f"uncounted: {VANILLA} measured {uncounted:.3f} s an epoch", flush=True)
            seconds = run_repeat(options.out, repeat, order, testbed, backend)
            for name, time in zip(order, seconds, strict=True):
                measured[name].append(time)
            for name, ratio in over_neighbours(order, seconds).items():
                ratios[name].append(ratio)
    finally:
        backend.down(testbed)
    told = {"predicted_s": predicted, "measured_s": measured, "speedups": ratios}
    (options.out / "times.json").write_text(json.dumps(told, indent=2))
    times = {name: np.array(found) for name, found in measured.items()}
    print_times(VANILLA, times[VANILLA].reshape(options.repeats, -1))
    held = report(names, predicted, times, {name: np.array(found) for name, found in ratios.items()}, BAR)
    sys.exit(0 if held else 1)


def print_times(name: str, times: NDArray[np.float64]) -> None:
    """Print times [repeats, runs of one, at least two] and their spread."""
    for repeat, found in enumerate(times, 1):
        print(f"{name} in repeat {repeat}: {' '.join(f'{time:.3f}' for time in found)} s an epoch")
    print(
        f"{name} in all: median {np.median(times):.3f} s an epoch [{times.min():.3f}, {times.max():.3f}], standard"
        f" deviation {times.std(ddof=1) / times.mean():.1%}, {times.size} runs"
    )


def report(
    names: list[str],
    predicted: dict[str, float],
    measured: dict[str, NDArray[np.float64]],
    ratios: dict[str, NDArray[np.float64]],
    bar: float,
) -> bool:
    """Print a line a system and the pairs in the wrong order; whether the bar and the order hold. ``ratios``: measured
    speed-ups over the first of ``names``, [repeats] of each of the others; their times are [repeats] too."""
    held, base = True, names[0]
    for name in names[1:]:
        median, noise = float(np.median(ratios[name])), median_noise(ratios[name].tolist())
        expected = predicted[base] / predicted[name]
        error = expected / median - 1
        held &= abs(error) <= max(bar, NOISE_FACTOR * noise)
        times = float(np.median(measured[name]))
        print(
            f"{name:18s} speed-up measured {median:.3f} [{ratios[name].min():.3f}, {ratios[name].max():.3f}],"
            f" 2 standard errors {NOISE_FACTOR * noise:.1%}; predicted {expected:.3f}: {error:+.1%}; time itself"
            f" {predicted[name] / times - 1:+.1%}"
        )
    wrong = 0
    repeated = all(len(found) > 1 for found in ratios.values())
    if not repeated:
        print("one repeat: no spread, so no order of two systems is judged")
    for one, other in combinations(names, 2) if repeated else ():
        gaps = np.log(ratios[other] if one == base else measured[one] / measured[other])
        if abs(np.median(gaps)) <= NOISE_FACTOR * np.sqrt(np.pi / 2) * gaps.std(ddof=1) / np.sqrt(len(gaps)):
            continue
        if np.sign(np.median(gaps)) != np.sign(np.log(predicted[one] / predicted[other])):
            wrong += 1
            print(f"order of {one} and {other}: predicted the other way round than measured")
    itself = predicted[base] / float(np.median(measured[base])) - 1
    print(f"{base} itself: {itself:+.1%}; pairs out of order: {wrong}")
    return held and wrong == 0


if __name__ == "__main__":
    main()
