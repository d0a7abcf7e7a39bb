"""Fit a hardware profile to the samples of one machine, or of a group of ranks on several hosts.

In the fitted network, every host has one link to a common switch. The rate between two hosts is that of the slower
link, and the latencies of both add up. The rate of a link is that of the fastest pair that includes the host. If all
hosts at once were slower than predicted, as behind an oversubscribed switch, all links are slowed down equally.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import combinations

import numpy as np

from simgnn import __version__
from simgnn.analysis.fit.calls import (
    COLLECTIVES,
    Errors,
    beyond,
    collective_errors,
    exchange_entry,
    fit_collective,
    floor_and_rates,
    of_kind,
)
from simgnn.analysis.fit.device import CurveFit, cores_of, describe_host, fit_device, host_name, host_of
from simgnn.analysis.fit.network import NetworkFit, Pair, fit_network, fit_pair
from simgnn.analysis.fit.samples import Sample, SampleFile
from simgnn.errors import HardwareError
from simgnn.hardware.profile.communication import Backend, Collective, LinkType, Message
from simgnn.hardware.profile.devices import Device
from simgnn.hardware.profile.profile import Meta, Profile
from simgnn.hardware.profile.quantities import Duration
from simgnn.hardware.topology.topology import Edge, Topology

LOOPBACK = "loopback"
NETWORK = "network"
CONTENDED = 1.25
"""Links are slowed down only if all hosts at once are slower than pairs predict by more than this factor. Less is
noise, or messages that share a link unevenly (three hosts of a testbed without a common bottleneck: 1.17)."""


@dataclass(frozen=True)
class Calibration:
    """A fitted profile, the fitted ``curves`` (device name, curve), and errors of communication (one rank: none)."""

    profile: Profile
    curves: tuple[tuple[str, CurveFit], ...]
    communication: Errors


def fit_profile(files: Sequence[SampleFile], day: date) -> Calibration:
    """Fit one profile to the samples of one machine with different rank counts, or of one group of ranks across hosts.

    The name of the profile contains ``day``. Raises :class:`HardwareError` for samples of different machines and for
    samples that do not determine a curve or a link.
    """
    if not files:
        raise HardwareError("no samples to fit; expected at least one file of `python -m executor.microbench`")
    clusters = [file for file in files if len(file.hosts) > 1]
    if clusters and len(files) > 1:
        raise HardwareError(
            f"got samples of {len(files)} groups of ranks, one of them across {len(clusters[0].hosts)} hosts; fit "
            "that group alone"
        )
    return _fit_cluster(files[0], day) if clusters else _fit_machine(files, day)


def _fit_machine(files: Sequence[SampleFile], day: date) -> Calibration:
    facts = files[0].hosts[0].facts
    for other in (file.hosts[0].facts for file in files[1:]):
        if (other.host, other.cores, other.device) != (facts.host, facts.cores, facts.device):
            raise HardwareError(
                f"samples of two machines: {facts.host} ({facts.cores} cores, {facts.device}) and {other.host} "
                f"({other.cores} cores, {other.device}). Calibrate each machine separately."
            )
    samples = [sample for file in files for sample in file.samples]
    device, curves = fit_device(facts, samples)
    alone = not any(sample.primitive == "exchange" for sample in samples)
    network = None if alone else fit_network(samples, cores_of(facts), files[0].backend)
    host, _ = host_of(facts, facts.device, None if network is None else LOOPBACK)
    profile = Profile(
        meta=_meta(host_name(facts.host), describe_host(facts), files, day),
        devices={facts.device: device},
        links={} if network is None else {LOOPBACK: network.link},
        topology=Topology(hosts={host_name(facts.host): host}),
        backends={} if network is None else {files[0].backend: network.backend},
    )
    named = tuple((facts.device, curve) for curve in curves)
    return Calibration(profile, named, {} if network is None else network.errors)


def _fit_cluster(file: SampleFile, day: date) -> Calibration:
    facts = [host.facts for host in file.hosts]
    names = _names([each.host for each in facts])
    devices: dict[str, Device] = {}
    curves: list[tuple[str, CurveFit]] = []
    inside: dict[int, NetworkFit] = {}
    for number, name in enumerate(names):
        mine = file.of_hosts(number)
        kind = f"{name}-{facts[number].device}"
        devices[kind], found = fit_device(facts[number], mine)
        curves += [(kind, curve) for curve in found]
        if of_kind(mine, "exchange"):
            inside[number] = fit_network(mine, cores_of(facts[number]), file.backend)
    pairs = {
        pair: fit_pair(of_kind(file.of_hosts(*pair), "send"), of_kind(file.of_hosts(*pair), "exchange", "between"))
        for pair in combinations(range(len(names)), 2)
    }
    every = [sample for sample in file.of_hosts(*range(len(names))) if sample.form != "between"]
    floors = [fit.backend.message.floor.value for fit in inside.values()]
    floor = min([*floors, *(pair.floor_s for pair in pairs.values())])
    contention = _contention(file, pairs, every)
    latencies = _latencies(len(names), {pair: found.floor_s - floor for pair, found in pairs.items()})
    links: dict[str, LinkType] = {}
    hosts, edges = {}, []
    for number, name in enumerate(names):
        loopback = f"{name}-{LOOPBACK}" if number in inside else None
        if loopback is not None:
            links[loopback] = _loopback(inside[number], floor)
        links[f"{name}-{NETWORK}"] = _best(number, pairs).link(latencies[number], contention)
        hosts[name], gateway = host_of(facts[number], f"{name}-{facts[number].device}", loopback)
        edges.append(Edge(between=(f"{name}/{gateway}", NETWORK), link=f"{name}-{NETWORK}"))
    collectives, errors = _collectives(file, inside, every, max(pair.floor_s for pair in pairs.values()))
    for (one, other), pair in pairs.items():
        ranks = len(file.hosts[one].ranks) + len(file.hosts[other].ranks)
        errors[f"between {names[one]} and {names[other]}", ranks] = pair.errors
    ports = [fit.backend.ports for fit in inside.values() if fit.backend.ports is not None]
    backend = Backend(
        message=Message(floor=Duration.of(floor, "measured", note="of the quickest two ranks; links add theirs")),
        ports=max(ports, key=lambda each: min(each.send.value, each.receive.value), default=None),
        collectives=tuple(collectives),
    )
    more = len(facts) - 1
    descriptions = "; ".join(dict.fromkeys(describe_host(each) for each in facts))
    profile = Profile(
        meta=_meta(
            f"{host_name(facts[0].host)}-and-{more}-more",
            f"{facts[0].host} and {more} more: {descriptions}",
            [file],
            day,
        ),
        devices=devices,
        links=links,
        topology=Topology(hosts=hosts, nodes={NETWORK: "network-switch"}, edges=tuple(edges)),
        backends={file.backend: backend},
    )
    return Calibration(profile, tuple(curves), errors)


def _meta(name: str, what: str, files: Sequence[SampleFile], day: date) -> Meta:
    facts = files[0].hosts[0].facts
    ranks = sorted({file.ranks for file in files})
    quick = " (quick)" if any(file.quick for file in files) else ""
    return Meta(
        name=f"{name}-{day.isoformat()}",
        description=f"{what}; calibrated with {', '.join(map(str, ranks))} ranks{quick}",
        date=day,
        versions={"simgnn": __version__, "torch": facts.torch, "python": facts.python, "system": facts.system},
        calibrated_ranks=tuple(ranks),
    )


def _names(hosts: Sequence[str]) -> list[str]:
    """A valid profile name for each host; equal names are numbered."""
    cleaned = [host_name(host) for host in hosts]
    return [name if cleaned.count(name) == 1 else f"{name}-{number}" for number, name in enumerate(cleaned)]


def _loopback(fit: NetworkFit, floor: float) -> LinkType:
    """Loopback link of a host, with its own rates of messages, as the backend has one entry for all hosts."""
    message = fit.backend.message
    rest = Duration.of(max(message.floor.value - floor, 0.0), "measured", note="beyond the message's floor")
    return fit.link.model_copy(
        update={"latency": rest, "message_bandwidth": message.bandwidth, "efficiency": message.efficiency}
    )


def _best(host: int, pairs: Mapping[tuple[int, int], Pair]) -> Pair:
    return max((found for pair, found in pairs.items() if host in pair), key=lambda found: found.way_bytes_per_s)


def _latencies(hosts: int, rest: Mapping[tuple[int, int], float]) -> list[float]:
    """Latency of each host's link. Those of two hosts add up to ``rest``: their messages' seconds beyond the floor."""
    # SciPy's optimizers: loaded when a calibration is fitted
    from scipy import optimize

    columns = np.zeros((len(rest), hosts))
    for row, pair in enumerate(rest):
        columns[row, list(pair)] = 1.0
    # of two hosts alone only the sum is known: the slight pull to zero halves it
    rows, goals = np.vstack([columns, 1e-6 * np.eye(hosts)]), np.append(list(rest.values()), np.zeros(hosts))
    found, _ = optimize.nnls(rows, goals)
    return [float(seconds) for seconds in found]


def _contention(file: SampleFile, pairs: Mapping[tuple[int, int], Pair], every: Sequence[Sample]) -> float:
    """Factor by which exchanges of all hosts are slower than rates between two hosts predict; 1: not slower."""
    even = of_kind(every, "exchange", "even")
    floor, _ = floor_and_rates(even)
    counts = [len(host.ranks) for host in file.hosts]
    rates = [_best(number, pairs).way_bytes_per_s for number in range(len(counts))]
    # in an even exchange a host sends to all ranks elsewhere, and its link carries nothing else
    slowest = max(count * (sum(counts) - count) / rate for count, rate in zip(counts, rates, strict=True))
    large = sorted(even, key=lambda sample: sample.sizes["bytes"])[-2:]
    factor = float(np.median([beyond(sample, floor) / (sample.sizes["bytes"] * slowest) for sample in large]))
    return factor if factor > CONTENDED and len(counts) > 2 else 1.0


def _collectives(
    file: SampleFile, inside: Mapping[int, NetworkFit], every: Sequence[Sample], message_floor: float
) -> tuple[list[Collective], Errors]:
    """Return collectives inside hosts (the slowest for each rank count) and of all ranks, and errors of fits."""
    slowest: dict[tuple[str, int], Collective] = {}
    errors: Errors = {}
    for fit in inside.values():
        for entry in fit.backend.collectives:
            key = entry.kind, (entry.ranks or (0,))[0]
            if key not in slowest or _cost(entry) > _cost(slowest[key]):
                slowest[key] = entry.model_copy(update={"scope": "host"})
                errors[key] = fit.errors[key]
    found = [exchange_entry(of_kind(every, "exchange"), file.ranks, message_floor)]
    for kind in COLLECTIVES:
        samples = of_kind(every, kind)
        if samples:
            found.append(fit_collective(kind, file.ranks, samples, file.backend))
            errors[f"{kind}, all hosts", file.ranks] = collective_errors(kind, file.ranks, samples, file.backend)
    return [*slowest.values(), *(entry.model_copy(update={"scope": "cluster"}) for entry in found)], errors


def _cost(entry: Collective) -> float:
    """Seconds of a call that moves 1 MiB, to compare two entries of one kind and group size."""
    hop = 0.0 if entry.hop is None else entry.hop.value
    bus = 0.0 if entry.bus_bandwidth is None else (1 << 20) / entry.bus_bandwidth.value
    return entry.floor.value + hop + bus
