"""A machine with other numbers in its profile: the same ranks on the same devices, with messages on the same routes."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from simgnn.hardware.price.machine import Machine
from simgnn.hardware.profile.communication import LinkType
from simgnn.hardware.profile.profile import Profile
from simgnn.hardware.topology.routes import Network, Route


@dataclass(frozen=True, eq=False)
class RatedNetwork(Network):
    """The routes of ``base`` over link types with other numbers: ``types`` maps the id of each type to the new one."""

    base: Network = field(kw_only=True)
    types: Mapping[int, LinkType] = field(kw_only=True)

    def route(self, source: str, target: str) -> Route:
        return self._rated(self.base.route(source, target))

    def way(self, source: str, target: str) -> Route:
        return self._rated(self.base.way(source, target))

    def host_memory(self, device: str) -> str:
        return self.base.host_memory(device)

    def _rated(self, route: Route) -> Route:
        copies = tuple(tuple(self.types[id(link)] for link in copy) for copy in route.copies)
        return Route(route.links, copies, sum(link.latency.value for copy in copies for link in copy))


def with_numbers(machine: Machine, profile: Profile) -> Machine:
    """Return a placed machine whose prices have the numbers of ``profile``, which differs in numbers only, not in
    topology or cores. Only for prices: it cannot be simulated, as loads of links are those of the machine."""
    before, network = machine.profile, machine.network
    if profile.links is before.links and profile.backends is before.backends:
        return replace(machine, profile=profile)
    types = {id(link): profile.links[name] for name, link in before.links.items()}
    links = list(machine.links)
    for position in range(len(network.links)):
        kind = profile.links[links[position].key]
        burst = 0.0 if kind.burst is None else kind.burst.value
        rate = kind.bandwidth.value
        links[position] = replace(links[position], capacity_bytes_per_s=rate, burst_bytes=burst)
    rated = RatedNetwork(
        tuple(links[: len(network.links)]),
        network.graph,
        network.loops,
        network.staged,
        network.kinds,
        base=network,
        types=types,
    )
    for name, backend in profile.backends.items():
        if backend.ports is not None:
            first, rates = machine.ports[name], (backend.ports.send.value, backend.ports.receive.value)
            for place in range(2 * machine.ranks):
                links[first + place] = replace(links[first + place], capacity_bytes_per_s=rates[place % 2])
    return replace(machine, profile=profile, network=rated, links=tuple(links))
