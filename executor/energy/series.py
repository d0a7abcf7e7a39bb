"""What a rank's gauges measured over time, its file, and the figures that rank 0 makes of all ranks' files."""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from executor.energy.gauges import Gauge
from simgnn.errors import BackendError
from simgnn.record.energy import EnergyFigure, Floats, energy_over


def _none() -> Floats:
    return np.zeros(0)


@dataclass(frozen=True)
class Series:
    """Energy of a gauge since its first reading: ``joules`` at ``times_s`` [n]; empty where ``reason`` tells why."""

    gauge: Gauge
    reason: str = ""
    times_s: Floats = field(default_factory=_none)
    joules: Floats = field(default_factory=_none)

    @classmethod
    def of(cls, gauge: Gauge, times_s: Floats, readings: Sequence[Floats]) -> "Series":
        """From what each sensor said at ``times_s`` [n], at least twice."""
        try:
            joules = np.sum([s.joules(times_s, r) for s, r in zip(gauge.sensors, readings, strict=True)], axis=0)
        except BackendError as error:
            return cls(gauge, f"{gauge.source}: {error}")
        if joules[-1] <= 0:
            # some virtual machines show counters that never count, and slow ones miss a run of milliseconds
            return cls(gauge, f"{gauge.source}: nothing was counted in {times_s[-1] - times_s[0]:.3g} s")
        return cls(gauge, "", times_s, joules)


def energy_file(folder: Path, rank: int) -> Path:
    """Where a rank leaves what it measured."""
    return folder / f"rank-{rank}.energy.npz"


def write_series(path: Path, every: Sequence[Series]) -> None:
    """Write all series of a rank; empty where it has no gauge."""
    facts = [
        {"part": s.gauge.part, "name": s.gauge.name, "host": platform.node(), "ranks": s.gauge.ranks,
         "source": s.gauge.source, "reason": s.reason}
        for s in every
    ]  # fmt: skip
    arrays = {f"{name}-{n}": getattr(s, name) for n, s in enumerate(every) for name in ("times_s", "joules")}
    draft = path.with_suffix(".tmp")
    with draft.open("wb") as file:
        np.savez(file, facts=np.array(json.dumps(facts)), **arrays)
    os.replace(draft, path)


def energy_figures(folder: Path, ranks: int, span: tuple[float, float], epochs: Floats) -> list[EnergyFigure]:
    """Figures of all ranks' files, for a run that went on from ``span[0]`` to ``span[1]`` with training ``epochs``
    float64 [E, 2], seconds of the trace."""
    figures = []
    for rank in range(ranks):
        with np.load(energy_file(folder, rank), allow_pickle=False) as file:
            for number, fact in enumerate(json.loads(str(file["facts"]))):
                times, joules = file[f"times_s-{number}"], file[f"joules-{number}"]
                source, reason = fact.pop("source"), fact.pop("reason")
                if not reason and (times[0] > span[0] or times[-1] < span[1]):
                    reason = f"{source}: read from {times[0]:.3f} s to {times[-1]:.3f} s only, of {span[1]:.3f} s"
                figures.append(_figure(fact, source, reason, times, joules, span, epochs))
    return figures


def _figure(
    whose: Mapping[str, Any],
    source: str,
    reason: str,
    times: Floats,
    joules: Floats,
    span: tuple[float, float],
    epochs: Floats,
) -> EnergyFigure:
    if reason:
        return EnergyFigure(**whose, status="unavailable", source=reason)
    between = float(np.max(np.diff(times)))

    def used(moments: Floats) -> Floats:
        return np.interp(moments, times, joules)

    return EnergyFigure(**whose, status="measured", source=source, **energy_over(used, span, epochs, between))
