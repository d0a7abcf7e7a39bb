"""What the links of a profile carry in a simulated epoch: messages, collectives and copies to and from GPUs.

Each byte counts on every link of its route. A collective puts on the links what its algorithm sends (rings and trees of
:mod:`simgnn.hardware.price.collectives`), whatever time the profile states for it.
"""

from collections.abc import Sequence

import numpy as np

from simgnn.hardware.price.collectives import binomial_rounds, find_collective, flow_bytes, flow_pairs, ring_order
from simgnn.hardware.price.host_copies import host_route
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.price.messages import end_pairs
from simgnn.program.calendar import Turn
from simgnn.program.kinds import COLLECTIVE_KINDS, PAIRWISE_KINDS, OpKind
from simgnn.record.epoch_kinds import kinds_among
from simgnn.record.traffic import LinkTraffic
from simgnn.sim.engine.compiled import CompiledOp
from simgnn.sim.engine.handlers import copied_bytes, in_host, staged_collective
from simgnn.sim.engine.sent_bytes import handed_bytes, header_bytes, sent_by
from simgnn.sim.engine.turn_sizes import Activity, Sizes, epoch_signature
from simgnn.sim.network.flow_table import Floats, Ints
from simgnn.sim.simulate import Simulation


def traffic_by_link(simulation: Simulation, machine: Machine, activity: Activity) -> list[LinkTraffic]:
    """Return what the links carry in the mean of the payload epochs (where epochs differ, in that of a period), by kind
    of link, most first. Links that carry nothing are left out. ``activity``: the decisions that were simulated."""
    counted, program = _Counted(simulation, machine, activity), simulation.program
    for kind in kinds_among(program.calendar, simulation.payload_epochs):
        equal: dict[tuple[str | bytes, ...], list[int]] = {}
        for epoch in kind.epochs.tolist():
            equal.setdefault(epoch_signature(program, activity, epoch), []).append(epoch)
        for epochs in equal.values():
            counted.add_epoch(epochs[0], kind.share * len(epochs) / len(kind.epochs))
    carried = counted.on_links()
    found: dict[str, list[int]] = {}
    for position in np.flatnonzero(carried).tolist():
        found.setdefault(machine.links[position].key, []).append(position)
    kinds = []
    for key, positions in found.items():
        busiest = max(positions, key=lambda position: (carried[position], -position))
        name, most = machine.links[busiest].name, float(carried[busiest])
        kinds.append(
            LinkTraffic(link=key, total_bytes=float(carried[positions].sum()), busiest=name, busiest_bytes=most)
        )
    return sorted(kinds, key=lambda kind: (-kind.total_bytes, kind.link))


class _Counted:
    """Bytes by pair of ranks and library, float64 [P, P], and by rank of copies from and to its GPU, [P] each."""

    def __init__(self, simulation: Simulation, machine: Machine, activity: Activity) -> None:
        self._compiled, self._machine = simulation.compiled, machine
        self._sizes = Sizes(simulation.program, activity)
        self._pairs: dict[str, Floats] = {}
        self._out, self._back = np.zeros(machine.ranks), np.zeros(machine.ranks)
        self._static: dict[int, tuple[Floats, Ints, Ints]] = {}

    def add_epoch(self, epoch: int, times: float) -> None:
        calendar = self._compiled.program.calendar
        for step in range(calendar.steps):
            turn = Turn(epoch, step, calendar.template(epoch, step))
            for compiled in self._compiled.templates[turn.template].ops:
                runs = self._sizes.runs_in(compiled.op, epoch, step) != 0
                if runs.any():
                    self._add(compiled, turn, times, compiled.runs & runs)

    def _add(self, compiled: CompiledOp, turn: Turn, times: float, runs: Ints) -> None:
        kind, sizes, ranks = compiled.op.kind, self._sizes, self._machine.ranks
        if kind in (OpKind.H2D, OpKind.D2H):
            moved = np.where(runs, copied_bytes(sizes, compiled, turn), 0) * times
            if kind is OpKind.H2D:
                self._back += moved
            else:
                self._out += moved
        if kind not in PAIRWISE_KINDS | COLLECTIVE_KINDS:
            return
        known = self._static.get(compiled.op_id)
        if known is None:
            known = self._messages(compiled, turn) if kind in PAIRWISE_KINDS else self._collective(compiled, turn)
            if sizes.is_static(compiled.op):
                self._static[compiled.op_id] = known
        between, out, back = known
        library, _ = self._machine.backend(compiled.backend)
        self._pairs.setdefault(library, np.zeros((ranks, ranks)))
        self._pairs[library] += times * between * runs[:, None]
        staged = np.array([self._machine.through_host(rank, compiled.backend) for rank in range(ranks)])
        if kind in COLLECTIVE_KINDS or not in_host(sizes.program, compiled):
            self._out += np.where(staged, out, 0) * times
            self._back += np.where(staged, back, 0) * times

    def _messages(self, compiled: CompiledOp, turn: Turn) -> tuple[Floats, Ints, Ints]:
        sent = sent_by(self._sizes, compiled, turn)
        between = sent.nbytes + sent.headers * header_bytes(compiled) if sent.headers else sent.nbytes
        return between.astype(np.float64), between.sum(axis=1), between.sum(axis=0)

    def _collective(self, compiled: CompiledOp, turn: Turn) -> tuple[Floats, Ints, Ints]:
        ranks = self._machine.ranks
        between = np.zeros((ranks, ranks))
        out, back = np.zeros(ranks, dtype=np.int64), np.zeros(ranks, dtype=np.int64)
        handed = handed_bytes(self._sizes, compiled, turn)
        for members in compiled.members.values():
            nbytes = int(handed[list(members)].max(initial=0))
            if len(members) < 2 or not nbytes:
                continue
            root = compiled.op.root if compiled.op.root in members else members[0]
            for source, target, each in self._flows(compiled, members, nbytes, root):
                between[source, target] += each
            staged = staged_collective(compiled.op.kind, handed, members)
            out += staged.out
            back += staged.back
        return between, out, back

    def _flows(
        self, compiled: CompiledOp, members: Sequence[int], nbytes: int, root: int
    ) -> list[tuple[int, int, float]]:
        machine, kind = self._machine, compiled.op.kind.value
        entry, _ = find_collective(machine, kind, compiled.backend, members, nbytes)
        if entry.algorithm == "binomial":
            pairs = [pair for part in binomial_rounds(sorted(members), root) for pair in part]
        else:
            pairs = flow_pairs(kind, entry.algorithm, ring_order(machine, members), root)
        each = flow_bytes(kind, entry.algorithm, len(members), nbytes)
        return [(source, target, each) for source, target in pairs]

    def on_links(self) -> Floats:
        """Bytes on each link of the machine, float64 [links]."""
        machine = self._machine
        carried = np.zeros(len(machine.links))
        for library, between in self._pairs.items():
            source, target = np.nonzero(between)
            which, routes = end_pairs(machine, source, target, library)
            for route, nbytes in zip(routes, np.bincount(which, between[source, target], len(routes)), strict=True):
                np.add.at(carried, list(route.links), nbytes)
        for copied, to_device in ((self._out, False), (self._back, True)):
            for rank in np.flatnonzero(copied).tolist():
                way = host_route(machine, rank, to_device)
                if way is not None:
                    np.add.at(carried, list(way.links), copied[rank])
        return carried
