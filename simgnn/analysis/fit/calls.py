"""Fit times of messages and collectives on one host or across hosts: floors (seconds without bytes), rates, and errors.

The time of a communication is that of its last rank (``last_s``): a rank that finishes early waits for the last one at
the next communication, so the last determines the epoch. If ranks share cores, it is their mean (:func:`of_turns`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simgnn.analysis.fit.samples import Sample
from simgnn.analysis.fit.solver import MAD_TO_SIGMA, costs
from simgnn.hardware.price.collectives import bus_seconds, bytes_moved, hops, steps
from simgnn.hardware.profile.communication import Algorithm, Collective
from simgnn.hardware.profile.quantities import Bandwidth, Duration, Points

FloatArray = NDArray[np.float64]
Predictor = Callable[[Sample], float]
"""A function that predicts the ``last_s`` of a sample in seconds."""
FEWEST_SIZES = 3
"""A floor and a rate need this many sizes, so a size can be held out only if there are more."""
LARGE_BYTES = float(1 << 20)
"""Bandwidths are fitted to messages of at least this size, whose floor is a small part of their time."""
SHARE_LIMITS = (0.02, 50.0)
"""Limits of an efficiency or a residual. Values beyond them mean that the fitted floor exceeds the time."""
COLLECTIVES = ("allreduce", "broadcast", "allgather", "barrier")
ALGORITHMS: Mapping[tuple[str, str], Algorithm] = {("gloo", "broadcast"): "binomial"}
"""(library, collective) -> algorithm, if it is not a ring. Gloo: ``gloo/broadcast.cc``."""


@dataclass(frozen=True)
class CallErrors:
    """Relative errors of predictions at held-out message sizes, each by a fit to the other sizes: ``median`` and
    ``worst`` (None: too few sizes to hold one out), and the number of ``samples``."""

    median: float | None
    worst: float | None
    samples: int

    def shown(self) -> list[str]:
        """Return samples, median and worst as text for a table."""
        return [str(self.samples), *("-" if error is None else f"{error:.1%}" for error in (self.median, self.worst))]


Errors = dict[tuple[str, int], CallErrors]
"""(kind of measurement, ranks) -> errors."""


def held_out(samples: Sequence[Sample], fit: Callable[[float], Predictor]) -> CallErrors:
    """Return the errors of ``samples``. ``fit(size)`` returns a predictor fitted without messages of ``size`` bytes."""
    sizes = sorted({sample.sizes["bytes"] for sample in samples})
    if len(sizes) <= FEWEST_SIZES:
        return CallErrors(None, None, len(samples))
    errors: list[float] = []
    for size in sizes:
        predict = fit(size)
        errors += [abs(predict(s) / s.last_s - 1.0) for s in samples if s.sizes["bytes"] == size]
    return CallErrors(float(np.median(errors)), max(errors), len(samples))


def without(samples: Sequence[Sample], size: float) -> list[Sample]:
    return [sample for sample in samples if sample.sizes["bytes"] != size]


def of_kind(samples: Sequence[Sample], primitive: str, form: str | None = None) -> list[Sample]:
    """Return the samples of one primitive, and if given of one ``form`` (its variant, such as "even")."""
    return [sample for sample in samples if sample.primitive == primitive and form in (None, sample.form)]


def of_turns(samples: Sequence[Sample], cores: float | None) -> list[Sample]:
    """Return the samples; where the ranks of a host have more threads than its ``cores`` (None: GPUs), ``last_s``
    becomes the mean over ranks.

    On shared cores the last rank is late because an early rank has begun its next work on the same core; later the late
    rank has the core alone. The simulator models shared cores, so this delay must not be counted here, too.
    """
    return [
        sample.model_copy(update={"last_s": sample.seconds})
        if cores is not None and sample.active * sample.threads > cores
        else sample
        for sample in samples
    ]


def beyond(sample: Sample, floor: float, least: float = 0.05) -> float:
    """Return the seconds of a sample minus ``floor``, at least the fraction ``least`` of the time of the sample."""
    return max(sample.last_s - floor, sample.last_s * least)


def floor_and_rates(samples: Sequence[Sample]) -> tuple[float, FloatArray]:
    """Return the floor (seconds of a message without bytes), fitted to the smaller half of the sizes, and for each
    sample the bytes per second after the floor, [n]."""
    sizes, times = (np.array([s.sizes["bytes"] for s in samples]), np.array([s.last_s for s in samples]))
    small = np.argsort(sizes)[: max(3, len(sizes) // 2 + 1)]
    columns = np.column_stack([np.ones(len(small)), sizes[small]])
    floor = float(costs(columns, times[small], "messages")[0])
    floor = min(floor, float(np.median(times[small])))
    return floor, sizes / np.maximum(times - floor, times * 0.05)


def exchange_floor(samples: Sequence[Sample]) -> float:
    return floor_and_rates([sample for sample in samples if sample.form == "even"])[0]


def efficiency(samples: Sequence[Sample], rates: FloatArray, floor: float, most: float) -> Points:
    """Return, by size, the rate of single messages after their floor, as a fraction of ``most`` bytes per second."""
    sizes = np.array([sample.sizes["bytes"] for sample in samples])
    order = np.argsort(sizes)
    # below some size the floor is nearly all of the time, and the rest does not determine the rate
    used = [place for place in order if sizes[place] / most >= 0.25 * floor] or [order[-1]]
    return Points.of(sizes[used].tolist(), np.clip(rates[used] / most, SHARE_LIMITS[0], 1.0).tolist(), "measured")


def message_rate(samples: Sequence[Sample], floor: float, reach: float) -> float:
    """Return the bytes per second of one large message: the median over messages of at least ``reach`` bytes."""
    least = min(reach, max(sample.sizes["bytes"] for sample in samples))
    return float(np.median([s.sizes["bytes"] / beyond(s, floor) for s in samples if s.sizes["bytes"] >= least]))


def exchange_entry(samples: Sequence[Sample], ranks: int, message_floor: float) -> Collective:
    """Return the profile entry of an exchange: seconds of a call beyond ``message_floor``, for each peer."""
    return Collective(
        kind="exchange",
        algorithm="pairwise",
        floor=Duration.of(0.0, "measured", spread=noise(samples)),
        hop=Duration.of(max(exchange_floor(samples) - message_floor, 0.0) / (ranks - 1), "measured"),
        ranks=(ranks,),
    )


def fit_collective(kind: str, ranks: int, samples: Sequence[Sample], library: str) -> Collective:
    """Fit the profile entry of a collective for one group size. ``library``: "gloo" or "nccl"."""
    algorithm = ALGORITHMS.get((library, kind), "ring")
    count = max(steps(kind, algorithm, ranks), 1)
    scatter = noise(samples)
    if kind == "barrier":
        floor = float(np.median([sample.last_s for sample in samples]))
        hop = Duration.of(floor / count, "measured", spread=scatter)
        return Collective(kind="barrier", floor=Duration.of(0.0, "measured"), hop=hop, ranks=(ranks,))
    floor, _ = floor_and_rates(samples)
    ordered = sorted(samples, key=lambda sample: sample.sizes["bytes"])
    sizes = np.array([sample.sizes["bytes"] for sample in ordered])
    moved = np.array([bytes_moved(kind, ranks, sample.sizes["bytes"]) for sample in ordered])
    flowing = np.array([beyond(sample, floor, 0.02) for sample in ordered])
    bandwidth = float(moved[-1] / flowing[-1])
    residual = np.clip(flowing / (moved / bandwidth), *SHARE_LIMITS)
    # where bytes hardly count, the residual is noise over noise: it starts where they are a tenth of the floor
    used = moved / bandwidth >= 0.1 * floor
    used[-1] = True
    return Collective(
        kind=kind,
        algorithm=algorithm,
        floor=Duration.of(0.0, "measured", spread=scatter),
        hop=Duration.of(floor / count, "measured", spread=scatter),
        bus_bandwidth=Bandwidth.of(bandwidth, "measured", spread=scatter, range=(0.0, float(sizes[-1]))),
        residual=Points.of(sizes[used].tolist(), residual[used].tolist(), "measured", spread=scatter),
        ranks=(ranks,),
    )


def collective_errors(kind: str, ranks: int, samples: Sequence[Sample], library: str) -> CallErrors:
    """Return the errors of :func:`fit_collective` at held-out sizes."""

    def fit(size: float) -> Predictor:
        entry = fit_collective(kind, ranks, without(samples, size), library)
        hop = 0.0 if entry.hop is None else entry.hop.value

        def seconds(sample: Sample) -> float:
            nbytes = sample.sizes["bytes"]
            return entry.floor.value + hops(entry, ranks, nbytes) * hop + bus_seconds(entry, ranks, ranks, nbytes)

        return seconds

    return held_out(samples, fit)


def noise(samples: Sequence[Sample]) -> float:
    """Return the relative standard deviation between repeats, from their MAD: the median over sizes."""
    return float(MAD_TO_SIGMA * np.median([sample.mad_s / sample.last_s for sample in samples]))


def spread_of(ratios: Sequence[float]) -> float:
    """Return the standard deviation of the logarithm of ratios, from their median absolute deviation."""
    logs = np.log(np.array(ratios))
    return float(MAD_TO_SIGMA * np.median(np.abs(logs - np.median(logs)))) if len(logs) else 0.0
