"""Prices of messages between placed ranks: of one message, or of arrays of messages at once."""

from collections.abc import Sequence
from math import inf
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from simgnn.hardware.profile.communication import Backend, LinkType
from simgnn.hardware.profile.quantities import Points
from simgnn.hardware.topology.routes import Link, Route

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Path(NamedTuple):
    """The links that a message crosses, as positions in ``Machine.links``, and their total latency."""

    links: tuple[int, ...]
    latency_s: float


class PlacedRanks(Protocol):
    """What prices of communication need of a :class:`~simgnn.hardware.price.machine.Machine`: its ranks and routes."""

    @property
    def hosts(self) -> Sequence[int]: ...

    @property
    def links(self) -> Sequence[Link]: ...

    def backend(self, name: str) -> tuple[str, Backend]: ...

    def ends(self, backend: str) -> Sequence[str]: ...

    def route(self, i: int, j: int, backend: str) -> Route: ...

    def path(self, i: int, j: int, backend: str) -> Path: ...


class MessagePrice(NamedTuple):
    """Seconds before the bytes of a message flow, and the highest rate that a message of this size reaches alone."""

    latency_s: float
    rate_bytes_per_s: float
    extrapolated: bool


class MessagePrices(NamedTuple):
    """The fields of :class:`MessagePrice` for n messages, as arrays [n]."""

    latency_s: Floats
    rate_bytes_per_s: Floats
    extrapolated: NDArray[np.bool_]


def price_message(machine: PlacedRanks, i: int, j: int, nbytes: float, backend: str = "default") -> MessagePrice:
    """Return the price of one message of ``nbytes`` from rank i to rank j, without other traffic on its links."""
    _, library = machine.backend(backend)
    route = machine.route(i, j, backend)
    rate = _library_rate(library)
    if library.message.efficiency is not None:
        rate *= library.message.efficiency.at(nbytes)
    limits = [rate.range for link in route.types for rate in link.rates]
    if library.message.bandwidth is not None:
        limits.append(library.message.bandwidth.range)
    extrapolated = any(outside(limit, nbytes) for limit in limits)
    return MessagePrice(
        route.latency_s + library.message.floor.value, min(rate, route.message_rate(nbytes)), extrapolated
    )


def price_messages(
    machine: PlacedRanks, source: Sequence[int] | Ints, target: Sequence[int] | Ints, nbytes: Floats, backend: str
) -> MessagePrices:
    """The prices of n messages: message k has ``nbytes[k]`` bytes and goes from ``source[k]`` to ``target[k]``."""
    _, library = machine.backend(backend)
    message = library.message
    rate = np.full(len(nbytes), _library_rate(library))
    extrapolated = np.zeros(len(nbytes), dtype=np.bool_)
    if message.bandwidth is not None:
        extrapolated |= outside(message.bandwidth.range, nbytes)
    if message.efficiency is not None:
        rate = rate * _at(message.efficiency, nbytes)
    which, routes = end_pairs(machine, np.asarray(source), np.asarray(target), backend)
    latency = np.array([route.latency_s for route in routes])[which]
    alike: dict[tuple[tuple[int, ...], ...], list[int]] = {}
    for number, route in enumerate(routes):
        alike.setdefault(tuple(tuple(map(id, copy)) for copy in route.copies), []).append(number)
    for numbers in alike.values():
        route = routes[numbers[0]]
        positions = np.flatnonzero(np.isin(which, numbers))
        sizes = nbytes[positions]
        rate[positions] = np.minimum(rate[positions], _route_rate(route, sizes))
        for link in {id(link): link for link in route.types}.values():
            for limit in link.rates:
                extrapolated[positions] |= outside(limit.range, sizes)
    return MessagePrices(latency + message.floor.value, rate, extrapolated)


def end_pairs(machine: PlacedRanks, source: Ints, target: Ints, backend: str) -> tuple[Ints, list[Route]]:
    """Return (positions [n], routes): message k uses ``routes[positions[k]]``. Messages between the same two devices,
    or the same two host memories, share a route."""
    first: dict[str, int] = {}
    alike = np.array([first.setdefault(end, rank) for rank, end in enumerate(machine.ends(backend))])
    found, which = np.unique(alike[source] * len(alike) + alike[target], return_inverse=True)
    pairs = [divmod(pair, len(alike)) for pair in found.tolist()]
    return which, [machine.route(i, j, backend) for i, j in pairs]


def outside(limits: tuple[float, float] | None, nbytes: Any) -> Any:
    """Return whether each size, a number or an array, is outside the measured range; False if no range is stated."""
    return False if limits is None else (nbytes < limits[0]) | (nbytes > limits[1])


def _library_rate(library: Backend) -> float:
    """Highest rate of a message that the library allows, before its efficiency at a size is applied."""
    rate = inf if library.message.bandwidth is None else library.message.bandwidth.value
    return rate if library.ports is None else min(rate, library.ports.send.value, library.ports.receive.value)


def _route_rate(route: Route, nbytes: Floats) -> Floats:
    """Vectorized :meth:`Route.message_rate`."""
    rates = [np.full(len(nbytes), np.inf) for _ in route.copies]
    for rate, copy in zip(rates, route.copies, strict=True):
        for link in {id(link): link for link in copy}.values():
            np.minimum(rate, _link_rate(link, nbytes), out=rate)
    return rates[0] if len(rates) == 1 else np.reciprocal(np.sum([1.0 / rate for rate in rates], axis=0))


def _link_rate(link: LinkType, nbytes: Floats) -> Floats:
    """Vectorized :meth:`LinkType.message_rate`."""
    rate = min(limit.value for limit in link.rates)
    rates = np.full(len(nbytes), rate) if link.efficiency is None else rate * _at(link.efficiency, nbytes)
    if link.burst is not None:
        waits = nbytes > link.burst.value
        rates[~waits] = np.inf
        rates[waits] *= nbytes[waits] / (nbytes[waits] - link.burst.value)
    return rates


def _at(points: Points, nbytes: Floats) -> Floats:
    """Vectorized :meth:`Points.at`."""
    sizes = np.log1p([point.size for point in points.points])
    return np.interp(np.log1p(nbytes), sizes, [point.share for point in points.points])
