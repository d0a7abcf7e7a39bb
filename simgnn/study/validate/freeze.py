"""Prepares a validation and freezes it before the first run: checks, draw, calibration, partitions, predictions.

If an earlier call was interrupted, :func:`prepare` continues where it stopped.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from simgnn.errors import ConfigError, GraphError, ProgramError
from simgnn.experiment.schema import Experiment
from simgnn.graph.load import check_source
from simgnn.graph.thread_pool import usable_threads
from simgnn.hardware.profile.profile import Profile, load_profile
from simgnn.locks import LOCK
from simgnn.model.user_layer import user_shape
from simgnn.outputs import check_output_folder
from simgnn.outside import outside_data
from simgnn.partition.statistics.file import save_stats
from simgnn.planner.prepare import STATISTICS
from simgnn.record.result import versions
from simgnn.sampling.batches.sizes import save_sizes
from simgnn.seal import digests_of, file_digest, seal_folder
from simgnn.study.backend import Backend
from simgnn.study.cases import Case, case_experiment, with_data_folder
from simgnn.study.profile_variants import slow_down
from simgnn.study.validate.baselines import demand, roofline_s
from simgnn.study.validate.frozen import Frozen, check_frozen
from simgnn.study.validate.ground_truth import (
    AS_CALIBRATED,
    RESTART,
    Prediction,
    Times,
    TruthFolder,
    write_predictions,
)
from simgnn.study.validate.suite import Suite, Topology
from simgnn.study.validate.suite_file import parse_suite
from simgnn.tomlfile import Table, leaves, load_toml, write_atomically, write_toml

Of = TypeVar("Of")
QUEUE = "fair"
"""Queueing discipline of links in a suite's testbeds, stated in their files because a default may change."""


def prepare(suite: Suite, folder: TruthFolder, backend: Backend) -> None:
    """Draw, calibrate, partition and predict, without the steps that an interrupted call finished. Raises
    :class:`ConfigError` if the folder holds another suite, or a frozen file has changed."""
    check_folder(suite, folder.root)
    if folder.frozen.is_file():
        check_frozen(folder)
        return
    _check_runnable(suite, backend)
    folder.root.mkdir(parents=True, exist_ok=True)
    canary_s = _calibrate(suite, folder, backend)
    for case in suite.cases():
        _declare(suite.topology(case), case.ranks, folder, backend)
    _prepare_cases(suite, folder, backend)
    predictions = predict_all(suite, folder, backend)
    _check_noticeable(suite, predictions)
    write_predictions(predictions, folder.predictions)
    frozen = Frozen(
        frozen=datetime.now(UTC).isoformat(timespec="seconds"),
        canary_s=canary_s,
        versions=versions(),
        digests=digests_of(folder.root, [folder.predictions, *folder.predicted_from()]),
    )
    write_atomically(folder.frozen, frozen.model_dump_json(indent=2) + "\n")
    folder.reference.unlink(missing_ok=True)


def check_folder(suite: Suite, root: Path) -> None:
    """Raise :class:`ConfigError` unless ``root`` is new, or holds half-written files or a validation of this suite.

    Until predictions are frozen, a validation with another ``sensitivity`` may continue: no file depends on it yet.
    """
    check_output_folder(root, "--out")
    folder = TruthFolder(root)
    if folder.suite.is_file():
        before = parse_suite(load_toml(folder.suite), str(folder.suite))
        if not folder.frozen.is_file():
            before = before.model_copy(update={"sensitivity": suite.sensitivity})
        if before != suite:
            raise ConfigError(
                f"--out: {root} holds a validation of another suite ('{before.name}', {how_far(folder)}; its "
                f"{', '.join(differing(before.to_table(), suite.to_table()))} differ from those of '{suite.name}'); "
                f"name another folder, or continue the validation there: simgnn validate {folder.suite} --out {root}"
            )
    elif root.is_dir() and not all(_half_written(entry, folder) for entry in root.iterdir()):
        raise ConfigError(f"--out: got {root}, which is not empty and holds no validation; name another folder")


def how_far(folder: TruthFolder) -> str:
    """Describe how far the validation in a folder has come."""
    if not folder.frozen.is_file():
        return "calibrated, not yet predicted" if _is_calibrated(folder) else "not calibrated"
    return "predicted, runs begun" if folder.runs.is_file() else "predicted, nothing run"


def differing(one: Table, other: Table) -> list[str]:
    """List the dotted keys whose values differ between two tables, sorted."""
    there, here = dict(leaves(one)), dict(leaves(other))
    return sorted(".".join(key) for key in {*there, *here} if there.get(key) != here.get(key))


def _check_runnable(suite: Suite, backend: Backend) -> None:
    """Raise :class:`ConfigError` for cases that cannot be prepared or predicted (quick checks come first), and for
    testbeds on a machine that cannot run them."""
    cases = suite.cases()
    experiments = _each(cases, lambda case: _found(case_experiment(suite.extends, suite.settings(case))))
    _each(cases, lambda case: _check_threads(suite.topology(case), case.ranks, experiments[case]))
    if not all(topology.plain for topology in suite.topologies):
        backend.check_testbed()
    checked = set[str]()

    def check(case: Case) -> None:
        key = json.dumps({**experiments[case].to_table(), "name": ""}, sort_keys=True)
        if key not in checked:
            backend.tell(f"checking {len(checked) + 1}: {case.name}")
            backend.check(experiments[case])
            checked.add(key)

    _each(cases, check)


def _check_noticeable(suite: Suite, predictions: Iterable[Prediction]) -> None:
    """Raise :class:`ConfigError` for a reduced rate that changes no prediction."""
    times = {(found.variant, found.case): found.times.epoch_s for found in predictions}
    faults = [
        f"sensitivity.{at}: the self-test with {what.label} changes no prediction: the calibration has no such rate, "
        "or no case uses it; remove the entry and call again (the calibration is kept)"
        for at, what in enumerate(suite.sensitivity)
        if all(times[what.label, case] == times[AS_CALIBRATED, case] for case in suite.cases())
    ]
    if faults:
        raise ConfigError(faults)


def _check_threads(topology: Topology, ranks: int, experiment: Experiment) -> None:
    """Raise an error unless a slowed rank has as many threads as the cores that its quota is a share of."""
    wanted = experiment.hardware.threads_per_rank
    full = max(1, max(1, usable_threads() // topology.hosts) // (ranks // topology.hosts))
    if topology.slow_last is not None and wanted not in ("auto", full):
        raise ConfigError(
            f"hardware.threads_per_rank: got {wanted}, expected {full}, or none: '{topology.name}' has a slow rank, "
            f"whose quota is a share of {full} of this machine's cores"
        )


def _found(experiment: Experiment) -> Experiment:
    """Return the experiment with the path of its graph; raise an error if graph or layers do not exist."""
    if experiment.graph.source.startswith(STATISTICS):
        raise ConfigError(
            f"graph.source: got '{experiment.graph.source}', expected a graph: nobody can train on a statistics file"
        )
    user_shape(experiment.model.kind)
    experiment = with_data_folder(experiment)
    check_source(experiment.graph.source)
    return experiment


def _each(cases: Sequence[Case], work: Callable[[Case], Of]) -> dict[Case, Of]:
    """Return the result of ``work`` for each case. Raises :class:`ConfigError` with every fault and its cases."""
    found: dict[Case, Of] = {}
    faults: dict[str, list[Case]] = {}
    for case in cases:
        try:
            found[case] = work(case)
        except (ConfigError, ProgramError, GraphError) as error:
            for problem in error.problems:
                faults.setdefault(problem, []).append(case)
    if faults:
        of = f"of {len(cases)} cases, the first"
        raise ConfigError([f"{fault} ({len(have)} {of} {have[0].name})" for fault, have in faults.items()])
    return found


def _is_calibrated(folder: TruthFolder) -> bool:
    """Return whether the calibration is complete, even if the process was killed before it renamed the profile."""
    there = (folder.suite, folder.reference, folder.calibrating)
    return folder.profile.is_file() or all(path.is_file() for path in there)


def _half_written(entry: Path, folder: TruthFolder) -> bool:
    """Return whether a file belongs to an unfinished calibration: complete files have their final names."""
    temporary = tuple(f".{path.name}." for path in (folder.suite, folder.calibrating, folder.reference))
    return entry.name in (folder.calibrating.name, folder.reference.name, LOCK) or entry.name.startswith(temporary)


def _calibrate(suite: Suite, folder: TruthFolder, backend: Backend) -> float:
    """Measure this machine, unless that is done, and return the seconds of the reference work at calibration. The suite
    is written after the calibration and before the profile gets its final name: a user who stops the calibration may
    still correct the suite, and a finished calibration belongs to the suite beside it."""
    if _is_calibrated(folder):
        if not folder.profile.is_file():
            folder.calibrating.rename(folder.profile)
        write_toml(folder.suite, suite.to_table())  # its sensitivity may be another
        backend.tell(f"continuing in {folder.root}: {how_far(folder)}")
        with outside_data(folder.reference, "JSON file", remedy="start over in a new folder", error=ConfigError):
            return float(json.loads(folder.reference.read_text())["canary_s"])
    for entry in folder.root.iterdir():
        if entry.name != LOCK and _half_written(entry, folder):
            entry.unlink()
    wanted = suite.calibration
    backend.tell(f"calibrating with {', '.join(map(str, wanted.ranks))} ranks")
    backend.calibrate(wanted.ranks, wanted.quick, wanted.passes, folder.calibrating)
    canary_s = backend.canary()
    write_atomically(folder.reference, json.dumps({"canary_s": canary_s}) + "\n")
    write_toml(folder.suite, suite.to_table())  # the draw is a function of the suite: it is fixed from here on
    folder.calibrating.rename(folder.profile)
    return canary_s


def _declare(topology: Topology, ranks: int, folder: TruthFolder, backend: Backend) -> None:
    """Write the testbed file of a topology and the profile that follows from it, unless they exist."""
    if topology.plain:
        return
    out, declared = folder.profile_of(topology, ranks), folder.testbed_of(topology, ranks)
    if out.is_file():
        check_declared(topology, ranks, folder)
        return
    out.parent.mkdir(exist_ok=True)
    write_toml(declared, _declaration(topology, ranks))
    backend.declare(declared, folder.profile, out)


def _declaration(topology: Topology, ranks: int) -> Table:
    table: Table = {"name": "validate", "hosts": topology.hosts, "ranks_per_host": ranks // topology.hosts}
    if topology.link is not None:
        table |= {"link": topology.model_dump(mode="json")["link"], "queue": QUEUE}
    if topology.slow_last is not None:
        table["slow"] = {str(ranks - 1): topology.slow_last}
    return table


def check_declared(topology: Topology, ranks: int, folder: TruthFolder) -> None:
    """Raise :class:`ConfigError` unless a topology's testbed file equals the one that would be written now."""
    path = folder.testbed_of(topology, ranks)
    stored, wanted = load_toml(path), _declaration(topology, ranks)
    changed = [
        f"{path}: {key}: got {stored.get(key, 'nothing')}, expected {wanted.get(key, 'nothing')}. The predictions are "
        "for another testbed than would run now; start over in a new folder"
        for key in sorted({*stored, *wanted})
        if stored.get(key) != wanted.get(key)
    ]
    if changed:
        raise ConfigError(changed)


def _prepare_cases(suite: Suite, folder: TruthFolder, backend: Backend) -> None:
    """Write the run directory, statistics and batch sizes of every case that has none yet."""
    folder.stats.mkdir(exist_ok=True)
    folder.work.mkdir(exist_ok=True)
    index: dict[str, Any] = load_toml(folder.stats_index) if folder.stats_index.is_file() else {}
    cases = suite.cases()
    for number, case in enumerate(cases, start=1):
        prepared, batches = folder.prepared(case), folder.batches_of(case)
        if case.name in index and prepared.is_dir():
            continue
        backend.tell(f"preparing {number}/{len(cases)}: {case.name}")
        profile = folder.profile_of(suite.topology(case), case.ranks)
        experiment = case_experiment(suite.extends, suite.settings(case), str(profile.resolve()))
        counted = backend.prepare(with_data_folder(experiment), prepared)
        seal_folder(prepared, prepared.rglob("*"))
        name = counted.stats.digest[:16]
        if not (folder.stats / f"{name}.toml").is_file():
            save_stats(counted.stats, folder.stats / f"{name}.toml")
        if counted.sizes is not None:
            batches.parent.mkdir(exist_ok=True)
            save_sizes(counted.sizes, counted.hot_rows, batches)
        index[case.name] = name
        write_toml(folder.stats_index, index)


def predict_all(suite: Suite, folder: TruthFolder, backend: Backend) -> list[Prediction]:
    """Predict every case from the statistics of its partition, as calibrated and with each reduced rate."""
    cases = suite.cases()
    index = load_toml(folder.stats_index)
    profiles: dict[Path, Profile] = {}
    found = []
    for number, case in enumerate(cases, start=1):
        topology = suite.topology(case)
        path = folder.profile_of(topology, case.ranks)
        if path not in profiles:
            profiles[path] = load_profile(path)
        profile_digest = file_digest(path)
        if not isinstance(index.get(case.name), str):
            raise ConfigError(f"{folder.stats_index}: no statistics are named for case {case.name}; {RESTART}")
        stats = folder.stats / f"{index[case.name]}.toml"
        experiment = case_experiment(suite.extends, suite.settings(case))
        graph = type(experiment.graph)(source=f"stats:{stats.resolve()}")
        experiment = experiment.model_copy(update={"graph": graph})
        counted = folder.batches_of(case) if experiment.batching.mini_batches else None
        backend.tell(f"predicting {number}/{len(cases)}: {case.name}")
        speeds = [1.0] * case.ranks
        speeds[-1] = topology.slow_last or 1.0
        variants: Mapping[str, Profile] = {AS_CALIBRATED: profiles[path]} | {
            what.label: slow_down(profiles[path], what) for what in suite.sensitivity
        }
        for variant, profile in variants.items():
            predicted = backend.predict(experiment, profile, counted)
            decided = experiment.freshness.scheduled(predicted.program, experiment.train.epochs)
            needs = demand(predicted.program, predicted.machine, decided)
            low, high = predicted.result.epoch_s_interval or (None, None)
            found.append(
                Prediction(
                    case=case,
                    variant=variant,
                    times=Times.of(predicted.result),
                    low_s=low,
                    high_s=high,
                    extrapolated=len(predicted.result.extrapolated),
                    roofline_s=roofline_s(needs),
                    features=tuple(needs.features(speeds, topology.link, predicted.program.hosts)),
                    program_digest=predicted.result.program_digest,
                    profile_digest=profile_digest,
                )
            )
    return found
