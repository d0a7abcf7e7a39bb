"""Validates a suite: predicts and freezes, then runs every case (interleaved, resumable), and scores."""

import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from simgnn.errors import BackendError, ConfigError
from simgnn.locks import locked_folder
from simgnn.outputs import check_output_folder
from simgnn.record.result import versions
from simgnn.study.backend import Backend
from simgnn.study.cases import Case
from simgnn.study.validate import freeze
from simgnn.study.validate.build_scoreboard import build_scoreboard
from simgnn.study.validate.frozen import Frozen, check_continues, check_frozen, check_prepared, origin_of
from simgnn.study.validate.ground_truth import (
    BATCHES,
    Measured,
    Times,
    TruthFolder,
    read_predictions,
    read_runs,
    write_runs,
)
from simgnn.study.validate.scoreboard import Scoreboard
from simgnn.study.validate.suite import Suite, Topology
from simgnn.study.validate.suite_file import load_bound, parse_suite
from simgnn.tomlfile import load_toml

KEPT = {"suite.toml", "frozen.json", "profile.toml", "predictions.parquet", "runs.parquet", "runs.json", "profiles",
        "stats", BATCHES}  # fmt: skip
"""Files and folders that ``--keep`` copies."""


def validate(suite: Suite, root: Path, backend: Backend) -> Scoreboard:
    """Predict every case, run it ``suite.repeats`` times, and score. An interrupted validation continues.

    Calibration and predictions come first and are frozen. Raises :class:`ConfigError` for a folder that holds something
    else or has changed, :class:`BackendError` for a run that fails or trains another program than the predicted one.
    """
    freeze.check_folder(suite, root)
    with locked_folder(root, "--out"):
        folder = TruthFolder(root)
        freeze.prepare(suite, folder, backend)
        frozen, predictions = check_frozen(folder), read_predictions(folder.predictions)
        digests = {found.case: found.program_digest for found in predictions}
        runs, used = _run_all(suite, folder, digests, frozen, backend)
        check_frozen(folder)
        notes = _other_versions(frozen.versions, used)
        return build_scoreboard(suite, predictions, runs, frozen.canary_s, origin_of(frozen, folder), notes)


def _run_all(
    suite: Suite, folder: TruthFolder, digests: Mapping[Case, str], frozen: Frozen, backend: Backend
) -> tuple[list[Measured], list[dict[str, str]]]:
    """Run all repeats that are missing. Returns all runs, earlier ones included, and the library versions that they
    used. ``digests``: of the predicted programs."""
    cases, now = suite.cases(), versions()
    runs, used = read_runs(folder)
    done = {(run.case, run.repeat) for run in runs}
    for case in cases:
        if any((case, repeat) not in done for repeat in range(suite.repeats)):
            check_prepared(case, folder)
            if not suite.topology(case).plain:
                freeze.check_declared(suite.topology(case), case.ranks, folder)
    total = len(cases) * suite.repeats
    if len(runs) < total:
        check_continues(frozen, folder)
        for text in _other_versions(frozen.versions, [now]):
            backend.tell(text)
        used += [now] if now not in used else []
    began, before = time.monotonic(), len(runs)
    for repeat in range(suite.repeats):
        for topology, ranks, members in _rounds(suite, repeat):
            waiting = [case for case in members if (case, repeat) not in done]
            if not waiting:
                continue
            testbed = None if topology.plain else folder.testbed_of(topology, ranks)
            if testbed is not None:
                backend.up(testbed)  # where this fails there is nothing to take down: somebody else may use it
            try:
                for case in waiting:
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
    return runs, used


def rescore(root: Path, backend: Backend) -> Scoreboard:
    """Score the current simulator against stored runs, with the stored calibration; runs nothing. Raises
    :class:`ConfigError` if the folder holds no finished validation."""
    folder = TruthFolder(root)
    suite = stored_suite(folder)
    frozen, bound = check_frozen(folder), load_bound(folder.bound)
    runs, used = read_runs(folder)
    missing = {case.name for case in suite.cases()} - {run.case.name for run in runs}
    if missing:
        raise ConfigError(f"{root}: {len(missing)} of {len(suite.cases())} cases have no run yet; run them first")
    predictions = freeze.predict_all(suite, folder, backend)
    notes = _other_versions(frozen.versions, used)
    ran = {run.case: run.program_digest for run in runs}
    changed = {found.case for found in predictions if found.program_digest != ran[found.case]}
    if changed:
        notes.append(f"{len(changed)} of {len(ran)} programs changed since they were run: measure again to be exact")
    return build_scoreboard(suite, predictions, runs, frozen.canary_s, origin_of(frozen, folder), notes, bound)


def _other_versions(frozen: Mapping[str, str], others: Sequence[Mapping[str, str]]) -> list[str]:
    """Describe how ``others`` differ from the library versions of frozen predictions; empty if none differs."""
    differ = {
        f"{name} {other.get(name, 'absent')} (frozen: {frozen.get(name, 'absent')})"
        for other in others
        for name in {*frozen, *other}
        if other.get(name) != frozen.get(name)
    }
    told = "runs were made with other versions than calibration and predictions"
    return [f"{told}: {', '.join(sorted(differ))}: part of the errors may be theirs"] if differ else []


def stored_suite(folder: TruthFolder) -> Suite:
    """Load the suite of a validation's folder. Raises :class:`ConfigError` unless predictions are frozen."""
    if not folder.suite.is_file() or not folder.frozen.is_file():
        there = f" ({freeze.how_far(folder)}: continue it without --rescore)" if folder.suite.is_file() else ""
        raise ConfigError(f"{folder.root}: holds no validation with frozen predictions{there}; name another folder")
    return parse_suite(load_toml(folder.suite), str(folder.suite))


def check_stored(root: Path, suite: Suite) -> None:
    """Raise :class:`ConfigError` unless ``root`` holds a validation of ``suite`` as it is now."""
    folder = TruthFolder(root)
    stored = stored_suite(folder)
    check_frozen(folder)  # before the suites are compared: the stored one may be damaged
    changed = freeze.differing(stored.to_table(), suite.to_table())
    if changed:
        raise ConfigError(
            f"--out: {root} is a validation of '{stored.name}', which differs from the suite '{suite.name}' in "
            f"{', '.join(changed)}. The frozen suite is scored: name {folder.suite} instead, or another folder"
        )


def check_keep(out: Path) -> None:
    """Raise :class:`ConfigError` unless ``out`` is a new folder that ground truth can be copied to."""
    check_output_folder(out, "--keep")
    if out.exists():
        raise ConfigError(f"--keep: got {out}, which exists already; name a new folder")


def keep(root: Path, out: Path) -> None:
    """Copy the ground truth of a finished validation, without run directories, to the new folder ``out``."""
    folder = TruthFolder(root)
    stored_suite(folder)
    check_frozen(folder)
    check_keep(out)
    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for path in (root / name for name in KEPT):
        if path.is_dir():
            shutil.copytree(path, partial / path.name, ignore=shutil.ignore_patterns(".*"))
        elif path.is_file():
            shutil.copy2(path, partial)
    partial.rename(out)


def _rounds(suite: Suite, repeat: int) -> list[tuple[Topology, int, list[Case]]]:
    """Return the order of one repeat: every case once, newly shuffled, the cases of one testbed together."""
    rng = np.random.default_rng([repeat, 0 if suite.draw is None else suite.draw.seed])
    cases = suite.cases()
    groups: dict[tuple[str, int], list[Case]] = {}
    for at in rng.permutation(len(cases)):
        case = cases[at]
        ranks = 0 if suite.topology(case).plain else case.ranks  # this machine as it is serves any number of ranks
        groups.setdefault((case.topology, ranks), []).append(case)
    return [(suite.topology(members[0]), ranks, members) for (_, ranks), members in groups.items()]


def _run(case: Case, repeat: int, folder: TruthFolder, testbed: Path | None, digest: str, backend: Backend) -> Measured:
    """Run a case once in a copy of the prepared directory; the copy of the first repeat is kept for inspection."""
    directory = folder.run_of(case, repeat)
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(folder.prepared(case), directory)
    canary_s = backend.canary()
    result = backend.run(directory, testbed)
    if result.program_digest != digest:
        raise BackendError(
            f"validate: {case.name} trained program {result.program_digest[:12]}, not the predicted {digest[:12]}; "
            "start over in a new folder"
        )
    times = Times.of(result)
    if repeat > 0:
        shutil.rmtree(directory)
    return Measured(case=case, repeat=repeat, times=times, program_digest=result.program_digest, canary_s=canary_s)
