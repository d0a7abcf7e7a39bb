"""A digest of each run, so that no others are scored than were measured; and which versions they ran with.

``runs.json`` is written before ``runs.parquet``: interrupted between the two, it holds one run more, which is then run
again. Folders of before format 3 of ``frozen.json`` may have none.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from simgnn.errors import ConfigError
from simgnn.record.result import write_text
from simgnn.study.truth import RUNS_SCHEMA, Measured, TruthFolder, as_row, write_rows

FORMAT = 1
NO_DIGESTS = "an earlier version kept no digests of these runs: whether they are as they were measured cannot be told"


def write_runs(
    runs: Sequence[Measured], folder: TruthFolder, versions: Sequence[Mapping[str, str]], complete: bool
) -> None:
    """Write all runs so far and their digests. ``versions``: every set of versions that some of them ran with;
    ``complete``: whether none is to come."""
    table = {
        "format": FORMAT,
        "complete": complete,
        "versions": list(versions),
        "digests": {run.name: run_digest(run) for run in runs},
    }
    write_text(folder.run_digests, json.dumps(table, indent=2) + "\n")
    write_rows(runs, RUNS_SCHEMA, folder.runs)


def run_digest(run: Measured) -> str:
    """SHA-256 of all that is known of a run."""
    return hashlib.sha256(json.dumps(as_row(run), sort_keys=True).encode()).hexdigest()


def check_digests(runs: Sequence[Measured], folder: TruthFolder, expected: bool) -> list[dict[str, str]]:
    """The versions that the runs were made with; none where a folder of before has no digests (``expected``: false).

    Raises :class:`ConfigError` unless the runs are those that were measured, all of them.
    """
    if not folder.run_digests.is_file():
        if runs and expected:
            raise ConfigError(
                f"{folder.run_digests}: gone, so nothing tells whether {folder.runs.name} holds what was measured; "
                "start over in a new folder"
            )
        return []
    table = _read(folder)
    stated: dict[str, str] = table["digests"]
    there = {run.name: run_digest(run) for run in runs}
    last = next(reversed(stated), None)
    gone = [name for name in stated if name not in there and (table["complete"] or name != last)]
    faults = [f"{name} is gone" for name in gone]
    faults += [f"{name} is not as it was measured" for name in there if stated.get(name) != there[name]]
    if faults:
        more = f" (and {len(faults) - 3} more)" if len(faults) > 3 else ""
        raise ConfigError(
            f"{folder.runs}: {'; '.join(faults[:3])}{more}: changed after the runs, so a score of it would say "
            "nothing; start over in a new folder"
        )
    return list(table["versions"])


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


def _read(folder: TruthFolder) -> dict[str, Any]:
    try:
        table: dict[str, Any] = json.loads(folder.run_digests.read_text())
        if table["format"] != FORMAT:
            raise ValueError(f"format {table['format']}, expected {FORMAT}")
        if not isinstance(table["complete"], bool):
            raise ValueError(f"complete {table['complete']}, expected true or false")
        if not isinstance(table["digests"], dict):
            raise ValueError(f"digests {table['digests']}, expected one of each run")
        if not all(isinstance(one, dict) for one in table["versions"]):
            raise ValueError(f"versions {table['versions']}, expected tables of versions")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{folder.run_digests}: not what a validation writes ({error}); start over in a new folder"
        ) from None
    return table
