"""The network of a profile laid out: every single link, and the route between any two devices."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from simgnn.errors import HardwareError
from simgnn.hardware.links import LinkType
from simgnn.hardware.topology import expand_edges

if TYPE_CHECKING:
    import networkx as nx

    from simgnn.hardware.profile import Profile

FEMTOSECOND = 1e-15


@dataclass(frozen=True, slots=True)
class Link:
    """Something that flows share: its capacity in bytes per second. A full-duplex link is two, one each way."""

    name: str
    capacity_bytes_per_s: float
    kind: str


@dataclass(frozen=True, slots=True)
class Route:
    """The way from one device to another: positions in ``Network.links``, their types, and the latency of them all."""

    links: tuple[int, ...]
    types: tuple[LinkType, ...]
    latency_s: float

    @property
    def bandwidth(self) -> float:
        """Bytes per second of its narrowest link."""
        return min(link.bandwidth.value for link in self.types)


@dataclass(frozen=True, eq=False)
class Network:
    """All links of a profile, and the directed graph that they make (edge attributes ``link`` and ``type``)."""

    links: tuple[Link, ...]
    graph: "nx.DiGraph[str]"
    loops: dict[str, tuple[int, LinkType]]

    @cached_property
    def _routes(self) -> dict[tuple[str, str], Route]:
        return {}

    @cached_property
    def _before(self) -> dict[str, dict[str, list[str]]]:
        return {}

    def route(self, source: str, target: str) -> Route:
        """The route of least latency; among equals of fewest hops, then widest, then first by name. Cached.

        From a device to itself: the link that it has with itself. Raises :class:`HardwareError` when there is none.
        """
        key = source, target
        if key not in self._routes:
            self._routes[key] = self._loop(source) if source == target else self._search(source, target)
        return self._routes[key]

    def _loop(self, device: str) -> Route:
        if device not in self.loops:
            raise HardwareError(
                f"topology: '{device}' has no link to itself, so two ranks on it cannot talk; expected an edge "
                f"between = ['{device.rpartition('/')[2]}', '{device.rpartition('/')[2]}'], or ranks on other devices"
            )
        position, link = self.loops[device]
        return Route((position,), (link,), link.latency.value)

    def _search(self, source: str, target: str) -> Route:
        import networkx as nx

        if source not in self._before:
            before, _ = nx.dijkstra_predecessor_and_distance(self.graph, source, weight="weight")
            self._before[source] = before
        before = self._before[source]
        if target not in before:
            raise HardwareError(f"topology: no route from '{source}' to '{target}'; expected a chain of links")
        links: list[int] = []
        types: list[LinkType] = []
        here = target
        while here != source:
            earlier = min(before[here], key=lambda node: (-self.graph[node][here]["type"].bandwidth.value, node))
            links.append(self.graph[earlier][here]["link"])
            types.append(self.graph[earlier][here]["type"])
            here = earlier
        return Route(tuple(links[::-1]), tuple(types[::-1]), sum(link.latency.value for link in types))


def lay_out(profile: "Profile") -> Network:
    """The network of a profile. A half-duplex link is one object for both directions."""
    import networkx as nx

    links: list[Link] = []
    loops: dict[str, tuple[int, LinkType]] = {}
    graph: nx.DiGraph[str] = nx.DiGraph()

    def add(name: str, link: LinkType) -> int:
        links.append(Link(name, link.bandwidth.value, link.kind))
        return len(links) - 1

    edges = sorted((one, other, name) for one, other, name, _ in expand_edges(profile.topology))
    nodes = len(edges) + 1
    for one, other, name in edges:
        link = profile.links[name]
        if one == other:
            loops[one] = add(one, link), link
            continue
        # whole femtoseconds compare exactly; a hop is less than any latency's last digit
        weight = round(link.latency.value / FEMTOSECOND) * nodes + 1
        forward = add(f"{one} -> {other}" if link.duplex == "full" else f"{one} -- {other}", link)
        backward = add(f"{other} -> {one}", link) if link.duplex == "full" else forward
        graph.add_edge(one, other, link=forward, type=link, weight=weight)
        graph.add_edge(other, one, link=backward, type=link, weight=weight)
    return Network(tuple(links), graph, loops)
