"""What a reader must know before trusting a comparison: what the prediction rests on, and whether it is for the run's
machine."""

from collections.abc import Mapping
from typing import Any

from simgnn.record.result import Result
from simgnn.record.rundir import RunDirectory
from simgnn.tomlfile import load_toml

LAST = (
    "{}: an earlier version wrote the result; as the runs are of unequal length, payload is compared by its last epoch"
)


def cautions(
    sides: tuple[str, str], runs: tuple[RunDirectory, RunDirectory], results: tuple[Result, Result]
) -> list[str]:
    """One line each; ``sides`` names the two directories. Raises :class:`ConfigError` where a file cannot be read."""
    told = []
    for side, result in zip(sides, results, strict=True):
        if result.backend == "sim":
            told += [f"{side}: {text}" for text in result.qualifications()]
    if results[0].epochs != results[1].epochs:
        told += [
            LAST.format(side) for side, result in zip(sides, results, strict=True) if result.payload_epochs is None
        ]
    if {result.backend for result in results} == {"sim", "executor"}:
        told += _machine(*(_table(run, "hardware") for run in runs))
        told += _placement(*(_table(run, "experiment") for run in runs))
    return told


def _machine(predicted: Mapping[str, Any], measured: Mapping[str, Any]) -> list[str]:
    there, here = (table.get("meta", {}).get("name") for table in (predicted, measured))
    if there is None or here is None:
        which = "prediction" if there is None else "run"
        return [f"the {which}'s directory holds no hardware profile: whether both are of one machine is not known"]
    if there != here:
        return [f"predicted for the hardware profile '{there}', but the run's is '{here}': another machine"]
    if predicted != measured:
        return [f"two hardware profiles named '{there}': predicted with other numbers than the run's profile holds"]
    return []


def _placement(predicted: Mapping[str, Any], measured: Mapping[str, Any]) -> list[str]:
    told = []
    for section, key, what in (
        ("cluster", "hosts", "hosts"),
        ("cluster", "ranks_per_host", "ranks per host"),
        ("hardware", "threads_per_rank", "threads per rank"),
    ):
        there, here = (table.get(section, {}).get(key) for table in (predicted, measured))
        if there != here:
            told.append(f"ranks are placed differently: {what} {there} predicted, {here} in the run")
    return told


def _table(run: RunDirectory, name: str) -> Mapping[str, Any]:
    path = getattr(run, name)
    return load_toml(path) if path.is_file() else {}
