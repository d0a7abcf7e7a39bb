"""What an earlier call has left in a validation's folder: to go on with, or to leave alone."""

import json
from pathlib import Path

from simgnn.errors import ConfigError
from simgnn.locks import LOCK
from simgnn.outputs import check_output_folder
from simgnn.record.result import write_text
from simgnn.study.suite import Suite, parse_suite
from simgnn.study.truth import TruthFolder
from simgnn.tomlfile import leaves, load_toml


def check_folder(suite: Suite, root: Path) -> None:
    """Raise :class:`ConfigError` unless ``root`` is new, empty but for what was cut short before a calibration was
    through, or holds a validation of this suite: before anything is frozen, one whose ``sensitivity`` is another may be
    gone on with, since nothing rests on it so far."""
    check_output_folder(root, "--out")
    folder = TruthFolder(root)
    if folder.suite.is_file():
        before = parse_suite(load_toml(folder.suite), str(folder.suite))
        if not folder.frozen.is_file():
            before = before.model_copy(update={"sensitivity": suite.sensitivity})
        if before != suite:
            raise ConfigError(
                f"--out: {root} holds a validation of another suite ('{before.name}', {how_far(folder)}; "
                f"{', '.join(differing(before, suite))} of it and of '{suite.name}' differ); expected a folder of its "
                f"own: name another, or go on with what lies there: simgnn validate {folder.suite} --out {root}"
            )
    elif root.is_dir() and not all(_cut_short(entry, folder) for entry in root.iterdir()):
        raise ConfigError(f"--out: got {root}, which is not empty and no validation; name another")


def how_far(folder: TruthFolder) -> str:
    """How far the validation of a folder has come."""
    if not is_calibrated(folder):
        return "not calibrated"
    if not folder.frozen.is_file():
        return "calibrated, not yet predicted"
    return "predicted, runs begun" if folder.runs.is_file() else "predicted, nothing run"


def is_calibrated(folder: TruthFolder) -> bool:
    """Whether its calibration is through, also where a killed process could not give it its name any more: the suite is
    written after all that it stands for."""
    there = (folder.suite, folder.reference, folder.calibrating)
    return folder.profile.is_file() or all(path.is_file() for path in there)


def differing(one: Suite, other: Suite) -> list[str]:
    """The keys in which two suites differ."""
    there, here = dict(leaves(one.to_table())), dict(leaves(other.to_table()))
    return sorted(".".join(key) for key in {*there, *here} if there.get(key) != here.get(key))


def forget_cut_short(folder: TruthFolder) -> None:
    """Remove what a killed process wrote under names that say that it was not through."""
    for entry in folder.root.iterdir():
        if entry.name != LOCK and _cut_short(entry, folder):
            entry.unlink()


def _cut_short(entry: Path, folder: TruthFolder) -> bool:
    """Whether a file of a folder was being written: files are whole as soon as they have their name."""
    half = tuple(f".{path.name}." for path in (folder.suite, folder.calibrating))
    beside = (folder.calibrating.name, folder.reference.name, LOCK)
    return entry.name in beside or entry.name.startswith((*half, f"{folder.reference.name}.partial-"))


def write_reference(canary_s: float, folder: TruthFolder) -> None:
    """Keep the reference work that was timed beside the calibration: drift is told against it, whenever runs begin."""
    write_text(folder.reference, json.dumps({"canary_s": canary_s}) + "\n")


def read_reference(folder: TruthFolder) -> float | None:
    """Seconds of the reference work beside the calibration; None in a folder of an earlier version, which kept none."""
    if not folder.reference.is_file():
        return None
    try:
        return float(json.loads(folder.reference.read_text())["canary_s"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{folder.reference} cannot be read ({error}); start over in a new folder") from error
