"""What the measurement of a loaded link leaves behind, its file, and what that comes to for a hardware profile."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from executor.microbench.sample import write_document
from simgnn.errors import BackendError
from simgnn.hardware.profile.links import Load
from simgnn.units import format_quantity

FORMAT = "simgnn-link-load"
VERSION = 1
FILLED = 0.5
"""Of the link's rate: bulk messages that together move less than that do not fill it, and nothing waits behind them."""
QUIET = 0.1
"""Of the hosts' cores: where other work keeps more of them busy, what bytes cost cannot be told from it."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Round trips of a small message while ``messages`` bulk messages fill the link each way (0: none, it is idle).

    ``visits``: seconds of the round trips, of one visit after another; ``bulk_bytes_per_s``: of each visit, what the
    bulk messages of both ways moved together (empty where there are none).
    """

    messages: int
    visits: tuple[tuple[float, ...], ...]
    bulk_bytes_per_s: tuple[float, ...] = ()

    def all(self) -> list[float]:
        """Round trips of all visits."""
        return [trip for visit in self.visits for trip in visit]


@dataclass(frozen=True, slots=True)
class Work:
    """Processor time that bytes across the link cost: ``busy_s`` of all ``cores`` of both hosts in ``seconds``, in
    which ``crossed_bytes`` crossed it (of both directions together). ``busy_before``: cores that were busy, on average,
    just before, when nothing crossed it."""

    seconds: float
    cores: int
    busy_s: float
    busy_before: float
    crossed_bytes: float

    @property
    def seconds_per_byte(self) -> float:
        """Of a core, at each of the two ends of a byte."""
        return (self.busy_s - self.busy_before * self.seconds) / (2 * self.crossed_bytes)


@dataclass(frozen=True, slots=True)
class LoadSamples:
    """All of one measurement. ``started``: date and time; the first of ``waiting`` is of the idle link."""

    started: str
    bulk_bytes: int
    small_bytes: int
    waiting: tuple[Waiting, ...]
    work: tuple[Work, ...]


def write_load(path: Path, samples: LoadSamples) -> None:
    """Write them as JSON, whole or not at all."""
    write_document(path, {"format": FORMAT, "version": VERSION, **asdict(samples)})


def read_load(path: Path) -> LoadSamples:
    """What :func:`write_load` wrote; :class:`BackendError` for anything else."""
    try:
        table: dict[str, Any] = json.loads(path.read_text())
        if (table.pop("format"), table.pop("version")) != (FORMAT, VERSION):
            raise ValueError("of another format or version")
        waiting = tuple(
            Waiting(entry["messages"], tuple(map(tuple, entry["visits"])), tuple(entry["bulk_bytes_per_s"]))
            for entry in table.pop("waiting")
        )
        return LoadSamples(waiting=waiting, work=tuple(Work(**entry) for entry in table.pop("work")), **table)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BackendError(
            f"{path}: no measurement of a loaded link ({error}); expected what executor.microbench.loaded wrote"
        ) from None


def load_of(samples: LoadSamples, bytes_per_s: float) -> Load:
    """What a link of this rate does to others while messages fill it.

    What waits in front of the link while so many messages fill it each way is what it passes in half of the time by
    which a round trip of a small message is longer than on the idle link (medians). ``spread``: the largest standard
    deviation of any of the numbers from repeat to repeat, as a share; none where repeats do not tell one of them from
    nothing, which the note says. Raises :class:`BackendError` where the messages moved less than half of the rate, or
    other work kept more than a tenth of the cores busy.
    """
    _check_quiet(samples.work)
    idle, *loaded = samples.waiting
    alone = statistics.median(idle.all())
    queues, middles = [], []
    spreads: dict[str, float | None] = {}
    for level in loaded:
        moved = statistics.median(level.bulk_bytes_per_s) / 2
        if moved < FILLED * bytes_per_s:
            raise BackendError(
                f"load of the link: {level.messages} message(s) at once each way moved {_shown(moved, 'bytes/s')}, "
                f"expected at least half of its {_shown(bytes_per_s, 'bytes/s')}: they do not fill it; measure on a "
                "quiet machine, or declare a slower link"
            )
        waits = [(trip - alone) / 2 for trip in level.all()]
        size = max(0.0, statistics.median(waits)) * bytes_per_s
        queues.append({"messages": level.messages, "size": format_quantity(round(size), "bytes")})
        low, _, high = statistics.quantiles(waits, n=4)
        middles.append(f"{1e3 * low:.1f} to {1e3 * high:.1f}")
        what = f"the wait behind {level.messages} message(s)"
        spreads[what] = _spread([(statistics.median(visit) - alone) / 2 for visit in level.visits])
    costs = [work.seconds_per_byte for work in samples.work]
    spreads["the processor time of a byte"] = _spread(costs)
    told = [share for share in spreads.values() if share is not None]
    lost = [what for what, share in spreads.items() if share is None]
    trips = min(len(level.all()) for level in loaded)
    note = (
        f"measured {samples.started[:10]}: what passes the link while a message of {samples.small_bytes} bytes waits, "
        f"behind messages of {_shown(samples.bulk_bytes, 'bytes')} each way ({trips} round trips; middle halves of the "
        f"waits {', '.join(middles)} ms); processor: {len(costs)} exchanges both ways, "
        f"{1e9 * min(costs):.1f} to {1e9 * max(costs):.1f} ns a byte"
        + (f"; no spread, since repeats do not tell {' and '.join(lost)} from none" if lost else "")
    )
    return Load.model_validate(
        {
            "source": "measured",
            "queues": queues,
            "processor": format_quantity(float(f"{max(0.0, statistics.median(costs)):.4g}"), "s"),
            "spread": None if lost else format_quantity(float(f"{max(told):.3g}"), "ratio"),
            "note": note,
        }
    )


def _check_quiet(work: Sequence[Work]) -> None:
    others = statistics.median(each.busy_before / each.cores for each in work)
    if others > QUIET:
        raise BackendError(
            f"load of the link: other work kept {others:.0%} of the hosts' cores busy, expected at most {QUIET:.0%}: "
            "what bytes cost cannot be told from it; measure on a quiet machine"
        )


def _spread(values: Sequence[float]) -> float | None:
    """Standard deviation as a share of the mean. None where repeats differ by more than their mean is above nothing, or
    there are none: noise around nothing, whose mean is small or negative by chance, is no share of anything."""
    if len(values) < 2:
        return None
    apart, middle = statistics.stdev(values), statistics.fmean(values)
    if apart == 0.0:
        return 0.0
    return apart / middle if apart < middle else None


def _shown(value: float, dimension: str) -> str:
    return format_quantity(float(f"{value:.4g}"), dimension)
