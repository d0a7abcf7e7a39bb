"""Errors of assumed delays and rates of messages, and of calls at rank counts that a calibration left out."""

from collections.abc import Mapping, Sequence

import numpy as np

from simgnn.analysis.left_out.errors import Errors
from simgnn.analysis.nccl.measured_tables import Table
from simgnn.hardware.price.collectives import steps
from simgnn.hardware.profile.communication import Backend, Collective
from simgnn.hardware.profile.profile import Profile

KINDS = {"all_reduce": "allreduce"}
"""Kinds of profiles by the names of the NCCL tables."""


def call_s(entry: Collective, ranks: int) -> float | None:
    """Seconds of a call without its bytes; None where the links decide it."""
    if entry.hop is None:
        return None
    return entry.floor.value + steps(entry.kind, entry.algorithm, ranks) * entry.hop.value


def gloo_delays(machines: Mapping[str, Profile], assumed: Profile) -> list[Errors]:
    """Compare what shipped profiles assume of a message and of each call over Gloo with measured machines."""
    expected = assumed.backends["gloo"]
    found = []
    for name, profile in machines.items():
        backend = profile.backends["gloo"]
        logs = [float(np.log(backend.message.floor.value / expected.message.floor.value))]
        for entry in backend.collectives:
            if entry.ranks is None or entry.scope == "cluster":
                continue
            measured, assumption = call_s(entry, entry.ranks[0]), call_s(_of_kind(expected, entry.kind), entry.ranks[0])
            if measured and assumption:
                logs.append(float(np.log(measured / assumption)))
        found.append(Errors.of(name, np.array(logs)))
    return found


def gloo_rates(machines: Mapping[str, Profile], assumed: Profile) -> list[Errors]:
    """Compare the assumed rate of a rank's messages over Gloo with measured machines."""
    expected = assumed.backends["gloo"].ports
    assert expected is not None
    found = []
    for name, profile in machines.items():
        ports = profile.backends["gloo"].ports
        if ports is not None:
            rates = np.array([ports.send.value / expected.send.value, ports.receive.value / expected.receive.value])
            found.append(Errors.of(name, -np.log(rates)))
    return found


def nccl_delays(tables: Sequence[Table], assumed: Profile) -> list[Errors]:
    """Compare what shipped profiles assume of a message and of an all-reduce over NCCL with the shortest measured
    times; a group is a machine."""
    expected = assumed.backends["nccl"]
    found = []
    for table in tables:
        shortest = float(table.seconds.min())
        if table.collective == "send_recv":
            assumption: float | None = expected.message.floor.value
        else:
            assumption = call_s(_of_kind(expected, KINDS[table.collective]), table.ranks)
        assert assumption is not None
        found.append(Errors.of(table.gpu, np.array([np.log(shortest / assumption)])))
    return found


def link_shares(profiles: Sequence[Profile]) -> list[Errors]:
    """Predict the share of a link's rate that one message reaches from the shares on all other links on which it was
    measured or published."""
    shares = {
        f"{profile.meta.name}, {name}": float(np.log(link.bandwidth.value / link.message_bandwidth.value))
        for profile in profiles
        for name, link in profile.links.items()
        if link.message_bandwidth is not None and link.message_bandwidth.source in ("measured", "published")
    }
    found = []
    for name, share in shares.items():
        others = [value for other, value in shares.items() if other != name]
        found.append(Errors.of(name, np.array([share - float(np.median(others))])))
    return found


def gloo_rank_counts(machines: Mapping[str, Profile]) -> list[Errors]:
    """Predict each call over Gloo at a measured rank count from the other measured rank counts of the machine."""
    found = []
    for name, profile in machines.items():
        entries = [entry for entry in profile.backends["gloo"].collectives if entry.ranks and entry.scope != "cluster"]
        for entry in entries:
            assert entry.ranks is not None
            for other in entries:
                assert other.ranks is not None
                if other.kind != entry.kind or other.ranks == entry.ranks:
                    continue
                measured, predicted = call_s(entry, entry.ranks[0]), call_s(other, entry.ranks[0])
                if measured and predicted:
                    octaves = abs(float(np.log2(entry.ranks[0] / other.ranks[0])))
                    found.append(Errors.of(f"{name}, {entry.kind}", np.array([np.log(measured / predicted)]), octaves))
    return found


def _of_kind(backend: Backend, kind: str) -> Collective:
    return next(entry for entry in backend.collectives if entry.kind == kind)
