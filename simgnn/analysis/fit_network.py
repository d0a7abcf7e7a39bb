"""What communication costs, from samples of one host: messages, ports, the loopback that all share, and collectives.

Times of messages follow ``floor + max(bytes / message rate, rank's bytes / port, all bytes / loopback)``: what the
simulator's fluid flows give for equal messages that start together.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simgnn.analysis.fit_samples import Sample
from simgnn.analysis.fit_solver import MAD_TO_SIGMA, solve
from simgnn.errors import HardwareError
from simgnn.hardware.collectives import bytes_moved, steps
from simgnn.hardware.links import Backend, Collective, LinkType, Message, Ports
from simgnn.hardware.quantities import Bandwidth, Duration, Points

FloatArray = NDArray[np.float64]
LARGE_BYTES = float(1 << 20)
"""Messages from here on tell bandwidths: their floor is a small share of their time."""
SHARE_LIMITS = (0.02, 50.0)
"""An efficiency or a residual beyond these says that the floor was larger than the time; it is held here."""
RING = ("allreduce", "broadcast", "allgather")


@dataclass(frozen=True)
class NetworkFit:
    """The loopback link and the backend as the profile writes them, and how well they reproduce the samples.

    ``errors``: for each kind of probe and number of ranks, the median and the largest relative error and the samples.
    """

    link: LinkType
    backend: Backend
    errors: dict[tuple[str, int], tuple[float, float, int]]


@dataclass(frozen=True)
class _Limits:
    """Rates in bytes per second: of one message, of one rank (each way), of everything on the host."""

    message: float
    port: float
    host: float


def fit_network(samples: Sequence[Sample]) -> NetworkFit:
    """Fit all communication samples of groups of ranks on one host. Raises :class:`HardwareError` if there are none."""
    sends = _of(samples, "send")
    sends = [sample for sample in sends if sample.ranks == min(one.ranks for one in sends)]  # the others only wait
    exchanges = _of(samples, "exchange")
    if len(sends) < 3 or len(exchanges) < 3:
        raise HardwareError(
            f"communication: got {len(sends)} samples of single messages and {len(exchanges)} of exchanges, expected "
            "at least 3 sizes of each: calibrate with 2 ranks or more"
        )
    send_floor, send_rates = _floor_and_rates(sends, [sample.last_s for sample in sends])
    groups = sorted({sample.ranks for sample in exchanges})
    floors = {ranks: _exchange_floor([s for s in exchanges if s.ranks == ranks]) for ranks in groups}
    limits = _fit_limits(sends, exchanges, send_floor, floors)
    sizes = np.array([sample.sizes["bytes"] for sample in sends])
    order = np.argsort(sizes)
    # below some size the floor is nearly all of the time, and what is left of it says nothing about the rate
    told = [place for place in order if sizes[place] / limits.message >= 0.25 * send_floor] or [order[-1]]
    shares = np.clip(send_rates[told] / limits.message, SHARE_LIMITS[0], 1.0)
    spread = _spread(
        [_exchange_time(s, floors[s.ranks], limits) / s.seconds for s in exchanges if s.sizes["bytes"] >= LARGE_BYTES]
    )
    reach = (0.0, float(max(s.sizes["bytes"] for s in exchanges)))
    link = LinkType(
        kind="loopback",
        bandwidth=Bandwidth.of(limits.host, "measured", spread=spread, range=reach, note="all ranks at once"),
        latency=Duration.of(0.0, "measured", note="part of the message's floor"),
    )
    message = Message(
        floor=Duration.of(send_floor, "measured", spread=spread),
        bandwidth=Bandwidth.of(limits.message, "measured", range=reach, note="one message alone"),
        efficiency=Points.of(sizes[told].tolist(), shares.tolist(), "measured"),
    )
    ports = Ports(
        send=Bandwidth.of(limits.port, "measured", note="one rank, all its messages together"),
        receive=Bandwidth.of(limits.port, "measured", note="one rank, all its messages together"),
    )
    collectives = [
        Collective(
            kind="exchange",
            algorithm="pairwise",
            floor=Duration.of(0.0, "measured", spread=_noise([s for s in exchanges if s.ranks == ranks])),
            hop=Duration.of(max(floors[ranks] - send_floor, 0.0) / (ranks - 1), "measured"),
            ranks=(ranks,),
        )
        for ranks in groups
    ]
    errors: dict[tuple[str, int], tuple[float, float, int]] = {}
    for ranks in groups:
        mine = [s for s in exchanges if s.ranks == ranks]
        errors["exchange", ranks] = _errors([_exchange_time(s, floors[ranks], limits) for s in mine], mine)
        for kind in (*RING, "barrier"):
            found = [s for s in _of(samples, kind) if s.ranks == ranks]
            if found:
                entry, predicted = _fit_collective(kind, ranks, found)
                collectives.append(entry)
                errors[kind, ranks] = _errors(predicted, found)
    backend = Backend(message=message, ports=ports, collectives=tuple(collectives))
    return NetworkFit(link, backend, errors)


def _of(samples: Sequence[Sample], primitive: str) -> list[Sample]:
    return [sample for sample in samples if sample.primitive == primitive]


def _floor_and_rates(samples: Sequence[Sample], seconds: Sequence[float]) -> tuple[float, FloatArray]:
    """The time of no bytes, and the bytes per second beyond it, [n].

    The floor is fitted with the smaller half of the sizes, where it shows.
    """
    sizes, times = np.array([sample.sizes["bytes"] for sample in samples]), np.array(seconds)
    small = np.argsort(sizes)[: max(3, len(sizes) // 2 + 1)]
    columns = np.column_stack([np.ones(len(small)), sizes[small]])
    floor = float(solve(columns, times[small], "messages").coefficients[0])
    floor = min(floor, float(times.min()))
    return floor, sizes / np.maximum(times - floor, times * 0.05)


def _exchange_floor(samples: Sequence[Sample]) -> float:
    even = [sample for sample in samples if sample.form == "even"]
    return _floor_and_rates(even, [sample.seconds for sample in even])[0]


def _fit_limits(
    sends: Sequence[Sample], exchanges: Sequence[Sample], send_floor: float, floors: dict[int, float]
) -> _Limits:
    """The three rates with the least squared log error over large messages.

    Largest sizes stand in where no message of 1 MiB was measured. A limit that never binds keeps its starting value,
    the highest rate that was seen of its kind, which is a lower bound of the truth.
    """
    from scipy import optimize

    reach = min(LARGE_BYTES, max(sample.sizes["bytes"] for sample in exchanges))
    large = [s for s in exchanges if s.sizes["bytes"] >= reach]
    alone = [s for s in sends if s.sizes["bytes"] >= min(reach, max(one.sizes["bytes"] for one in sends))]
    message = float(np.median([s.sizes["bytes"] / max(s.last_s - send_floor, s.last_s * 0.05) for s in alone]))
    flowing = [max(s.seconds - floors[s.ranks], s.seconds * 0.05) for s in large]
    host = float(np.median([s.sizes["total_bytes"] / t for s, t in zip(large, flowing, strict=True)]))
    port = max([message, *(s.sizes["rank_bytes"] / t for s, t in zip(large, flowing, strict=True))])

    def error(unknown: FloatArray) -> FloatArray:
        limits = _Limits(message, *np.exp(unknown))
        return np.array([np.log(_exchange_time(s, floors[s.ranks], limits) / s.seconds) for s in large])

    found = optimize.least_squares(error, np.log([port, host]), loss="soft_l1", f_scale=0.1)
    return _Limits(message, *(float(rate) for rate in np.exp(found.x)))


def _exchange_time(sample: Sample, floor: float, limits: _Limits) -> float:
    sizes = sample.sizes
    return floor + max(
        sizes["bytes"] / limits.message, sizes["rank_bytes"] / limits.port, sizes["total_bytes"] / limits.host
    )


def _fit_collective(kind: str, ranks: int, samples: Sequence[Sample]) -> tuple[Collective, list[float]]:
    """The collective's entry for one group size, and its predictions of the samples."""
    count = max(steps(kind, "ring", ranks), 1)
    noise = _noise(samples)
    if kind == "barrier":
        floor = float(np.median([sample.seconds for sample in samples]))
        hop = Duration.of(floor / count, "measured", spread=noise)
        entry = Collective(kind="barrier", floor=Duration.of(0.0, "measured"), hop=hop, ranks=(ranks,))
        return entry, [floor] * len(samples)
    floor, _ = _floor_and_rates(samples, [sample.seconds for sample in samples])
    ordered = sorted(samples, key=lambda sample: sample.sizes["bytes"])
    moved = np.array([bytes_moved(kind, ranks, sample.sizes["bytes"]) for sample in ordered])
    flowing = np.array([max(sample.seconds - floor, sample.seconds * 0.02) for sample in ordered])
    bandwidth = float(moved[-1] / flowing[-1])
    residual = np.clip(flowing / (moved / bandwidth), *SHARE_LIMITS)
    # where bytes hardly count, the residual is noise over noise: it starts where they are a tenth of the floor
    told = moved / bandwidth >= 0.1 * floor
    told[-1] = True
    sizes = [sample.sizes["bytes"] for sample in ordered]
    points = Points.of(np.array(sizes)[told].tolist(), residual[told].tolist(), "measured", spread=noise)
    entry = Collective(
        kind=kind,
        floor=Duration.of(0.0, "measured", spread=noise),
        hop=Duration.of(floor / count, "measured", spread=noise),
        bus_bandwidth=Bandwidth.of(bandwidth, "measured", spread=noise, range=(0.0, sizes[-1])),
        residual=points,
        ranks=(ranks,),
    )
    predicted = {
        sample.sizes["bytes"]: floor + part / bandwidth * points.at(sample.sizes["bytes"])
        for sample, part in zip(ordered, moved, strict=True)
    }
    return entry, [predicted[sample.sizes["bytes"]] for sample in samples]


def _errors(predicted: Sequence[float], samples: Sequence[Sample]) -> tuple[float, float, int]:
    errors = [abs(time / sample.seconds - 1) for time, sample in zip(predicted, samples, strict=True)]
    return float(np.median(errors)), float(max(errors)), len(errors)


def _noise(samples: Sequence[Sample]) -> float:
    """Spread of the repeats as a share of their median: the median over sizes."""
    return float(MAD_TO_SIGMA * np.median([sample.mad_s / sample.seconds for sample in samples]))


def _spread(ratios: Sequence[float]) -> float:
    logs = np.log(np.array(ratios))
    return float(MAD_TO_SIGMA * np.median(np.abs(logs - np.median(logs)))) if len(logs) else 0.0
