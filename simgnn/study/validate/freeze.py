"""What comes before the first run, and is then frozen: the draw, the calibration, the partitions, the predictions."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError

from simgnn.errors import ConfigError
from simgnn.experiment.schema import Experiment
from simgnn.hardware.profile.profile import Profile, load_profile
from simgnn.partition.statistics.file import save_stats
from simgnn.program.storage import program_digest
from simgnn.record.result import versions
from simgnn.sampling.batches.sizes import save_sizes
from simgnn.schema_faults import sentences
from simgnn.seal import check_digests, check_seal, digests_of, file_digest, seal_folder
from simgnn.study.backend import Backend, Predicted
from simgnn.study.cases import Case, case_experiment, with_data_folder
from simgnn.study.profile_variants import affects, slow_down
from simgnn.study.validate.baselines import Demand, demand, roofline_s
from simgnn.study.validate.earlier_call import (
    check_folder,
    how_far,
    is_calibrated,
    read_reference,
    remove_half_written,
    write_reference,
)
from simgnn.study.validate.ground_truth import (
    AS_CALIBRATED,
    PREDICTIONS_SCHEMA,
    Prediction,
    Times,
    TruthFolder,
    write_rows,
)
from simgnn.study.validate.runnable import check_noticeable, check_runnable
from simgnn.study.validate.suite import Slowed, Suite, Topology
from simgnn.tomlfile import Table, leaves, load_toml, write_atomically, write_toml

START_OVER = "so the runs no longer test what was predicted; start over in a new folder"
QUEUE = "fair"
"""The queue in front of the links of a suite's testbeds, stated in their files because a default may change."""


class Frozen(BaseModel):
    """``frozen.json``: SHA-256 ``digests`` of all that predictions are made of, by file name, the seconds ``canary_s``
    of the reference work beside the calibration, and the ``versions`` of libraries."""

    format: Literal[2, 3, 4] = 4
    frozen: str
    canary_s: Annotated[float, Field(gt=0)]
    versions: dict[str, str]
    digests: dict[str, str]


def prepare(suite: Suite, folder: TruthFolder, backend: Backend) -> None:
    """Draw, calibrate, partition and predict. Steps that an interrupted call finished are not repeated.

    Raises :class:`ConfigError` when the folder holds another suite, or a frozen file has changed.
    """
    check_folder(suite, folder.root)
    if folder.frozen.is_file():
        check_frozen(folder)
        return
    check_runnable(suite, backend)
    folder.root.mkdir(parents=True, exist_ok=True)
    canary_s = _calibrate(suite, folder, backend)
    for case in suite.cases():
        _declare(suite.topology(case), case.ranks, folder, backend)
    _prepare_cases(suite, folder, backend)
    predictions = predict_all(suite, folder, backend, suite.sensitivity)
    check_noticeable(suite, predictions)
    write_rows(predictions, PREDICTIONS_SCHEMA, folder.predictions)
    paths = [folder.suite, folder.predictions, *folder.profiles(), *folder.statistics()]
    frozen = Frozen(
        frozen=datetime.now(UTC).isoformat(timespec="seconds"),
        canary_s=canary_s,
        versions=versions(),
        digests=digests_of(folder.root, paths),
    )
    write_atomically(folder.frozen, frozen.model_dump_json(indent=2) + "\n")
    folder.reference.unlink(missing_ok=True)


def _calibrate(suite: Suite, folder: TruthFolder, backend: Backend) -> float:
    """Measure this machine, unless that is done, and return the seconds of the reference work beside it.

    The suite is written after the calibration and before the profile gets its final name. So a user who stops the
    calibration may still correct the suite, and a finished calibration always belongs to the suite beside it.
    """
    if is_calibrated(folder):
        if not folder.profile.is_file():
            folder.calibrating.rename(folder.profile)
        write_toml(folder.suite, suite.to_table())  # its sensitivity may be another
        backend.tell(f"continuing in {folder.root}: {how_far(folder)}")
        canary_s = read_reference(folder)
        if canary_s is None:
            backend.tell("the reference work was not timed beside that calibration; drift is reported from now on")
            canary_s = backend.canary()
        return canary_s
    remove_half_written(folder)
    wanted = suite.calibration
    backend.tell(f"calibrating with {', '.join(map(str, wanted.ranks))} ranks")
    backend.calibrate(wanted.ranks, wanted.quick, wanted.passes, folder.calibrating)
    canary_s = backend.canary()
    write_reference(canary_s, folder)
    write_toml(folder.suite, suite.to_table())  # the draw is a function of the suite: it is fixed from here on
    folder.calibrating.rename(folder.profile)
    return canary_s


def check_frozen(folder: TruthFolder) -> Frozen:
    """The freeze of a folder; :class:`ConfigError` when a frozen file is not what it was."""
    try:
        frozen = Frozen.model_validate_json(folder.frozen.read_text())
    except ValidationError as error:
        raise ConfigError([f"{folder.frozen}: {fault}" for fault in sentences(Frozen, error)]) from None
    check_digests(folder.root, frozen.digests, START_OVER)
    return frozen


def check_prepared(case: Case, folder: TruthFolder) -> None:
    """Raise :class:`ConfigError` unless what a run of ``case`` would start from is what was prepared for it."""
    prepared = folder.prepared(case)
    if not prepared.is_dir():
        raise ConfigError(
            f"{prepared}: no such folder, so {case.name} cannot run. A folder that --keep wrote is for --rescore only; "
            "start over in a new folder"
        )
    check_seal(prepared, START_OVER)


def predict_all(suite: Suite, folder: TruthFolder, backend: Backend, slowed: Sequence[Slowed] = ()) -> list[Prediction]:
    """Predictions of every case from the statistics of its partition: as calibrated, and with each rate reduced."""
    cases = suite.cases()
    index = load_toml(folder.stats_index)
    profiles: dict[Path, Profile] = {}
    found = []
    for number, case in enumerate(cases):
        topology = suite.topology(case)
        path = folder.profile_of(topology.name, case.ranks, topology.plain)
        if path not in profiles:
            profiles[path] = load_profile(path)
        profile_digest = file_digest(path)
        experiment = _from_stats(suite, case, folder.stats / f"{index[case.name]}.toml")
        counted = folder.batches_of(case) if experiment.batching.mini_batches else None
        backend.tell(f"predicting {number + 1}/{len(cases)}: {case.name}")
        variants: Mapping[str, Profile] = {AS_CALIBRATED: profiles[path]} | {
            what.label: slow_down(profiles[path], what) if affects(profiles[path], what) else profiles[path]
            for what in slowed
        }
        for variant, profile in variants.items():
            predicted = backend.predict(experiment, profile, counted)
            decided = experiment.freshness.scheduled(predicted.program, experiment.train.epochs)
            needs = demand(predicted.program, predicted.machine, decided)
            found.append(_prediction(case, topology, variant, profile_digest, predicted, needs))
    return found


def _prediction(
    case: Case, topology: Topology, variant: str, profile_digest: str, predicted: Predicted, needs: Demand
) -> Prediction:
    speeds = [1.0] * case.ranks
    speeds[-1] = topology.slow_last or 1.0
    low, high = predicted.result.epoch_s_interval or (None, None)
    return Prediction(
        case=case,
        variant=variant,
        times=Times.of(predicted.result),
        low_s=low,
        high_s=high,
        extrapolated=len(predicted.result.extrapolated),
        roofline_s=roofline_s(needs),
        features=tuple(needs.features(speeds, topology.link, predicted.program.hosts)),
        program_digest=program_digest(predicted.program),
        profile_digest=profile_digest,
    )


def experiment_of(suite: Suite, case: Case, folder: TruthFolder) -> Experiment:
    """The experiment that a case runs, on the profile of its topology."""
    topology = suite.topology(case)
    profile = folder.profile_of(topology.name, case.ranks, topology.plain)
    return with_data_folder(case_experiment(suite.extends, suite.settings(case), str(profile.resolve())))


def testbed_file(folder: TruthFolder, topology: Topology, ranks: int) -> Path:
    """Path of a testbed's declaration; no profile of a topology can have this name."""
    return folder.root / "profiles" / f"{topology.name}-P{ranks}.testbed.toml"


def declaration(topology: Topology, ranks: int) -> Table:
    """The table of a topology's testbed file."""
    table: Table = {"name": "validate", "hosts": topology.hosts, "ranks_per_host": ranks // topology.hosts}
    if topology.link is not None:
        table |= {"link": topology.model_dump(mode="json")["link"], "queue": QUEUE}
    if topology.slow_last is not None:
        table["slow"] = {str(ranks - 1): topology.slow_last}
    return table


def check_declared(topology: Topology, ranks: int, folder: TruthFolder) -> None:
    """Raise :class:`ConfigError` unless a topology's testbed is declared as it would be declared now, so that profiles
    and runs of one validation use the same testbed."""
    path = testbed_file(folder, topology, ranks)
    if not path.is_file():
        raise ConfigError(
            f"{path}: no such file; it was removed, or an earlier version named it otherwise. Folders of earlier "
            "versions can be scored again but not continued; start over in a new folder"
        )
    there = dict(leaves(load_toml(path)))
    here = dict(leaves(declaration(topology, ranks)))
    changed = [
        f"{path}: {'.'.join(key)}: got {there.get(key, 'nothing')}, expected {here.get(key, 'nothing')}. The "
        "predictions are for another testbed than would run now; start over in a new folder"
        for key in sorted({*there, *here})
        if there.get(key) != here.get(key)
    ]
    if changed:
        raise ConfigError(changed)


def _from_stats(suite: Suite, case: Case, stats: Path) -> Experiment:
    experiment = case_experiment(suite.extends, suite.settings(case))
    graph = type(experiment.graph)(source=f"stats:{stats.resolve()}")
    return experiment.model_copy(update={"graph": graph})


def _declare(topology: Topology, ranks: int, folder: TruthFolder, backend: Backend) -> None:
    out = folder.profile_of(topology.name, ranks, topology.plain)
    if topology.plain:
        return
    if out.is_file():
        check_declared(topology, ranks, folder)
        return
    out.parent.mkdir(exist_ok=True)
    declared = testbed_file(folder, topology, ranks)
    write_toml(declared, declaration(topology, ranks))
    backend.declare(declared, folder.profile, out)


def _prepare_cases(suite: Suite, folder: TruthFolder, backend: Backend) -> None:
    folder.stats.mkdir(exist_ok=True)
    folder.work.mkdir(exist_ok=True)
    index: dict[str, Any] = load_toml(folder.stats_index) if folder.stats_index.is_file() else {}
    cases = suite.cases()
    for number, case in enumerate(cases):
        if case.name in index and folder.prepared(case).is_dir():
            continue
        backend.tell(f"preparing {number + 1}/{len(cases)}: {case.name}")
        counted = backend.prepare(experiment_of(suite, case, folder), folder.prepared(case))
        seal_folder(folder.prepared(case), folder.prepared(case).rglob("*"))
        name = counted.stats.digest[:16]
        if not (folder.stats / f"{name}.toml").is_file():
            save_stats(counted.stats, folder.stats / f"{name}.toml")
        if counted.sizes is not None:
            folder.batches_of(case).parent.mkdir(exist_ok=True)
            save_sizes(counted.sizes, counted.hot_rows, folder.batches_of(case))
        index[case.name] = name
        write_toml(folder.stats_index, index)
