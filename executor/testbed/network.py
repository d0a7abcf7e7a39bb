"""Network namespaces, the links between them and their rates, through ``ip`` and ``tc``.

Everything lies inside namespaces of the testbed's own, also the switch: nothing is made in the machine's own network,
and removing the namespaces removes all of it.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from executor.testbed.declaration import MTU_BYTES, Declaration
from executor.testbed.places import INTERFACE, LOOPBACK, HostPlace, switch_of
from executor.testbed.queues import CHILD, DISCIPLINE, PARENT, QUEUES, SHAPER, fair_queues, spreading
from simgnn.errors import BackendError, ConfigError

NAMESPACES = Path("/run/netns")
"""Where iproute2 keeps named namespaces."""
BRIDGE = "bridge"
BUCKET = "tbf"
"""The shaper: a token bucket. What lies in it is the queue: nothing that is listed is one line for all."""
QUEUE_BYTES = 16 << 20
"""Room behind a shaper: more than a socket holds unsent, so that packets wait and none is dropped."""
SAID_TWICE = ("burst_raw", "lat")
"""Of a shaper: its burst, and its limit, in other units."""
PREFIX_LENGTH = 24
TICK_S = 64e-9
BURST_TOLD_S = 1.1e-6
"""``tc`` tells a burst rounded down to a microsecond of the rate."""


def require_tools() -> None:
    """:class:`ConfigError` without root or iproute2."""
    if os.geteuid() != 0:
        raise ConfigError(
            "testbed: got a user without root, expected root: network namespaces and quotas need it; start it with sudo"
        )
    absent = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if absent:
        raise ConfigError(f"testbed: {' and '.join(absent)} not found; install iproute2 (apt install iproute2)")


def call(*words: str, given: str = "") -> str:
    """Run ``ip`` or ``tc`` and hand it ``given``; what it printed. Ctrl-C does not reach it: each call is done whole or
    not at all."""
    done = subprocess.run(words, input=given, capture_output=True, text=True, start_new_session=True)
    if done.returncode:
        said = done.stderr.strip() or f"exit status {done.returncode}"
        if "not permitted" in said:
            raise ConfigError(
                f"testbed: '{' '.join(words)}': {said}; expected a root that may make network namespaces "
                "(in a container: privileged)"
            )
        raise BackendError(f"testbed: '{' '.join(words)}': {said}")
    return done.stdout


def exists(namespace: str) -> bool:
    """Whether a namespace of this name is there."""
    return (NAMESPACES / namespace).exists()


def processes(namespace: str) -> set[int]:
    """Process ids inside a namespace."""
    return {int(word) for word in call("ip", "netns", "pids", namespace).split()} if exists(namespace) else set()


def make_namespace(namespace: str) -> None:
    """A namespace with its loopback up."""
    call("ip", "netns", "add", namespace)
    call("ip", "-n", namespace, "link", "set", LOOPBACK, "up")


def remove_namespace(namespace: str) -> None:
    """Remove a namespace with all that is in it; one that is not there is fine."""
    if exists(namespace):
        call("ip", "netns", "del", namespace)


def namespaces_of(declared: Declaration, hosts: Sequence[HostPlace]) -> list[str]:
    """All that a testbed has: one a host, and one for the switch of more than two."""
    return [host.namespace for host in hosts] + ([switch_of(declared.name)] if len(hosts) > 2 else [])


def shapers(declared: Declaration, hosts: Sequence[HostPlace]) -> list[tuple[str, str]]:
    """(namespace, interface) of everything that sends at the declared rate."""
    if len(hosts) < 2:
        return []
    ends = [(host.namespace, INTERFACE) for host in hosts]
    return ends + ([(switch_of(declared.name), _port(host)) for host in hosts] if len(hosts) > 2 else [])


def connect(declared: Declaration, hosts: Sequence[HostPlace]) -> None:
    """Join hosts: two by one pair of interfaces, more by a bridge; every sending end is shaped."""
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
    """Hosts' interfaces through which others are not reached as they were when made, and ports of the switch that are
    not part of it, for people."""
    wrong = [f"{name} in {host.namespace}" for host in hosts for name in _disconnected(host, hosts)]
    if len(hosts) > 2:
        switch = switch_of(declared.name)
        wrong += [f"{name} in {switch}" for name in _unswitched(switch, hosts)]
    return wrong


def _disconnected(host: HostPlace, hosts: Sequence[HostPlace]) -> list[str]:
    try:
        links = {link["ifname"]: link for link in _told(host.namespace, "addr", "show")}
        wrong = [name for name in dict.fromkeys((LOOPBACK, host.interface)) if not _is_up(links[name])]
        return wrong or ([] if host.address is None or _reaches(host, links[host.interface], hosts) else [INTERFACE])
    except (BackendError, ValueError, LookupError):  # nothing there, or something else
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
    """The bridge and its ports, as far as they are not up, or no part of it."""
    masters = {BRIDGE: None} | {_port(host): BRIDGE for host in hosts}
    try:
        links = {link["ifname"]: link for link in _told(switch, "link", "show")}
    except (BackendError, ValueError, LookupError):  # nothing there, or something else
        links = {}
    return [
        name
        for name, master in masters.items()
        if name not in links or not _is_up(links[name]) or links[name].get("master") != master
    ]


def _told(namespace: str, *words: str) -> list[dict[str, Any]]:
    """What ``ip`` tells, leaving out the empty entries that it makes of what it does not show."""
    return [entry for entry in json.loads(call("ip", "-j", "-n", namespace, *words)) if entry]


def _is_up(link: Mapping[str, Any]) -> bool:
    """Whether it is on, and so is the other end. (A bridge sees its ports go on a second later than they do.)"""
    return "UP" in link["flags"] and (link["ifname"] == BRIDGE or "LOWER_UP" in link["flags"])


def unshaped(declared: Declaration, hosts: Sequence[HostPlace]) -> list[str]:
    """What does not send at the declared rate and from the declared queue (or is not there), for people."""
    return [
        f"{interface} in {namespace}"
        for namespace, interface in shapers(declared, hosts)
        if not _is_shaped(declared, namespace, interface)
    ]


def _is_shaped(declared: Declaration, namespace: str, interface: str) -> bool:
    try:
        found = json.loads(call("tc", "-j", "-r", "-n", namespace, "qdisc", "show", "dev", interface))
        shaper, *inside = sorted(found, key=lambda entry: not entry.get("root", False))
        told = {key: value for key, value in shaper["options"].items() if key not in SAID_TWICE}
        burst, rate = told.pop("burst"), round(declared.link or 0.0)
        # whatever else it tells limits the link too, such as a rate of peaks
        if shaper["kind"] != BUCKET or told != {"rate": rate, "limit": QUEUE_BYTES}:
            return False
        if not _is_declared_burst(burst, declared):
            return False
        queues = [(entry["kind"], entry["handle"], entry.get("parent")) for entry in inside]
        if declared.queue == "fifo":
            return not queues
        return queues == [(DISCIPLINE, CHILD, PARENT)] and _takes_turns(namespace, interface)
    except (BackendError, ValueError, KeyError):  # nothing there, or something else
        return False


def _is_declared_burst(told: float, declared: Declaration) -> bool:
    """Whether ``tc`` tells this of the declared burst: the time that it takes, in 32 bits of ticks, times the rate, in
    whole bytes. The kernel itself keeps all of them."""
    rate = round(declared.link or 0.0)
    wrap = 2**32 * TICK_S * rate
    apart = abs(told - round(declared.burst_bytes()) % wrap)
    return min(apart, wrap - apart) <= BURST_TOLD_S * rate + 1


def _takes_turns(namespace: str, interface: str) -> bool:
    """Whether all queues of connections are there and alike, and what spreads connections over them."""
    told = call("tc", "-n", namespace, "class", "show", "dev", interface)
    classes = [line.split(maxsplit=3) for line in told.splitlines()]
    queues = [words[3] for words in classes if words[1] == DISCIPLINE and words[2].startswith(CHILD)]
    filters = call("tc", "-n", namespace, "filter", "show", "dev", interface, "parent", CHILD)
    return len(queues) == QUEUES and len(set(queues)) == 1 and f"bytecode '{spreading()}'" in filters


def _port(host: HostPlace) -> str:
    return f"host{host.number}"


def _pair(one: str, first: str, other: str, second: str) -> None:
    """Two joined interfaces, each made inside its namespace; up, without IPv6, of a known packet size; each queue of
    theirs has the room of the shaper's."""
    size = ("mtu", str(MTU_BYTES), "txqueuelen", str(QUEUE_BYTES // MTU_BYTES))
    call(
        *("ip", "link", "add", first, "netns", one, *size, "type", "veth"),
        *("peer", "name", second, "netns", other, *size),
    )
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
                f"{error}; queues of connections need the kernel's sch_htb and cls_bpf, which queue = 'fifo' does not"
            ) from None
