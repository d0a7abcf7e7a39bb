"""Stores samples of a loaded link, and derives the load entry of a hardware profile from them."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from simgnn.errors import BackendError
from simgnn.hardware.profile.communication import Load
from simgnn.tomlfile import write_atomically
from simgnn.units import format_quantity

FORMAT = "simgnn-link-load"
VERSION = 1
FILLED = 0.5
"""Smallest share of the link's rate that bulk messages must reach together; with less, they do not fill the link."""
QUIET = 0.1
"""Largest share of the hosts' cores that other work may use, so that the cost of bytes can be separated from it."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Round trips of a small message while ``messages`` bulk messages fill the link each way (0: the link is idle).

    ``visits``: seconds of the round trips, by visit; ``bulk_bytes_per_s``: rate of the bulk messages of both directions
    together in each visit (empty without bulk messages).
    """

    messages: int
    visits: tuple[tuple[float, ...], ...]
    bulk_bytes_per_s: tuple[float, ...] = ()

    def all(self) -> list[float]:
        return [trip for visit in self.visits for trip in visit]


@dataclass(frozen=True, slots=True)
class Work:
    """Processor time of sending bytes over the link. During ``seconds``, ``crossed_bytes`` crossed it (both directions
    together), and the ``cores`` of both hosts together were busy for ``busy_s``. ``busy_before``: mean number of busy
    cores just before, on an idle link."""

    seconds: float
    cores: int
    busy_s: float
    busy_before: float
    crossed_bytes: float

    @property
    def seconds_per_byte(self) -> float:
        """Seconds that one core works per byte, at each of the two ends of the link."""
        return (self.busy_s - self.busy_before * self.seconds) / (2 * self.crossed_bytes)


@dataclass(frozen=True, slots=True)
class LoadSamples:
    """The samples of one measurement. ``started``: date and time; ``waiting[0]`` is of the idle link."""

    started: str
    bulk_bytes: int
    small_bytes: int
    waiting: tuple[Waiting, ...]
    work: tuple[Work, ...]


def write_load(path: Path, samples: LoadSamples) -> None:
    write_atomically(path, json.dumps({"format": FORMAT, "version": VERSION, **asdict(samples)}))


def read_load(path: Path) -> LoadSamples:
    """Read a file that :func:`write_load` wrote. Raises :class:`BackendError` for anything else."""
    try:
        table: dict[str, Any] = json.loads(path.read_text())
        if (table.pop("format"), table.pop("version")) != (FORMAT, VERSION):
            raise ValueError("the file has another format or version")
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
    """Compute the load of a link of rate ``bytes_per_s``.

    For each number of bulk messages that fill the link each way, the load states the queue in front of the link: the
    bytes that pass it in half of the time by which these messages lengthen a small message's round trip (medians).
    ``spread``: the largest relative standard deviation of any number over repeats; None, with a note, if repeats of a
    number do not differ significantly from zero. Raises :class:`BackendError` if the messages moved less than half of
    the rate, or other work kept more than a tenth of the cores busy.
    """
    others = statistics.median(each.busy_before / each.cores for each in samples.work)
    if others > QUIET:
        raise BackendError(
            f"load of the link: other work kept {others:.0%} of the hosts' cores busy, expected at most {QUIET:.0%}: "
            "the cost of bytes cannot be separated from it; measure on a quiet machine"
        )
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


def _spread(values: Sequence[float]) -> float | None:
    """Return the standard deviation as a share of the mean; None for fewer than two values, or where it is at least the
    mean, since the values are then noise around zero."""
    if len(values) < 2:
        return None
    apart, middle = statistics.stdev(values), statistics.fmean(values)
    if apart == 0.0:
        return 0.0
    return apart / middle if apart < middle else None


def _shown(value: float, dimension: str) -> str:
    return format_quantity(float(f"{value:.4g}"), dimension)
