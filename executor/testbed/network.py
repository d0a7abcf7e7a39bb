"""Makes network namespaces, links between them, their rates and queues, through ``ip`` and ``tc``.

Everything, including the switch, is inside the testbed's own namespaces: nothing is made in the machine's network, and
removing the namespaces removes everything.

Each connection has its own queue in front of a link, served packet by packet in turn. fq_codel, which most Linux
distributions put before their network cards, does the same; this uses HTB and a classic BPF program, which kernels
without fq_codel also have. In one queue for all, a small message waits behind everything that senders of large ones
have queued. That amount depends on TCP's congestion control, so on the machine that the testbed runs on.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from executor.testbed.declaration import INTERFACE, LOOPBACK, MTU_BYTES, Declaration, HostPlace, switch_of
from simgnn.errors import BackendError, ConfigError

NAMESPACES = Path("/run/netns")
"""Folder in which iproute2 keeps named namespaces."""
BRIDGE = "bridge"
BUCKET = "tbf"
"""The shaper, a token bucket, which is itself one queue for all packets."""
QUEUE_BYTES = 16 << 20
"""Room behind a shaper: more than a socket holds unsent, so that packets wait and none is dropped."""
SAID_TWICE = ("burst_raw", "lat")
"""Options of a shaper that ``tc`` repeats in other units: its burst and its limit."""
PREFIX_LENGTH = 24
TICK_S = 64e-9
BURST_TOLD_S = 1.1e-6
"""Precision of a burst that ``tc`` shows: it is rounded down to a microsecond of the rate."""
DISCIPLINE, FILTER = "htb", "bpf"
SHAPER, PARENT, CHILD = "1:", "1:1", "10:"
"""Handles: of the shaper, of its inner class, where packets come one by one, and of the discipline there."""
QUEUES = 1024
"""Number of queues, a power of two. Ports select a connection's queue; connections in one queue share its turn."""
PACKET_BYTES = 1514
"""Bytes that a queue sends in one turn."""
BURST_BYTES = 1 << 16
HEADROOM = 16
"""Rate of each queue in HTB, in multiples of the link's rate: so high that queues only take turns."""
SOURCE_PORT, TARGET_PORT = 34, 36
"""Byte offsets of ports in a frame, behind the headers of Ethernet (14) and of IPv4 without options (20)."""


def require_tools() -> None:
    """Raise :class:`ConfigError` without root or iproute2."""
    if os.geteuid() != 0:
        raise ConfigError(
            "testbed: got a user without root, expected root: network namespaces and quotas need it; start it with sudo"
        )
    absent = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if absent:
        raise ConfigError(f"testbed: {' and '.join(absent)} not found; install iproute2 (apt install iproute2)")


def call(*words: str, given: str = "") -> str:
    """Run ``ip`` or ``tc`` with ``given`` as input; return the output. Ctrl-C does not interrupt the command."""
    done = subprocess.run(words, input=given, capture_output=True, text=True, start_new_session=True)
    if done.returncode == 0:
        return done.stdout
    said = f"testbed: '{' '.join(words)}': {done.stderr.strip() or f'exit status {done.returncode}'}"
    if "not permitted" in said:
        raise ConfigError(f"{said}; expected a root that may make network namespaces (in a container: privileged)")
    raise BackendError(said)


def exists(namespace: str) -> bool:
    return (NAMESPACES / namespace).exists()


def processes(namespace: str) -> set[int]:
    return {int(word) for word in call("ip", "netns", "pids", namespace).split()} if exists(namespace) else set()


def make_namespace(namespace: str) -> None:
    """Make a namespace with its loopback up."""
    call("ip", "netns", "add", namespace)
    call("ip", "-n", namespace, "link", "set", LOOPBACK, "up")


def remove_namespace(namespace: str) -> None:
    if exists(namespace):
        call("ip", "netns", "del", namespace)


def shapers(declared: Declaration, hosts: Sequence[HostPlace]) -> list[tuple[str, str]]:
    """Return (namespace, interface) of everything that sends at the declared rate."""
    if len(hosts) < 2:
        return []
    ends = [(host.namespace, INTERFACE) for host in hosts]
    return ends + ([(switch_of(declared.name), _port(host)) for host in hosts] if len(hosts) > 2 else [])


def connect(declared: Declaration, hosts: Sequence[HostPlace]) -> None:
    """Connect hosts: two by one pair of interfaces, more by a bridge. Every sending interface is shaped."""
    if len(hosts) < 2:
        return
    if len(hosts) == 2:
        _pair(hosts[0].namespace, INTERFACE, hosts[1].namespace, INTERFACE)
    else:
        switch = switch_of(declared.name)
        call("ip", "-n", switch, "link", "add", BRIDGE, "type", "bridge", "stp_state", "0", "mcast_snooping", "0")
        call("ip", "-n", switch, "link", "set", BRIDGE, "up")
        for host in hosts:
            _pair(host.namespace, INTERFACE, switch, _port(host))
            call("ip", "-n", switch, "link", "set", _port(host), "master", BRIDGE)
    for host in hosts:
        call("ip", "-n", host.namespace, "addr", "add", f"{host.address}/{PREFIX_LENGTH}", "dev", INTERFACE)
    for namespace, interface in shapers(declared, hosts):
        _shape(declared, namespace, interface)


def unconnected(declared: Declaration, hosts: Sequence[HostPlace]) -> list[str]:
    """List as "INTERFACE in NAMESPACE" the interfaces of hosts that no longer reach all others, and those of the switch
    that are no longer part of it."""
    wrong = [f"{name} in {host.namespace}" for host in hosts for name in _disconnected(host, hosts)]
    if len(hosts) > 2:
        switch = switch_of(declared.name)
        wrong += [f"{name} in {switch}" for name in _unswitched(switch, hosts)]
    return wrong


def _disconnected(host: HostPlace, hosts: Sequence[HostPlace]) -> list[str]:
    try:
        links = _links(host.namespace, "addr")
        wrong = [name for name in dict.fromkeys((LOOPBACK, host.interface)) if not _is_up(links[name])]
        return wrong or ([] if host.address is None or _reaches(host, links[host.interface], hosts) else [INTERFACE])
    except (BackendError, ValueError, LookupError):  # it is gone, or something else has its name
        return [host.interface]


def _reaches(host: HostPlace, link: Mapping[str, Any], hosts: Sequence[HostPlace]) -> bool:
    addresses = [(entry["local"], entry["prefixlen"]) for entry in link["addr_info"] if entry["family"] == "inet"]
    if addresses != [(host.address, PREFIX_LENGTH)] or link["mtu"] != MTU_BYTES:
        return False
    asked = "".join(f"route get {other.address}\n" for other in hosts if other is not host)
    ways = call("ip", "-j", "-n", host.namespace, "-batch", "-", given=asked)  # it fails where one leads nowhere
    routes = [json.loads(line)[0] for line in ways.splitlines()]
    return all((route["dev"], route.get("gateway")) == (host.interface, None) for route in routes)


def _unswitched(switch: str, hosts: Sequence[HostPlace]) -> list[str]:
    """List the bridge and ports that are down, or not part of the bridge."""
    masters = {BRIDGE: None} | {_port(host): BRIDGE for host in hosts}
    try:
        links = _links(switch, "link")
    except (BackendError, ValueError, LookupError):  # it is gone, or something else has its name
        links = {}
    return [
        name
        for name, master in masters.items()
        if name not in links or not _is_up(links[name]) or links[name].get("master") != master
    ]


def _links(namespace: str, what: str) -> dict[str, dict[str, Any]]:
    """Return what ``ip`` shows, by interface, without the empty entries that it prints for other interfaces."""
    shown = json.loads(call("ip", "-j", "-n", namespace, what, "show"))
    return {entry["ifname"]: entry for entry in shown if entry}


def _is_up(link: Mapping[str, Any]) -> bool:
    """Return whether an interface and its other end are up. (A bridge sees its ports go up a second late.)"""
    return "UP" in link["flags"] and (link["ifname"] == BRIDGE or "LOWER_UP" in link["flags"])


def unshaped(declared: Declaration, hosts: Sequence[HostPlace]) -> list[str]:
    """List link ends, as "INTERFACE in NAMESPACE", that do not send at the declared rate from the declared queue."""
    return [
        f"{interface} in {namespace}"
        for namespace, interface in shapers(declared, hosts)
        if not _is_shaped(declared, namespace, interface)
    ]


def _is_shaped(declared: Declaration, namespace: str, interface: str) -> bool:
    try:
        found = json.loads(call("tc", "-j", "-r", "-n", namespace, "qdisc", "show", "dev", interface))
        shaper, *inside = sorted(found, key=lambda entry: not entry.get("root", False))
        options = {key: value for key, value in shaper["options"].items() if key not in SAID_TWICE}
        burst, rate = options.pop("burst"), round(declared.link or 0.0)
        # any other option limits the link too, such as a peak rate
        if shaper["kind"] != BUCKET or options != {"rate": rate, "limit": QUEUE_BYTES}:
            return False
        if not _is_declared_burst(burst, declared):
            return False
        queues = [(entry["kind"], entry["handle"], entry.get("parent")) for entry in inside]
        if declared.queue == "fifo":
            return not queues
        return queues == [(DISCIPLINE, CHILD, PARENT)] and _takes_turns(namespace, interface)
    except (BackendError, ValueError, KeyError):  # it is gone, or something else has its name
        return False


def _is_declared_burst(told: float, declared: Declaration) -> bool:
    """Return whether ``told``, the burst in bytes that ``tc`` prints, is the declared one. ``tc`` computes it from the
    burst's time in 32 bits of ticks, so a large one wraps around there; the kernel itself uses all of it."""
    rate = round(declared.link or 0.0)
    wrap = 2**32 * TICK_S * rate
    apart = abs(told - round(declared.burst_bytes()) % wrap)
    return min(apart, wrap - apart) <= BURST_TOLD_S * rate + 1


def _takes_turns(namespace: str, interface: str) -> bool:
    """Return whether all queues of connections exist and are alike, and the filter spreads connections over them."""
    shown = call("tc", "-n", namespace, "class", "show", "dev", interface)
    classes = [line.split(maxsplit=3) for line in shown.splitlines()]
    queues = [words[3] for words in classes if words[1] == DISCIPLINE and words[2].startswith(CHILD)]
    filters = call("tc", "-n", namespace, "filter", "show", "dev", interface, "parent", CHILD)
    return len(queues) == QUEUES and len(set(queues)) == 1 and f"bytecode '{_spreading()}'" in filters


def _port(host: HostPlace) -> str:
    return f"host{host.number}"


def _pair(one: str, first: str, other: str, second: str) -> None:
    """Make two joined interfaces, each inside its namespace: up, without IPv6, with queues as large as the shaper's."""
    size = ("mtu", str(MTU_BYTES), "txqueuelen", str(QUEUE_BYTES // MTU_BYTES))
    peer = ("peer", "name", second, "netns", other, *size)
    call("ip", "link", "add", first, "netns", one, *size, "type", "veth", *peer)
    for namespace, interface in ((one, first), (other, second)):
        call("ip", "-n", namespace, "link", "set", interface, "addrgenmode", "none")
        call("ip", "-n", namespace, "link", "set", interface, "up")


def _shape(declared: Declaration, namespace: str, interface: str) -> None:
    rate = f"{round((declared.link or 0.0) * 8)}bit"
    bucket = ("rate", rate, "burst", f"{round(declared.burst_bytes())}b", "limit", f"{QUEUE_BYTES}b")
    call("tc", "-n", namespace, "qdisc", "replace", "dev", interface, "root", "handle", SHAPER, BUCKET, *bucket)
    if declared.queue == "fair":
        lines = fair_queues(interface, declared.link or 0.0)
        try:
            call("tc", "-n", namespace, "-batch", "-", given="\n".join(lines))
        except BackendError as error:
            raise BackendError(
                f"{error}; queue = 'fair' needs the kernel's sch_htb and cls_bpf; without them use queue = 'fifo'"
            ) from None


def fair_queues(interface: str, bytes_per_s: float) -> list[str]:
    """Return lines for ``tc -batch`` that add fair queues to a shaper of this rate with the handle ``SHAPER``."""
    limit = f"{round(bytes_per_s * 8 * HEADROOM)}bit"
    classes = [
        f"class add dev {interface} parent {CHILD} classid {CHILD}{number:x} {DISCIPLINE} rate {limit} "
        f"quantum {PACKET_BYTES} burst {BURST_BYTES} cburst {BURST_BYTES}"
        for number in range(1, QUEUES + 1)
    ]
    return [
        f"qdisc add dev {interface} parent {PARENT} handle {CHILD} {DISCIPLINE} default 1",
        *classes,
        f"filter add dev {interface} parent {CHILD} protocol all prio 1 {FILTER} bytecode '{_spreading()}'",
    ]


def _spreading() -> str:
    """Return a BPF program that computes the class of a packet: the first + ((source port XOR target port) / 2) mod
    ``QUEUES``. Linux gives the connections to one port source ports that are all odd, or all even."""
    first = (int(CHILD.rstrip(":"), 16) << 16) + 1
    load, keep, exclusive_or, halve, mask, add, done = 40, 7, 172, 116, 84, 4, 22
    ports = [(load, SOURCE_PORT), (keep, 0), (load, TARGET_PORT), (exclusive_or, 0)]
    code = [*ports, (halve, 1), (mask, QUEUES - 1), (add, first), (done, 0)]
    return ",".join([str(len(code)), *(f"{operation} 0 0 {operand}" for operation, operand in code)])
