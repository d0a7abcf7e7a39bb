"""How far an earlier call came in a validation's folder, and whether this call may continue it."""

import json
from pathlib import Path

from simgnn.errors import ConfigError
from simgnn.locks import LOCK
from simgnn.outputs import check_output_folder
from simgnn.study.validate.ground_truth import TruthFolder
from simgnn.study.validate.suite import Suite
from simgnn.study.validate.suite_file import parse_suite
from simgnn.tomlfile import leaves, load_toml, write_atomically


def check_folder(suite: Suite, root: Path) -> None:
    """Raise :class:`ConfigError` unless ``root`` is new, holds only half-written files, or a validation of this suite.

    Before anything is frozen, a validation whose ``sensitivity`` differs may be continued: no file depends on it yet.
    """
    check_output_folder(root, "--out")
    folder = TruthFolder(root)
    if folder.suite.is_file():
        before = parse_suite(load_toml(folder.suite), str(folder.suite))
        if not folder.frozen.is_file():
            before = before.model_copy(update={"sensitivity": suite.sensitivity})
        if before != suite:
            raise ConfigError(
                f"--out: {root} holds a validation of another suite ('{before.name}', {how_far(folder)}; "
                f"its {', '.join(differing(before, suite))} differ from those of '{suite.name}'); name another folder, "
                f"or continue the validation there: simgnn validate {folder.suite} --out {root}"
            )
    elif root.is_dir() and not all(_half_written(entry, folder) for entry in root.iterdir()):
        raise ConfigError(f"--out: got {root}, which is not empty and no validation; name another")


def how_far(folder: TruthFolder) -> str:
    """How far the validation of a folder has come."""
    if not is_calibrated(folder):
        return "not calibrated"
    if not folder.frozen.is_file():
        return "calibrated, not yet predicted"
    return "predicted, runs begun" if folder.runs.is_file() else "predicted, nothing run"


def is_calibrated(folder: TruthFolder) -> bool:
    """Whether the calibration is complete, even if the process was killed before it renamed the profile.

    The suite is written last, so its file shows that the reference work and the profile are there.
    """
    there = (folder.suite, folder.reference, folder.calibrating)
    return folder.profile.is_file() or all(path.is_file() for path in there)


def differing(one: Suite, other: Suite) -> list[str]:
    """The keys in which two suites differ."""
    there, here = dict(leaves(one.to_table())), dict(leaves(other.to_table()))
    return sorted(".".join(key) for key in {*there, *here} if there.get(key) != here.get(key))


def remove_half_written(folder: TruthFolder) -> None:
    """Remove the files that a killed process had not finished."""
    for entry in folder.root.iterdir():
        if entry.name != LOCK and _half_written(entry, folder):
            entry.unlink()


def _half_written(entry: Path, folder: TruthFolder) -> bool:
    """Whether a file belongs to an unfinished calibration: files get their final names when they are complete."""
    temporary = tuple(f".{path.name}." for path in (folder.suite, folder.calibrating, folder.reference))
    return entry.name in (folder.calibrating.name, folder.reference.name, LOCK) or entry.name.startswith(temporary)


def write_reference(canary_s: float, folder: TruthFolder) -> None:
    """Store the seconds of the reference work beside the calibration; the drift of later runs is relative to it."""
    write_atomically(folder.reference, json.dumps({"canary_s": canary_s}) + "\n")


def read_reference(folder: TruthFolder) -> float | None:
    """Seconds of the reference work beside the calibration; None in a folder of an earlier version, which kept none."""
    if not folder.reference.is_file():
        return None
    try:
        return float(json.loads(folder.reference.read_text())["canary_s"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{folder.reference} cannot be read ({error}); start over in a new folder") from error
