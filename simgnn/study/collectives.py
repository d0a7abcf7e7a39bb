"""Scores predicted collectives against measurements that were left out of the fit: other sizes, other rank counts."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, StrictBool, StrictFloat, StrictStr

from simgnn.analysis.nccl.measured_tables import find_tables, read_tables
from simgnn.analysis.nccl.profile_entries import Score, interpolation, left_out
from simgnn.errors import ConfigError
from simgnn.hardware.profile.profile import load_profile
from simgnn.hardware.profile.quantities import Strict
from simgnn.hardware.topology.topology import Name
from simgnn.schema_faults import validated
from simgnn.study.error_measures import forgiven
from simgnn.tomlfile import load_toml

Share = Annotated[StrictFloat, Field(gt=0.0)]


class Measured(Strict):
    """A machine to score: ``gpu`` names it in the measured tables, ``profile`` has enough devices of it."""

    gpu: StrictStr
    profile: StrictStr
    across_hosts: StrictBool


class CollectiveBars(Strict):
    """Largest accepted mean errors when sizes, or rank counts, are held out of the fit."""

    sizes_held_out: Share
    ranks_held_out: Share


class CollectiveSuite(Strict):
    """A suite of all-reduces that others measured on several machines."""

    kind: Literal["collectives"]
    name: Name
    description: StrictStr
    bars: CollectiveBars
    machines: Annotated[tuple[Measured, ...], Field(min_length=1)]


@dataclass(frozen=True)
class TableLine:
    """Mean error on a table of ``n`` rows. ``judged``: the mean, with errors within noise cut to at most the bar."""

    held_out: str
    table: str
    n: int
    mean: float
    judged: float


@dataclass(frozen=True)
class CollectiveBoard:
    """Result of ``simgnn validate nccl``. ``means``: mean ``judged`` error over all rows, by what was held out."""

    suite: str
    lines: tuple[TableLine, ...]
    means: dict[str, float]
    bars: dict[str, float]

    @property
    def holds(self) -> bool:
        return all(self.means[name] <= bar for name, bar in self.bars.items())

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "holds": self.holds}


def load_collectives(path: Path) -> CollectiveSuite:
    """Load a suite of collectives from a file. Raises :class:`ConfigError` that lists every fault."""
    return validated(CollectiveSuite, load_toml(path), path)


def score_collectives(suite: CollectiveSuite, folder: Path | None = None) -> CollectiveBoard:
    """Fit the measured tables without the held-out rows, predict these rows, and score. ``folder``: of the tables.
    Raises :class:`ConfigError` without tables, :class:`HardwareError` if they do not suffice."""
    found = find_tables(folder)
    if found is None:
        raise ConfigError(
            "nccl: expected measured tables in the folder 'measured/nccl' beside SIMGNN_DATA, which is missing; set "
            "SIMGNN_DATA to the folder of the real graphs"
        )
    tables = read_tables(found)
    scores: dict[str, list[Score]] = {"sizes_held_out": [], "ranks_held_out": []}
    for machine in suite.machines:
        mine = [t for t in tables if t.gpu == machine.gpu and (machine.across_hosts or t.scope == "host")]
        if not any(table.collective == "all_reduce" for table in mine):
            raise ConfigError(f"machines: no table of '{machine.gpu}' in {found}")
        profile = load_profile(machine.profile)
        scores["sizes_held_out"] += interpolation(profile, mine)
        scores["ranks_held_out"] += left_out({machine.gpu: profile}, mine)
    bars = suite.bars.model_dump()
    lines = tuple(
        TableLine(name, score.table, len(score.errors), score.mean, _mean([score], bars[name]))
        for name, found in scores.items()
        for score in found
    )
    means = {name: _mean(found, bars[name]) for name, found in scores.items()}
    return CollectiveBoard(suite=suite.name, lines=lines, means=means, bars=bars)


def _mean(scores: Sequence[Score], bar: float) -> float:
    # a score's noise is two standard errors already
    sizes = [forgiven(score.errors, score.noise / 2, bar) for score in scores]
    return float(np.mean(np.concatenate(sizes)))
