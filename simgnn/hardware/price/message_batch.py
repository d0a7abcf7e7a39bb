"""Prices of many messages at once: the arithmetic of :func:`simgnn.hardware.price.communication.price_message` on
arrays."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simgnn.hardware.profile.links import LinkType
from simgnn.hardware.profile.quantities import Points
from simgnn.hardware.topology.routes import Route

if TYPE_CHECKING:
    from simgnn.hardware.price.machine import Machine

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class MessagePrices(NamedTuple):
    """Of n messages: seconds before the bytes flow, and the most that each flow reaches alone; arrays [n]."""

    latency_s: Floats
    rate_bytes_per_s: Floats
    extrapolated: NDArray[np.bool_]


def price_messages(
    machine: "Machine", source: Sequence[int] | Ints, target: Sequence[int] | Ints, nbytes: Floats, backend: str
) -> MessagePrices:
    """Message k goes from rank ``source[k]`` to rank ``target[k]`` and has ``nbytes[k]`` bytes."""
    _, described = machine.backend(backend)
    rate = np.full(len(nbytes), np.inf)
    outside = np.zeros(len(nbytes), dtype=np.bool_)
    if described.message.bandwidth is not None:
        rate[:] = described.message.bandwidth.value
        outside |= _outside(described.message.bandwidth.range, nbytes)
    if described.ports is not None:
        rate = np.minimum(rate, min(described.ports.send.value, described.ports.receive.value))
    if described.message.efficiency is not None:
        rate = rate * _at(described.message.efficiency, nbytes)
    which, routes = end_pairs(machine, np.asarray(source), np.asarray(target), backend)
    latency = np.array([route.latency_s for route in routes])[which]
    alike: dict[tuple[tuple[int, ...], ...], tuple[Route, list[int]]] = {}
    for number, route in enumerate(routes):
        alike.setdefault(tuple(tuple(map(id, copy)) for copy in route.copies), (route, []))[1].append(number)
    for route, numbers in alike.values():
        positions = np.flatnonzero(np.isin(which, numbers))
        sizes = nbytes[positions]
        rate[positions] = np.minimum(rate[positions], _route_rate(route, sizes))
        for link in {id(link): link for link in route.types}.values():
            for limit in link.rates:
                outside[positions] |= _outside(limit.range, sizes)
    return MessagePrices(latency + described.message.floor.value, rate, outside)


def end_pairs(machine: "Machine", source: Ints, target: Ints, backend: str) -> tuple[Ints, list[Route]]:
    """The route of each message, by its position in the routes that follow: messages between the same two devices, or
    memories of hosts, take one."""
    ends = machine.ends(backend)
    names = list(dict.fromkeys(ends))
    place = {name: number for number, name in enumerate(names)}
    end = np.array([place[name] for name in ends], dtype=np.int64)
    found, which = np.unique(end[source] * len(names) + end[target], return_inverse=True)
    pairs = [divmod(pair, len(names)) for pair in found.tolist()]
    return which, [machine.network.route(names[one], names[other]) for one, other in pairs]


def _route_rate(route: Route, nbytes: Floats) -> Floats:
    """See :meth:`Route.message_rate`."""
    rates = [np.full(len(nbytes), np.inf) for _ in route.copies]
    for rate, copy in zip(rates, route.copies, strict=True):
        for link in {id(link): link for link in copy}.values():
            np.minimum(rate, _link_rate(link, nbytes), out=rate)
    return rates[0] if len(rates) == 1 else np.reciprocal(np.sum([1.0 / rate for rate in rates], axis=0))


def _link_rate(link: LinkType, nbytes: Floats) -> Floats:
    rate = link.bandwidth.value
    if link.message_bandwidth is not None:
        rate = min(rate, link.message_bandwidth.value)
    rates = np.full(len(nbytes), rate) if link.efficiency is None else rate * _at(link.efficiency, nbytes)
    if link.burst is not None:
        waits = nbytes > link.burst.value
        rates[~waits] = np.inf
        rates[waits] *= nbytes[waits] / (nbytes[waits] - link.burst.value)
    return rates


def _at(points: Points, nbytes: Floats) -> Floats:
    sizes = np.log1p([point.size for point in points.points])
    return np.interp(np.log1p(nbytes), sizes, [point.share for point in points.points])


def _outside(limits: tuple[float, float] | None, nbytes: Floats) -> NDArray[np.bool_]:
    if limits is None:
        return np.zeros(len(nbytes), dtype=np.bool_)
    return (nbytes < limits[0]) | (nbytes > limits[1])
