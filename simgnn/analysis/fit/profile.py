"""From the samples of a machine, or of a cluster, to its hardware profile."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from simgnn import __version__
from simgnn.analysis.fit.cluster import fit_cluster
from simgnn.analysis.fit.compute import CurveFit
from simgnn.analysis.fit.device import cores_of, describe_host, fit_device, host_name, host_of
from simgnn.analysis.fit.errors import Errors
from simgnn.analysis.fit.network import fit_network
from simgnn.analysis.fit.samples import Facts, SampleFile
from simgnn.errors import HardwareError
from simgnn.hardware.profile.profile import Meta, Profile
from simgnn.hardware.topology.topology import Topology

LOOPBACK = "loopback"


@dataclass(frozen=True)
class Calibration:
    """A profile, with what was fitted and how well. ``curves``: by the name of their device.

    ``communication`` is empty where only one rank measured.
    """

    profile: Profile
    curves: tuple[tuple[str, CurveFit], ...]
    communication: Errors


def fit_profile(files: Sequence[SampleFile], day: date) -> Calibration:
    """One profile from the samples of one machine's groups of ranks, each of another size, or of a group across hosts.

    The profile has ``day`` in its name. Raises :class:`HardwareError` for samples of different machines and for samples
    that cannot determine a curve or a link.
    """
    if not files:
        raise HardwareError("no samples to fit; expected at least one file of `python -m executor.microbench`")
    clusters = [file for file in files if len(file.hosts) > 1]
    if not clusters:
        return _fit_machine(files, day)
    if len(files) > 1:
        raise HardwareError(
            f"got samples of {len(files)} groups of ranks, one of them across {len(clusters[0].hosts)} hosts; expected "
            "that group alone"
        )
    found = fit_cluster(files[0])
    facts = [host.facts for host in files[0].hosts]
    others = f"{facts[0].host} and {len(facts) - 1} more"
    words = "; ".join(dict.fromkeys(describe_host(each) for each in facts))
    meta = _meta(f"{host_name(facts[0].host)}-and-{len(facts) - 1}-more", f"{others}: {words}", files, day)
    profile = Profile(
        meta=meta,
        devices=found.devices,
        links=found.links,
        topology=found.topology,
        backends={files[0].backend: found.backend},
    )
    return Calibration(profile, found.curves, found.errors)


def _fit_machine(files: Sequence[SampleFile], day: date) -> Calibration:
    """One host that stands for the machine."""
    facts = files[0].hosts[0].facts
    for file in files[1:]:
        _check_same(facts, file.hosts[0].facts)
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


def _check_same(facts: Facts, other: Facts) -> None:
    if (other.host, other.cores, other.device) != (facts.host, facts.cores, facts.device):
        raise HardwareError(
            f"samples of two machines: {facts.host} ({facts.cores} cores, {facts.device}) and {other.host} "
            f"({other.cores} cores, {other.device}); calibrate each by itself"
        )


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
