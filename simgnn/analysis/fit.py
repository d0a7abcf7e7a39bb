"""From the samples of a machine to its hardware profile."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from simgnn import __version__
from simgnn.analysis.fit_compute import CurveFit, fit_curves, profile_caches, with_reach
from simgnn.analysis.fit_network import NetworkFit, fit_network
from simgnn.analysis.fit_samples import Facts, SampleFile
from simgnn.errors import HardwareError
from simgnn.hardware.devices import Device
from simgnn.hardware.links import LinkType
from simgnn.hardware.profile import Meta, Profile
from simgnn.hardware.quantities import Bandwidth, CoreCount, Duration, Size
from simgnn.hardware.topology import Edge, Host, Placed, Topology

LOOPBACK = "loopback"


@dataclass(frozen=True)
class Calibration:
    """A machine's profile, with what was fitted and how well. ``network`` is None where only one rank measured."""

    profile: Profile
    curves: tuple[CurveFit, ...]
    network: NetworkFit | None


def fit_profile(files: Sequence[SampleFile], day: date) -> Calibration:
    """One profile from the samples of several groups of ranks on one machine, each group of another size.

    The profile is one host that stands for the machine, with ``day`` in its name. Raises :class:`HardwareError` for
    samples of different machines and for samples that cannot determine a curve.
    """
    if not files:
        raise HardwareError("no samples to fit; expected at least one file of `python -m executor.microbench`")
    facts = files[0].facts
    for file in files[1:]:
        if (file.facts.host, file.facts.cores, file.facts.device) != (facts.host, facts.cores, facts.device):
            raise HardwareError(
                f"samples of two machines: {facts.host} ({facts.cores} cores, {facts.device}) and {file.facts.host} "
                f"({file.facts.cores} cores, {file.facts.device}); calibrate each by itself"
            )
    samples = [sample for file in files for sample in file.samples]
    gpu = facts.device != "cpu"
    cores = None if gpu else float(facts.cores)
    caches = with_reach(samples, profile_caches(facts.device_caches if gpu else facts.caches), cores)
    curves = fit_curves(samples, caches, cores)
    network = fit_network(samples) if any(sample.primitive == "exchange" for sample in samples) else None
    device = Device(
        kind="gpu" if gpu else "cpu",
        model=facts.device_name if gpu else facts.cpu_model,
        memory=Size.of(facts.device_memory_bytes or facts.memory_bytes, "measured", note="read from the system"),
        cores=None if gpu else CoreCount.of(facts.cores, "measured", note="cores that this process may use"),
        caches=caches,
        curves=tuple(entry.curve for entry in curves),
    )
    link = network.link if network is not None else _unmeasured_link()
    ranks = sorted({file.ranks for file in files})
    profile = Profile(
        meta=Meta(
            name=f"{_name(facts.host)}-{day.isoformat()}",
            description=_description(facts, ranks, any(file.quick for file in files)),
            date=day,
            versions={"simgnn": __version__, "torch": facts.torch, "python": facts.python, "system": facts.system},
            calibrated_ranks=tuple(ranks),
        ),
        devices={facts.device: device},
        links={LOOPBACK: link},
        topology=_topology(facts, gpu),
        backends={} if network is None else {files[0].backend: network.backend},
    )
    return Calibration(profile, tuple(curves), network)


def _topology(facts: Facts, gpu: bool) -> Topology:
    """One host. Ranks of a CPU share its loopback; GPUs hang on one switch, whose links are as fast as was measured."""
    if not gpu:
        placed = Placed(name="cpu", type=facts.device)
        edge = Edge(between=("cpu", "cpu"), link=LOOPBACK)
        return Topology(hosts={_name(facts.host): Host(devices=(placed,), edges=(edge,))})
    placed = Placed(name="gpu", type=facts.device, count=facts.devices or 1)
    edge = Edge(between=("gpu", "switch"), link=LOOPBACK)
    return Topology(hosts={_name(facts.host): Host(devices=(placed,), nodes={"switch": "nvswitch"}, edges=(edge,))})


def _unmeasured_link() -> LinkType:
    """A link of the topology that a single rank never uses."""
    note = "not measured: calibrated with one rank"
    return LinkType(
        kind="loopback",
        bandwidth=Bandwidth.of(1e9, "assumed", note=note),
        latency=Duration.of(0.0, "assumed", note=note),
    )


def _description(facts: Facts, ranks: Sequence[int], quick: bool) -> str:
    what = facts.device_name if facts.device != "cpu" else f"{facts.cpu_model}, {facts.cores} cores"
    counts = ", ".join(map(str, ranks))
    return f"{what}; calibrated with {counts} ranks{' (quick)' if quick else ''}"


def _name(host: str) -> str:
    """A host's name as profiles spell names."""
    cleaned = re.sub(r"[^A-Za-z0-9_.+-]", "-", host.split(".")[0])
    return cleaned if cleaned[:1].isalpha() else f"host-{cleaned}"
