"""Reads and checks what a validation froze before its first run."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from simgnn.errors import ConfigError
from simgnn.hardware.profile.profile import load_profile
from simgnn.outside import outside_data
from simgnn.schema_faults import validated
from simgnn.seal import check_digests, check_seal
from simgnn.study.cases import Case
from simgnn.study.validate.ground_truth import TruthFolder
from simgnn.study.validate.scoreboard import Origin

START_OVER = "so the runs no longer test what was predicted; start over in a new folder"
FORMAT: Literal[5] = 5
"""Since this format the reference work occupies every core; before, one."""


class Frozen(BaseModel):
    """Content of ``frozen.json``: SHA-256 ``digests`` of all files that predictions are made from, by name;
    ``canary_s``, seconds of the reference work at calibration; and ``versions`` of libraries."""

    format: Literal[2, 3, 4, 5] = FORMAT
    frozen: str
    canary_s: Annotated[float, Field(gt=0)]
    versions: dict[str, str]
    digests: dict[str, str]


def check_frozen(folder: TruthFolder) -> Frozen:
    """Load ``frozen.json`` of a folder. Raises :class:`ConfigError` if a frozen file has changed."""
    with outside_data(folder.frozen, "JSON file", remedy="start over in a new folder", error=ConfigError):
        frozen = validated(Frozen, folder.frozen.read_text(encoding="utf-8"), folder.frozen)
    check_digests(folder.root, frozen.digests, START_OVER)
    return frozen


def origin_of(frozen: Frozen, folder: TruthFolder) -> Origin:
    """Return when and on which machine predictions were frozen, and with which libraries."""
    meta = load_profile(folder.profile).meta
    machine = ", ".join(filter(None, (meta.name, meta.description, meta.versions.get("system"))))
    return Origin(frozen=frozen.frozen, machine=machine, versions=frozen.versions)


def check_continues(frozen: Frozen, folder: TruthFolder) -> None:
    """Raise :class:`ConfigError` if runs would be timed beside other reference work than the calibration was."""
    if frozen.format != FORMAT:
        raise ConfigError(
            f"{folder.frozen}: format: got {frozen.format}, expected {FORMAT}: an earlier version of simgnn froze this "
            "and timed other reference work; start over in a new folder (--rescore still reads this one)"
        )


def check_prepared(case: Case, folder: TruthFolder) -> None:
    """Raise :class:`ConfigError` unless the run directory that ``case`` starts from exists and is unchanged."""
    prepared = folder.prepared(case)
    if not prepared.is_dir():
        raise ConfigError(
            f"{prepared}: no such folder, so {case.name} cannot run. A folder that --keep wrote is for --rescore only; "
            "start over in a new folder"
        )
    check_seal(prepared, START_OVER)
