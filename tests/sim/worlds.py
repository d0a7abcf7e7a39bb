"""Small machines with round numbers, and short ways to simulate."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import simpy

from simgnn.hardware.price.machine import Machine
from simgnn.hardware.profile.profile import parse_profile
from simgnn.program.ops import Work
from simgnn.program.program import Program
from simgnn.sim.network.network import Network
from simgnn.sim.simulate import Simulation, simulate

PS = 10**12


def machine(
    hosts: Sequence[int],
    *,
    kind: str = "gpu",
    faster: float = 1.0,
    pcie: float = 10e9,
    ethernet: float = 1e9,
    latency: float = 0.0,
    floor: float = 0.0,
    hop: float = 0.0,
    call: float = 0.0,
    memory: str = "80 GB",
    cores: int = 8,
    power: Mapping[str, str] | None = None,
    threads: int | None = None,
    burst: float = 0.0,
    broadcast: str = "ring",
    load: Mapping[str, Any] | None = None,
) -> Machine:
    """Devices on a switch by links of ``pcie`` bytes/s, hosts on another by ``ethernet``; every primitive moves 1 GB/s.

    ``faster`` multiplies every rate and divides every latency; ``burst``: bytes that ethernet lets through at once;
    ``broadcast``: its algorithm;
    ``load``: its table of what messages do to others.
    """

    def rate(value: float) -> dict[str, str]:
        return {"value": f"{value * faster!r} B/s", "source": "assumed"}

    def time(value: float) -> dict[str, str]:
        return {"value": f"{value / faster!r} s", "source": "assumed"}

    costs = {
        "elementwise": "bytes", "copy": "bytes", "gather": "bytes", "scatter_add": "bytes", "matmul": "bytes",
        "optimizer": "bytes", "loss": "bytes", "select": "bytes", "encode": "bytes", "decode": "bytes",
        "spmm": "gathered_bytes", "sparse_matmul": "gathered_bytes",
    }  # fmt: skip
    curves = [
        {"primitive": name, "source": "assumed",
         "costs": {"call": f"{call / faster!r} s/call", feature: f"{1e9 * faster!r} B/s"}}
        for name, feature in costs.items()
    ]  # fmt: skip
    curves.append({"primitive": "sample", "source": "assumed", "costs": {"edges": f"{1e-9 / faster!r} s/edge"}})
    count = max(np.bincount(np.asarray(hosts, dtype=np.int64)))
    device: dict[str, Any] = {"kind": kind, "memory": {"value": memory, "source": "assumed"}, "curves": curves}
    if kind == "cpu":
        device["cores"] = {"value": f"{cores} cores", "source": "assumed"}
    for name, value in (power or {}).items():
        device[name] = {"value": value, "source": "assumed"}
    edges = [{"between": ["dev", "switch"], "link": "pcie"}, {"between": ["switch", "nic"], "link": "wide"}]
    if kind == "cpu":
        edges.append({"between": ["dev", "dev"], "link": "wide"})
    algorithms = dict.fromkeys(("allreduce", "allgather", "barrier"), "ring")
    algorithms |= {"broadcast": broadcast, "exchange": "pairwise"}
    entries = [
        {"kind": name, "floor": time(floor), "hop": time(hop), "algorithm": algorithm}
        for name, algorithm in algorithms.items()
    ]
    library = {"message": {"floor": time(0.0)}, "collectives": entries}
    bucket: dict[str, Any] = {"burst": {"value": f"{burst!r} B", "source": "assumed"}} if burst else {}
    if load is not None:
        bucket["load"] = load
    table = {
        "format": 1,
        "meta": {"name": "small", "description": "round numbers", "date": "2025-01-01"},
        "devices": {"dev": device},
        "links": {
            "pcie": {"kind": "pcie", "bandwidth": rate(pcie), "latency": time(latency)},
            "wide": {"kind": "pcie", "bandwidth": rate(1e15), "latency": time(0.0)},
            "ethernet": {"kind": "ethernet", "bandwidth": rate(ethernet), "latency": time(latency), **bucket},
        },
        "topology": {
            "hosts": {
                "node": {
                    "count": max(hosts) + 1,
                    "devices": [{"name": "dev", "type": "dev", "count": 1 if kind == "cpu" else int(count)}],
                    "nodes": {"switch": "pcie-switch", "nic": "nic"},
                    "edges": edges,
                }
            },
            "nodes": {"net": "network-switch"},
            "edges": [{"between": ["node/nic", "net"], "link": "ethernet"}],
        },
        "backends": {"gloo": library, "nccl": library},
    }
    return Machine.place(parse_profile(table), hosts, threads_per_rank=threads)


def seconds_of_work(seconds: float) -> tuple[Work, ...]:
    """Work that takes so many seconds at 1 GB/s (one pass of one byte an element)."""
    return (Work("elementwise", {"rows": round(seconds * 1e9), "width": 1, "passes": 1, "item_bytes": 1}),)


def run(program: Program, on: Machine, epochs: int = 1, **options: Any) -> Simulation:
    """Simulate exactly (no batching of ends) unless told otherwise."""
    return simulate(program, on, epochs=epochs, **{"window": 0.0, **options})


def times(simulation: Simulation, op: str, rank: int = 0, epoch: int = 0, step: int = 0) -> tuple[float, float, float]:
    """(issued, started, ended) of an op, in seconds."""
    columns = simulation.columns
    names = np.array([found.name for _, found in simulation.program.ops])
    mask = (columns["rank"] == rank) & (columns["epoch"] == epoch) & (columns["step"] == step)
    (row,) = np.flatnonzero(mask & (names[columns["op_id"]] == op))
    return tuple(float(columns[name][row]) for name in ("issued_s", "started_s", "ended_s"))  # type: ignore[return-value]


def flow_ends(
    capacity: Sequence[float], flows: Sequence[tuple[Sequence[int], float]], *, starts: Sequence[float] | None = None,
    caps: Sequence[float] | None = None, window: float = 0.0, burst: Sequence[float] | None = None,
) -> list[float]:  # fmt: skip
    """When flows (links, bytes) on bare links end, in seconds."""
    env = simpy.Environment(initial_time=0)
    network = Network(env, np.asarray(capacity, dtype=np.float64), [f"link {i}" for i in range(len(capacity))],
                      burst=np.asarray(burst or [0.0] * len(capacity), dtype=np.float64), window=window)  # fmt: skip
    ends = [-1] * len(flows)

    def on_end(labels: Any, end: int) -> None:
        for label in labels:
            ends[label] = end

    network.send(
        np.array([network.path(dict.fromkeys(links, 1.0)) for links, _ in flows], dtype=np.int64),
        np.array([size for _, size in flows], dtype=np.float64),
        np.array(caps if caps is not None else [np.inf] * len(flows)),
        np.array([round(start * PS) for start in (starts or [0.0] * len(flows))], dtype=np.int64),
        np.arange(len(flows)),
        on_end,
        (0,),
    )
    env.run()
    return [end / PS for end in ends]
