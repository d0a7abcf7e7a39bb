"""A host's device as the profile writes it: what was read there, and curves fitted to what its ranks measured."""

import re
from collections.abc import Sequence

from simgnn.analysis.fit.compute import CurveFit, fit_curves, profile_caches, with_reach
from simgnn.analysis.fit.samples import Facts, Sample
from simgnn.hardware.profile.devices import Device
from simgnn.hardware.profile.quantities import CoreCount, Size
from simgnn.hardware.topology.topology import Edge, Host, Placed

SWITCH = "switch"
"""What the GPUs of a host hang on."""


def is_gpu(facts: Facts) -> bool:
    """Whether GPUs were measured."""
    return facts.device != "cpu"


def cores_of(facts: Facts) -> float | None:
    """Cores that the ranks of a host share; None where they have GPUs."""
    return None if is_gpu(facts) else float(facts.cores)


def fit_device(facts: Facts, samples: Sequence[Sample]) -> tuple[Device, list[CurveFit]]:
    """The device, and how well its curves fit. Raises :class:`HardwareError` for samples that fix no curve."""
    gpu = is_gpu(facts)
    cores = cores_of(facts)
    caches = with_reach(samples, profile_caches(facts.device_caches if gpu else facts.caches), cores)
    curves = fit_curves(samples, caches, cores)
    device = Device(
        kind="gpu" if gpu else "cpu",
        model=facts.device_name if gpu else facts.cpu_model,
        memory=Size.of(facts.device_memory_bytes or facts.memory_bytes, "measured", note="read from the system"),
        cores=None if gpu else CoreCount.of(facts.cores, "measured", note=_cores_note(facts)),
        sockets=None if gpu else facts.sockets,
        caches=caches,
        curves=tuple(entry.curve for entry in curves),
    )
    return device, curves


def _cores_note(facts: Facts) -> str:
    """Ranks are bound to no socket, so what was measured is a blend of all: one device stands for them."""
    where = "" if (facts.sockets or 1) == 1 else f", on {facts.sockets} sockets, over which ranks roam"
    return f"cores that this process may use{where}"


def host_of(facts: Facts, device: str, link: str | None) -> tuple[Host, str]:
    """A host, and the node of it that leads outside. ``device``, ``link``: names of their types.

    Ranks of a CPU share its loopback; GPUs hang on one switch, whose links are as fast as was measured. Where one rank
    measured alone (``link`` None) nobody knows how fast two would talk: its device has no link.
    """
    if not is_gpu(facts):
        edges = () if link is None else (Edge(between=("cpu", "cpu"), link=link),)
        return Host(devices=(Placed(name="cpu", type=device),), edges=edges), "cpu"
    memory = Size.of(facts.memory_bytes, "measured", note="read from the system")
    if link is None:
        return Host(memory=memory, devices=(Placed(name="gpu", type=device),)), "gpu"
    placed = Placed(name="gpu", type=device, count=facts.devices or 1)
    edges = (Edge(between=("gpu", SWITCH), link=link),)
    return Host(memory=memory, devices=(placed,), nodes={SWITCH: "nvswitch"}, edges=edges), SWITCH


def describe_host(facts: Facts) -> str:
    """A host's device in words."""
    return facts.device_name or facts.device if is_gpu(facts) else f"{facts.cpu_model}, {facts.cores} cores"


def host_name(host: str) -> str:
    """A host's name as profiles spell names."""
    cleaned = re.sub(r"[^A-Za-z0-9_.+-]", "-", host.split(".")[0])
    return cleaned if cleaned[:1].isalpha() else f"host-{cleaned}"
