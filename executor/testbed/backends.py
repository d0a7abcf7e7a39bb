"""What a communication library costs on a declared testbed, from what it costs on the machine below."""

from executor.testbed.declaration import Declaration
from simgnn.hardware.profile.libraries import Backend, Collective, Ports
from simgnn.hardware.profile.quantities import Bandwidth, Duration


def declared_backend(declared: Declaration, backend: Backend, slowest: float) -> Backend:
    """Collectives inside a host as measured; across hosts no faster than so, and no faster than the links.

    ``slowest``: how many times as long the slowest rank takes as one with an equal part of the cores, as calls were
    measured. What a call and a message cost is work of processors, and all ranks of a call wait for the slowest.
    """
    return _across(declared, _throttled(backend, slowest))


def _across(declared: Declaration, backend: Backend) -> Backend:
    if declared.hosts == 1:
        return backend
    found: list[Collective] = []
    for entry in backend.collectives:
        if entry.scope == "any":
            found.append(entry.model_copy(update={"scope": "host"}))
        bus = entry.bus_bandwidth
        if bus is not None:
            bus = bus.model_copy(update={"source": "assumed", "note": "as inside one machine, where links allow it"})
        found.append(entry.model_copy(update={"scope": "cluster", "bus_bandwidth": bus}))
    return backend.model_copy(update={"collectives": tuple(found)})


def _throttled(backend: Backend, by: float) -> Backend:
    """Every time ``by`` times as long, every rate so much lower."""
    if by == 1.0:
        return backend
    note = f"times multiplied by {by:.4g}: the slowest rank's declared share of processor time"

    def longer(time: Duration | None) -> Duration | None:
        return None if time is None else Duration.of(time.value * by, "assumed", spread=time.spread, note=note)

    def lower(rate: Bandwidth | None) -> Bandwidth | None:
        return None if rate is None else Bandwidth.of(rate.value / by, "assumed", spread=rate.spread, note=note)

    message, ports = backend.message, backend.ports
    return backend.model_copy(
        update={
            "message": message.model_copy(
                update={"floor": longer(message.floor), "bandwidth": lower(message.bandwidth)}
            ),
            "ports": None
            if ports is None
            else Ports.model_copy(ports, update={"send": lower(ports.send), "receive": lower(ports.receive)}),
            "collectives": tuple(
                entry.model_copy(
                    update={
                        "floor": longer(entry.floor),
                        "hop": longer(entry.hop),
                        "bus_bandwidth": lower(entry.bus_bandwidth),
                    }
                )
                for entry in backend.collectives
            ),
        }
    )
