"""Fit rates and floors of messages inside one host (:func:`fit_network`) and between two (:func:`fit_pair`).

Equal messages that start together in a host take ``floor + max(bytes / message rate, bytes of a rank / port rate, bytes
of all / loopback rate)``. The simulator's model of shared links gives the same time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from simgnn.analysis.fit.calls import (
    COLLECTIVES,
    LARGE_BYTES,
    CallErrors,
    Errors,
    FloatArray,
    Predictor,
    beyond,
    collective_errors,
    efficiency,
    exchange_entry,
    exchange_floor,
    fit_collective,
    floor_and_rates,
    held_out,
    message_rate,
    noise,
    of_kind,
    of_turns,
    spread_of,
    without,
)
from simgnn.analysis.fit.samples import Sample
from simgnn.errors import HardwareError
from simgnn.hardware.profile.communication import Backend, LinkType, Message, Ports
from simgnn.hardware.profile.quantities import Bandwidth, Duration, Points

ONE_WAY_AT_A_TIME = 0.6
"""A link is half duplex if each direction reaches at most this fraction of its rate when both are busy."""


@dataclass(frozen=True)
class NetworkFit:
    """The fitted link between ranks of a host, its backend (communication library), and errors at held-out sizes."""

    link: LinkType
    backend: Backend
    errors: Errors


@dataclass(frozen=True)
class _Limits:
    """Rates in bytes per second: of one message, of one rank (each direction), of all messages on the host."""

    message: float
    port: float
    host: float

    def seconds(self, sample: Sample) -> float:
        """Seconds of an exchange without its floor."""
        sizes = sample.sizes
        return max(sizes["bytes"] / self.message, sizes["rank_bytes"] / self.port, sizes["total_bytes"] / self.host)


@dataclass(frozen=True)
class Pair:
    """The link between two hosts. ``way_bytes_per_s``: rate of each direction when both are busy, all ranks together;
    ``message_bytes_per_s``: rate of one message alone. ``errors``: of exchanges of held-out sizes."""

    floor_s: float
    way_bytes_per_s: float
    message_bytes_per_s: float
    share: Points
    spread: float
    reach: float
    errors: CallErrors

    @property
    def half_duplex(self) -> bool:
        """Whether both directions together carry no more than one direction alone."""
        return self.way_bytes_per_s < ONE_WAY_AT_A_TIME * self.message_bytes_per_s

    def link(self, latency_s: float, slower: float) -> LinkType:
        """Return the link from one of the two hosts to the network. ``slower``: factor by which it is slower when all
        hosts communicate at once."""
        rate = self.way_bytes_per_s * (2 if self.half_duplex else 1) / slower
        note = "between two hosts, all their ranks, both ways at once"
        if slower > 1:
            note += f"; slower by {slower:.2f} when all hosts talk at once, which is stated here"
        reach = (0.0, self.reach)
        return LinkType(
            kind="ethernet",
            bandwidth=Bandwidth.of(rate, "measured", spread=self.spread, range=reach, note=note),
            latency=Duration.of(latency_s, "measured", note="this link's part, beyond the message's floor"),
            duplex="half" if self.half_duplex else "full",
            message_bandwidth=Bandwidth.of(self.message_bytes_per_s, "measured", range=reach, note="one message alone"),
            efficiency=self.share,
        )


def fit_network(samples: Sequence[Sample], cores: float | None, library: str) -> NetworkFit:
    """Fit communication samples of one host, from groups of several rank counts. ``cores``: of the host (None: GPUs).

    Raises :class:`HardwareError` for fewer than three sizes.
    """
    samples = of_turns(samples, cores)
    sends = of_kind(samples, "send")
    sends = [sample for sample in sends if sample.ranks == min(one.ranks for one in sends)]  # the others only wait
    exchanges = of_kind(samples, "exchange")
    _check_enough(sends, exchanges, "calibrate with 2 ranks or more")
    send_floor, send_rates = floor_and_rates(sends)
    floors = _floors(exchanges)
    limits = _fit_limits(sends, exchanges, send_floor, floors)
    large = [s for s in exchanges if s.sizes["bytes"] >= LARGE_BYTES]
    spread = spread_of([(floors[s.ranks] + limits.seconds(s)) / s.last_s for s in large])
    reach = (0.0, float(max(s.sizes["bytes"] for s in exchanges)))
    link = LinkType(
        kind="loopback",
        bandwidth=Bandwidth.of(limits.host, "measured", spread=spread, range=reach, note="all ranks at once"),
        latency=Duration.of(0.0, "measured", note="part of the message's floor"),
    )
    message = Message(
        floor=Duration.of(send_floor, "measured", spread=spread),
        bandwidth=Bandwidth.of(limits.message, "measured", range=reach, note="one message alone"),
        efficiency=efficiency(sends, send_rates, send_floor, limits.message),
    )
    port = Bandwidth.of(limits.port, "measured", note="one rank, all its messages together")

    @cache
    def predicted(size: float) -> Predictor:
        alone, together = without(sends, size), without(exchanges, size)
        starts = _floors(together)
        found = _fit_limits(alone, together, floor_and_rates(alone)[0], starts)
        return lambda sample: starts[sample.ranks] + found.seconds(sample)

    of_group = {ranks: [s for s in exchanges if s.ranks == ranks] for ranks in floors}
    collectives = [exchange_entry(mine, ranks, send_floor) for ranks, mine in of_group.items()]
    errors: Errors = {}
    for ranks, mine in of_group.items():
        errors["exchange", ranks] = held_out(mine, predicted)
        for kind in COLLECTIVES:
            found = [s for s in of_kind(samples, kind) if s.ranks == ranks]
            if found:
                collectives.append(fit_collective(kind, ranks, found, library))
                errors[kind, ranks] = collective_errors(kind, ranks, found, library)
    backend = Backend(message=message, ports=Ports(send=port, receive=port), collectives=tuple(collectives))
    return NetworkFit(link, backend, errors)


def fit_pair(sends: Sequence[Sample], exchanges: Sequence[Sample]) -> Pair:
    """Fit the samples between two hosts. Raises :class:`HardwareError` for fewer than three sizes."""
    _check_enough(sends, exchanges, "calibrate again with --fresh")
    floor, rates = floor_and_rates(sends)
    reach = max(sample.sizes["bytes"] for sample in exchanges)
    alone = message_rate(sends, floor, min(LARGE_BYTES, reach))

    def predictor(size: float) -> Predictor:
        start, way = _floor_and_way(without(exchanges, size))
        return lambda sample: start + sample.sizes["way_bytes"] / way

    return Pair(
        floor,
        _floor_and_way(exchanges)[1],
        alone,
        efficiency(sends, rates, floor, alone),
        noise(exchanges),
        float(max(reach, *(sample.sizes["bytes"] for sample in sends))),
        held_out(exchanges, predictor),
    )


def _check_enough(sends: Sequence[Sample], exchanges: Sequence[Sample], remedy: str) -> None:
    """Raise :class:`HardwareError` if there are too few sizes for a floor and a rate."""
    if len(sends) < 3 or len(exchanges) < 3:
        raise HardwareError(
            f"communication: got {len(sends)} samples of single messages and {len(exchanges)} of exchanges, expected "
            f"at least 3 sizes of each; {remedy}"
        )


def _floors(exchanges: Sequence[Sample]) -> dict[int, float]:
    groups = sorted({sample.ranks for sample in exchanges})
    return {ranks: exchange_floor([s for s in exchanges if s.ranks == ranks]) for ranks in groups}


def _fit_limits(
    sends: Sequence[Sample], exchanges: Sequence[Sample], send_floor: float, floors: Mapping[int, float]
) -> _Limits:
    """Fit the rates of a rank (port) and of a host by least squared log error over messages from 1 MiB on, or the
    largest.

    A rate that limits no message keeps its starting value, an observed rate, which the true one may exceed.
    """
    # SciPy's optimizers: loaded when a calibration is fitted
    from scipy import optimize

    reach = min(LARGE_BYTES, max(sample.sizes["bytes"] for sample in exchanges))
    large = [s for s in exchanges if s.sizes["bytes"] >= reach]
    message = message_rate(sends, send_floor, reach)
    flowing = [beyond(s, floors[s.ranks]) for s in large]
    host = float(np.median([s.sizes["total_bytes"] / t for s, t in zip(large, flowing, strict=True)]))
    port = max([message, *(s.sizes["rank_bytes"] / t for s, t in zip(large, flowing, strict=True))])

    def error(unknown: FloatArray) -> FloatArray:
        limits = _Limits(message, *np.exp(unknown))
        return np.array([np.log((floors[s.ranks] + limits.seconds(s)) / s.last_s) for s in large])

    found = optimize.least_squares(error, np.log([port, host]), loss="soft_l1", f_scale=0.1)
    return _Limits(message, *(float(rate) for rate in np.exp(found.x)))


def _floor_and_way(exchanges: Sequence[Sample]) -> tuple[float, float]:
    """Seconds of an exchange without bytes, and bytes per second in each direction."""
    floor, _ = floor_and_rates(exchanges)
    reach = max(sample.sizes["bytes"] for sample in exchanges)
    large = [sample for sample in exchanges if sample.sizes["bytes"] >= min(LARGE_BYTES, reach)]
    return floor, float(np.median([s.sizes["way_bytes"] / beyond(s, floor) for s in large]))
