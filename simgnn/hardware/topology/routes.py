"""The network of a profile: every single link, and the route between any two devices."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from math import inf
from typing import TYPE_CHECKING

from simgnn.errors import HardwareError
from simgnn.hardware.profile.communication import LinkType, Load
from simgnn.hardware.topology.topology import expand_edges, node_kinds

if TYPE_CHECKING:
    import networkx as nx

    from simgnn.hardware.profile.profile import Profile

FEMTOSECOND = 1e-15
MEMORY_KINDS = ("memory", "socket", "pcie-switch")
"""Kinds of nodes that can stand for host memory: the first of these kinds that a device reaches is used."""


@dataclass(frozen=True, slots=True)
class Link:
    """A resource that flows share: its capacity in bytes per second, and its burst, the bytes that pass at once after a
    pause. A full-duplex link is two of them, one per direction. ``load``: how a full one delays others; ``key``: name
    of its type in the profile (``links.KEY``), empty for a port of a library."""

    name: str
    capacity_bytes_per_s: float
    kind: str
    burst_bytes: float = 0.0
    load: Load | None = None
    key: str = ""


@dataclass(frozen=True, slots=True)
class Route:
    """The route from one device to another: positions in ``Network.links``, and the total latency.

    ``copies``: the link types of each copy of a message. Each copy is complete before the next one begins. There is one
    copy between devices that can access the memory of each other, and on a route :meth:`in_chunks`.
    """

    links: tuple[int, ...]
    copies: tuple[tuple[LinkType, ...], ...]
    latency_s: float

    @property
    def types(self) -> tuple[LinkType, ...]:
        """The types of all links on the route."""
        return tuple(chain(*self.copies))

    def in_chunks(self) -> "Route":
        """Return the route of a message whose copies overlap, as they move it chunk by chunk: one copy over all links.
        Deviation: the first chunk's way through host memory takes no time of its own."""
        return replace(self, copies=(self.types,))

    def message_rate(self, nbytes: float) -> float:
        """Return the bytes per second of one message of this size alone on the route, after a pause; infinite if no
        link limits it. The slowest link decides the time of each copy, and the times of the copies add up."""
        rates = [min((link.message_rate(nbytes) for link in copy), default=inf) for copy in self.copies]
        return rates[0] if len(rates) == 1 else 1.0 / sum(1.0 / rate for rate in rates)


@dataclass(frozen=True, eq=False)
class Network:
    """All links of a profile, and the directed graph of nodes and links (edge attributes ``link`` and ``type``).

    ``loops``: links of devices to themselves. ``staged``: devices without access to the memory of others. ``kinds``:
    kind of every node, from :func:`node_kinds`.
    """

    links: tuple[Link, ...]
    graph: "nx.DiGraph[str]"
    loops: dict[str, tuple[int, LinkType]]
    staged: frozenset[str]
    kinds: Mapping[str, str]
    _routes: dict[tuple[str, str], Route] = field(default_factory=dict, init=False)
    _before: dict[str, tuple[dict[str, list[str]], dict[str, float]]] = field(default_factory=dict, init=False)
    _memories: dict[str, str] = field(default_factory=dict, init=False)

    def route(self, source: str, target: str) -> Route:
        """Return the route with the least latency; among equals: fewest hops, then widest, then first by name. Cached.

        From a device to itself the route is its own link; from a memory to itself it has no links and takes no time. To
        or from a device in ``staged``, the message is copied whole to the host memory of the sender, to that of the
        receiver if it is another host, and to the receiver. Raises :class:`HardwareError` when there is no route.
        """
        key = source, target
        if key not in self._routes:
            if source == target:
                inside = not self.kinds[source].startswith("device:")
                self._routes[key] = Route((), ((),), 0.0) if inside else self._loop(source)
            elif source in self.staged or target in self.staged:
                self._routes[key] = self._copied(source, target)
            else:
                self._routes[key] = self.way(source, target)
        return self._routes[key]

    def host_memory(self, device: str) -> str:
        """The node that stands for a device's host memory: the nearest of the first of MEMORY_KINDS it can reach."""
        if device in self._memories:
            return self._memories[device]
        _, distance = self._reach(device)
        inside = [node for node in distance if node.startswith(_host(device) + "/")]
        for kind in MEMORY_KINDS:
            found = [node for node in inside if self.kinds.get(node) == kind]
            if found:
                return self._memories.setdefault(device, min(found, key=lambda node: (distance[node], node)))
        raise HardwareError(
            f"topology: '{device}' has no link to the memory of its host, so nothing can be copied to or from it. "
            f"Add links to a node of kind {', '.join(MEMORY_KINDS)} in the same host "
            "(or, if only messages need it, set peer_to_peer = true)."
        )

    def memory_link(self, device: str) -> int | None:
        """Position in ``links`` of the widest link that leads into a device's host memory, which all that read or write
        there share; None: the profile has no such memory, apart from the sockets or switches that stand for it."""
        memory = self.host_memory(device)
        if self.kinds.get(memory) != "memory":
            return None
        into = [self.graph[node][memory] for node in sorted(self.graph.predecessors(memory))]
        return int(max(into, key=lambda edge: edge["type"].bandwidth.value)["link"])

    def _copied(self, source: str, target: str) -> Route:
        """Route of copies from memory to memory: a byte crosses all links, and the times of the copies add up."""
        stops = [source]
        if source in self.staged:
            stops.append(self.host_memory(source))
        if target in self.staged and not (source in self.staged and _host(source) == _host(target)):
            stops.append(self.host_memory(target))
        parts = [self.way(one, other) for one, other in pairwise([*stops, target])]
        links = tuple(link for part in parts for link in part.links)
        return Route(links, tuple(part.types for part in parts), sum(part.latency_s for part in parts))

    def _loop(self, device: str) -> Route:
        if device not in self.loops:
            local = device.rpartition("/")[2]
            raise HardwareError(
                f"topology: '{device}' has no link to itself, so ranks on it cannot communicate. Add an edge between "
                f"= ['{local}', '{local}'], place ranks on other devices, or calibrate with several ranks."
            )
        position, link = self.loops[device]
        return Route((position,), ((link,),), link.latency.value)

    def way(self, source: str, target: str) -> Route:
        """Return the nearest route between two nodes of any kind. Raises :class:`HardwareError` when there is none."""
        before, _ = self._reach(source)
        if target not in before:
            raise HardwareError(
                f"topology: no route from '{source}' to '{target}'; expected a chain of links between them"
            )
        links: list[int] = []
        types: list[LinkType] = []
        here = target
        while here != source:
            earlier = min(before[here], key=lambda node: (-self.graph[node][here]["type"].bandwidth.value, node))
            links.append(self.graph[earlier][here]["link"])
            types.append(self.graph[earlier][here]["type"])
            here = earlier
        return Route(tuple(links[::-1]), (tuple(types[::-1]),), sum(link.latency.value for link in types))

    def _reach(self, source: str) -> tuple[dict[str, list[str]], dict[str, float]]:
        """Predecessors of each node on the shortest paths from ``source``, and the distance of each node."""
        # networkx: loaded when a network is laid out
        import networkx as nx

        if source not in self._before:
            self._before[source] = nx.dijkstra_predecessor_and_distance(self.graph, source, weight="weight")
        return self._before[source]


def _host(node: str) -> str:
    return node.rpartition("/")[0]


def lay_out(profile: "Profile") -> Network:
    """Build the network of a profile. A half-duplex link is one object for both directions."""
    # networkx: loaded when a network is laid out
    import networkx as nx

    links: list[Link] = []
    loops: dict[str, tuple[int, LinkType]] = {}
    graph: nx.DiGraph[str] = nx.DiGraph()

    def add(name: str, key: str, link: LinkType) -> int:
        burst = 0.0 if link.burst is None else link.burst.value
        links.append(Link(name, link.bandwidth.value, link.kind, burst, link.load, key))
        return len(links) - 1

    edges = sorted((one, other, name) for one, other, name, _ in expand_edges(profile.topology))
    nodes = len(edges) + 1
    for one, other, name in edges:
        link = profile.links[name]
        if one == other:
            loops[one] = add(one, name, link), link
            continue
        # whole femtoseconds compare exactly; a hop is less than any latency's last digit
        weight = round(link.latency.value / FEMTOSECOND) * nodes + 1
        forward = add(f"{one} -> {other}" if link.duplex == "full" else f"{one} -- {other}", name, link)
        backward = add(f"{other} -> {one}", name, link) if link.duplex == "full" else forward
        graph.add_edge(one, other, link=forward, type=link, weight=weight)
        graph.add_edge(other, one, link=backward, type=link, weight=weight)
    kinds = node_kinds(profile.topology)
    staged_types = {name for name, device in profile.devices.items() if device.staged}
    staged = frozenset(name for name, kind in kinds.items() if kind.partition(":")[2] in staged_types)
    return Network(tuple(links), graph, loops, staged, kinds)
