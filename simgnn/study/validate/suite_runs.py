"""Validation of a suite: predict and freeze, then run every case, interleaved and resumable, and score."""

import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from simgnn.errors import BackendError, ConfigError
from simgnn.locks import locked_folder
from simgnn.outputs import check_output_folder, make_parent
from simgnn.record.result import versions
from simgnn.study.backend import Backend
from simgnn.study.cases import Case
from simgnn.study.validate.earlier_call import check_folder, differing, how_far
from simgnn.study.validate.freeze import (
    check_declared,
    check_frozen,
    check_prepared,
    predict_all,
    prepare,
    testbed_file,
)
from simgnn.study.validate.ground_truth import (
    BATCHES,
    Measured,
    Prediction,
    Times,
    TruthFolder,
    read_predictions,
    read_runs,
    write_runs,
)
from simgnn.study.validate.results import Scoreboard
from simgnn.study.validate.scoreboard import build_scoreboard
from simgnn.study.validate.shipped_truth import load_bound
from simgnn.study.validate.suite import Suite, Topology
from simgnn.study.validate.suite_file import parse_suite
from simgnn.tomlfile import load_toml

KEPT = ("suite.toml", "frozen.json", "profile.toml", "predictions.parquet", "runs.parquet", "runs.json")


def validate(suite: Suite, root: Path, backend: Backend) -> Scoreboard:
    """Predict every case, run it ``suite.repeats`` times, and score. Continues where an earlier call was interrupted.

    Calibration and predictions come first and are frozen; nothing measured in a run flows back. Raises
    :class:`ConfigError` for a folder that holds something else or has changed, :class:`BackendError` for a run that
    fails or trains another program than the predicted one.
    """
    check_folder(suite, root)
    with locked_folder(root, "--out"):
        return _validate(suite, TruthFolder(root), backend)


def _validate(suite: Suite, folder: TruthFolder, backend: Backend) -> Scoreboard:
    prepare(suite, folder, backend)
    frozen, predictions = check_frozen(folder), read_predictions(folder.predictions)
    digests = {found.case: found.program_digest for found in predictions}
    cases, now = suite.cases(), versions()
    runs, used = read_runs(folder)
    done = {(run.case, run.repeat) for run in runs}
    for case in cases:
        if all((case, repeat) in done for repeat in range(suite.repeats)):
            continue
        check_prepared(case, folder)
        topology = suite.topology(case)
        if not topology.plain:
            check_declared(topology, case.ranks, folder)
    total = len(cases) * suite.repeats
    if len(runs) < total:
        for told in other_versions(frozen.versions, [now]):
            backend.tell(told)
        used += [now] if now not in used else []
    began, before = time.monotonic(), len(runs)
    for repeat in range(suite.repeats):
        for topology, ranks, members in _rounds(suite, repeat):
            left = [case for case in members if (case, repeat) not in done]
            if not left:
                continue
            testbed = None if topology.plain else testbed_file(folder, topology, ranks)
            if testbed is not None:
                backend.up(testbed)  # where this fails there is nothing to take down: somebody else may use it
            try:
                for case in left:
                    check_prepared(case, folder)  # hours may have passed
                    runs.append(_run(case, repeat, folder, testbed, digests[case], backend))
                    write_runs(runs, used, folder.runs)
                    each = (time.monotonic() - began) / (len(runs) - before)
                    backend.tell(
                        f"run {len(runs)}/{total}, {each * (total - len(runs)):.0f} s left: repeat {repeat + 1}: "
                        f"{case.name}: measured {runs[-1].times.epoch_s:.4g} s an epoch"
                    )
            finally:
                if testbed is not None:
                    backend.down(testbed)
    check_frozen(folder)
    return build_scoreboard(suite, predictions, runs, frozen.canary_s, other_versions(frozen.versions, used))


def rescore(root: Path, backend: Backend) -> Scoreboard:
    """Score today's simulator against runs that were measured before: no graph, no run, the same calibration.

    Raises :class:`ConfigError` when the folder is no finished validation.
    """
    folder = TruthFolder(root)
    suite = stored_suite(folder)
    frozen, bound = check_frozen(folder), load_bound(folder.bound)
    runs, used = read_runs(folder)
    missing = {case.name for case in suite.cases()} - {run.case.name for run in runs}
    if missing:
        raise ConfigError(f"{root}: {len(missing)} of {len(suite.cases())} cases have no run yet; run them first")
    predictions = predict_all(suite, folder, backend, suite.sensitivity)
    notes = (*other_versions(frozen.versions, used), *_changed_programs(predictions, runs))
    return build_scoreboard(suite, predictions, runs, frozen.canary_s, notes, bound)


def other_versions(frozen: Mapping[str, str], others: Sequence[Mapping[str, str]]) -> tuple[str, ...]:
    """A sentence if some of ``others`` differ from the versions that predictions were frozen with."""
    differ = {
        f"{name} {other.get(name, 'absent')} (frozen: {frozen.get(name, 'absent')})"
        for other in others
        for name in {*frozen, *other}
        if other.get(name) != frozen.get(name)
    }
    if not differ:
        return ()
    return (
        f"runs were made with other versions than calibration and predictions: {', '.join(sorted(differ))}: part of "
        "the errors may be theirs",
    )


def stored_suite(folder: TruthFolder) -> Suite:
    """The suite that a validation's folder is of."""
    if not folder.suite.is_file() or not folder.frozen.is_file():
        there = f" ({how_far(folder)}: continue it without --rescore)" if folder.suite.is_file() else ""
        raise ConfigError(f"{folder.root}: holds no validation with frozen predictions{there}; name the folder of one")
    return parse_suite(load_toml(folder.suite), str(folder.suite))


def check_stored(root: Path, suite: Suite) -> None:
    """Raise :class:`ConfigError` unless ``root`` is the folder of a validation of this suite, as it is now."""
    folder = TruthFolder(root)
    stored = stored_suite(folder)
    check_frozen(folder)  # before the suites are compared: the stored one may be damaged
    if stored.name != suite.name:
        raise ConfigError(
            f"--out: {root} is a validation of '{stored.name}', not of '{suite.name}'; name that suite, or its folder"
        )
    changed = differing(stored, suite)
    if changed:
        raise ConfigError(
            f"SUITE: '{suite.name}' has changed since {root} was frozen: {', '.join(changed)}. The frozen suite is "
            f"scored; name {folder.suite} instead"
        )


def check_keep(out: Path) -> None:
    """Raise :class:`ConfigError` unless ground truth can be copied to ``out``: a folder that is not there yet."""
    check_output_folder(out, "--keep")
    if out.exists():
        raise ConfigError(f"--keep: got {out}, which exists already; name a new folder")


def keep(root: Path, out: Path) -> None:
    """Copy the ground truth of a finished validation, without run directories. ``out`` must be new."""
    folder = TruthFolder(root)
    stored_suite(folder)
    check_frozen(folder)
    check_keep(out)
    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    make_parent(partial)
    shutil.copytree(root, partial, ignore=lambda at, names: [n for n in names if not _is_kept(Path(at), n, root)])
    partial.rename(out)


def _is_kept(at: Path, name: str, root: Path) -> bool:
    if at.resolve() == root.resolve():
        return name in (*KEPT, "profiles", "stats", BATCHES)
    return not name.startswith(".")


def _rounds(suite: Suite, repeat: int) -> list[tuple[Topology, int, list[Case]]]:
    """One repeat: every case once, in an order drawn anew, those of one testbed together."""
    rng = np.random.default_rng([repeat, 0 if suite.draw is None else suite.draw.seed])
    cases = suite.cases()
    groups: dict[tuple[str, int], list[Case]] = {}
    for at in rng.permutation(len(cases)):
        case = cases[at]
        ranks = 0 if suite.topology(case).plain else case.ranks  # this machine as it is serves any number of ranks
        groups.setdefault((case.topology, ranks), []).append(case)
    return [(suite.topology(members[0]), ranks, members) for (_, ranks), members in groups.items()]


def _run(case: Case, repeat: int, folder: TruthFolder, testbed: Path | None, digest: str, backend: Backend) -> Measured:
    """One run in a copy of the prepared directory; the copy of the first repeat stays, to be looked into."""
    directory = folder.run_of(case, repeat)
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(folder.prepared(case), directory)
    canary_s = backend.canary()
    result = backend.run(directory, testbed)
    if result.program_digest != digest:
        raise BackendError(
            f"validate: {case.name} trained program {result.program_digest[:12]}, predicted was {digest[:12]}: "
            "start over in a new folder"
        )
    times = Times.of(result)
    if repeat > 0:
        shutil.rmtree(directory)
    return Measured(case=case, repeat=repeat, times=times, program_digest=result.program_digest, canary_s=canary_s)


def _changed_programs(predictions: Sequence[Prediction], runs: Sequence[Measured]) -> tuple[str, ...]:
    ran = {run.case: run.program_digest for run in runs}
    changed = {found.case for found in predictions if found.program_digest != ran[found.case]}
    if not changed:
        return ()
    return (f"{len(changed)} of {len(ran)} programs changed since they were run: measure again to be exact",)
