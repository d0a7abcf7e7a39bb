"""Link use of a prediction over time: the bytes of each message, spread evenly from the start of its op to its end."""

from collections import defaultdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgnn.hardware.price.machine import Machine
from simgnn.hardware.profile.profile import load_profile
from simgnn.program.kinds import PAIRWISE_KINDS
from simgnn.program.storage import load_program
from simgnn.record.rundir import RunDirectory, read_table

Steps = tuple[NDArray[np.float64], NDArray[np.float64]]


def link_use(run: RunDirectory, epochs: int | None = None) -> dict[str, Steps]:
    """Name of each link that carried a message -> instants in seconds, and bytes per second from each on.

    Messages of pairwise ops whose sizes the program states; collectives and decided sizes are left out. The simulator
    shares links flow by flow: this is the mean over each op, made for the eye.
    """
    program = load_program(run.plan)
    machine = Machine.place(load_profile(str(run.hardware)), program.hosts)
    backends = {name: group.backend for name, group in program.groups.items()}
    trace = {name: column.to_numpy() for name, column in zip(*_columns(run), strict=True)}
    changes: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for op_id, (_, op) in enumerate(program.ops):
        if op.kind not in PAIRWISE_KINDS or op.route is None or op.transfer is None or op.transfer.decision is not None:
            continue
        route = program.sizes.routes[op.route]
        backend = backends.get(program.streams[op.stream].group or "", "default")
        mine = trace["op_id"] == op_id
        turns = sorted(set(zip(trace["epoch"][mine].tolist(), trace["step"][mine].tolist(), strict=True)))
        for epoch, step in turns:
            if epochs is not None and epoch >= epochs:
                continue
            here = mine & (trace["epoch"] == epoch) & (trace["step"] == step)
            start = dict(zip(trace["rank"][here].tolist(), trace["started_s"][here].tolist(), strict=True))
            end = dict(zip(trace["rank"][here].tolist(), trace["ended_s"][here].tolist(), strict=True))
            sizes = route.at(epoch, max(step, 0)) * op.transfer.row_bytes
            pairs = zip(route.source.tolist(), route.target.tolist(), sizes.tolist(), strict=True)
            for source, target, nbytes in pairs:
                begin, stop = max(start[source], start[target]), min(end[source], end[target])
                if nbytes and stop > begin:
                    for link in machine.path(source, target, backend).links:
                        changes[link] += [(begin, nbytes / (stop - begin)), (stop, -nbytes / (stop - begin))]
    return {machine.links[link].name: _levels(found) for link, found in sorted(changes.items())}


def _columns(run: RunDirectory) -> tuple[list[str], list[Any]]:
    table = read_table(run.trace)
    wanted = ["rank", "epoch", "step", "op_id", "started_s", "ended_s"]
    return wanted, [table[name] for name in wanted]


def _levels(changes: list[tuple[float, float]]) -> Steps:
    times, deltas = np.array(changes, dtype=np.float64).T
    instants, place = np.unique(times, return_inverse=True)
    levels = np.cumsum(np.bincount(place, deltas, minlength=len(instants)))
    # what is left of the sums after the last message is rounding
    return instants, np.where(levels < 1e-6 * max(float(levels.max()), 1.0), 0.0, levels)
