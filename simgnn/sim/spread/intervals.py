"""Effects of jitter on a simulated run, and the prediction interval of its epochs.

The simulation is deterministic, so it lacks the waits that jitter causes. Afterwards delays are propagated through the
trace with the jitter that calibration measured (:mod:`simgnn.sim.spread.delays`): expected greatest times where ranks
meet add to waits and to epochs. The interval combines the jitter of one epoch, the error of every model (one unknown
factor per curve, so fully correlated between its ops and independent of other curves), the drift of the machine (one
factor for all curves), and what whole epochs missed beyond these on topologies that were left out, as a log-normal
around the corrected time. Without jitter in the profile the time itself does not change.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, sqrt

import numpy as np
from numpy.typing import NDArray

from simgnn.hardware.price.machine import Machine
from simgnn.hardware.profile.error_model import QUANTILE, error_model
from simgnn.partition.statistics.partition_stats import PartitionStats
from simgnn.program.calendar import Turn
from simgnn.program.kinds import COLLECTIVE_KINDS, PAIRWISE_KINDS
from simgnn.record.epoch_kinds import kinds_of, typical
from simgnn.sim.clock import PICOSECONDS
from simgnn.sim.engine.turn_sizes import Activity, Sizes
from simgnn.sim.network.flow_table import Bools, Floats
from simgnn.sim.simulate import Simulation
from simgnn.sim.spread.delays import Delays, Step
from simgnn.sim.spread.origins import Origins

EPOCHS = "epochs by topology"
"""Family of the errors of epochs that no number of a profile explains."""
LEAST_COVERED = 0.5
"""Smallest share of an epoch's time with known spread for which an interval is reported."""


@dataclass(frozen=True)
class Spread:
    """What jitter adds to a simulated run, and the interval of its epochs.

    ``epoch_s`` [epochs]: seconds, including ``added_s`` [epochs], the waiting that jitter causes; ``epoch_s_median``:
    of a typical epoch (:func:`simgnn.record.epoch_kinds.typical`). ``wait_s`` [epochs, P]: added waiting of each rank;
    ``op_wait_s``: that by (template, op) in a typical epoch, mean over ranks.

    ``interval``: (low, high) seconds that an epoch takes with probability LEVEL; None if the profile has a spread for
    less than LEAST_COVERED of the time. ``covered``: that share of the time. ``parts``: relative standard deviations
    that the interval combines, by cause. ``jitter_known``: whether the profile has any jitter.
    """

    epoch_s: list[float]
    epoch_s_median: float
    added_s: Floats
    wait_s: Floats
    op_wait_s: dict[tuple[str, str], float]
    interval: tuple[float, float] | None
    covered: float
    parts: dict[str, float]
    jitter_known: bool


@dataclass(frozen=True)
class _Epoch:
    """Spread of one epoch: expected added seconds, waits by op id [P], variance of length, seconds of each origin."""

    added_s: float
    waits: dict[int, Floats]
    variance: float
    seconds: Floats


def estimate_spread(
    simulation: Simulation, machine: Machine, stats: PartitionStats | None = None, activity: Activity | None = None
) -> Spread:
    """Estimate the spread of a simulation, given the machine, statistics and activity that it used."""
    walk = _Walk(simulation, machine, stats, {} if activity is None else activity)
    known: dict[bytes, _Epoch] = {}
    found = []
    for epoch in range(len(simulation.epoch_s)):
        key = walk.key(epoch)
        if key not in known:
            known[key] = walk.epoch(epoch)
        found.append(known[key])
    added = np.array([one.added_s for one in found])
    lengths = np.array(simulation.epoch_s) + added
    ranks = simulation.program.ranks
    waits = np.array([np.sum([np.zeros(ranks), *one.waits.values()], axis=0) for one in found])
    kinds = kinds_of(simulation.program.calendar, len(found))
    middle = float(typical(lengths, kinds))
    shared = [(alike.share, found[_median_of(alike.epochs, lengths)]) for alike in kinds]
    names = [(template, op.name) for template, op in simulation.program.ops]
    waiting: dict[tuple[str, str], float] = {}
    for share, one in shared:
        for op_id, wait in sorted(one.waits.items()):
            waiting[names[op_id]] = waiting.get(names[op_id], 0.0) + share * float(wait.mean())
    interval, covered, parts = _interval(shared, middle, walk.origins)
    return Spread(
        epoch_s=lengths.tolist(),
        epoch_s_median=middle,
        added_s=added,
        wait_s=waits,
        op_wait_s=waiting,
        interval=interval,
        covered=covered,
        parts=parts,
        jitter_known=any(origin.jitter is not None for origin in walk.origins.known),
    )


def _median_of(epochs: NDArray[np.int64], lengths: Floats) -> int:
    """Return the epoch among ``epochs`` whose length is their (lower) median."""
    return int(epochs[np.argsort(lengths[epochs], kind="stable")[(len(epochs) - 1) // 2]])


def _interval(
    kinds: Sequence[tuple[float, _Epoch]], middle: float, origins: Origins
) -> tuple[tuple[float, float] | None, float, dict[str, float]]:
    """Return the interval around ``middle`` seconds, ``covered`` and ``parts``, as described in :class:`Spread`.
    ``kinds``: the share of each kind of epoch, and a median epoch of it."""
    if middle <= 0.0:
        return None, 0.0, {}
    by_origin = np.sum([share * epoch.seconds for share, epoch in kinds], axis=0)
    seconds = dict(zip(origins.known, by_origin.tolist(), strict=True))
    variance = sum(share * epoch.variance for share, epoch in kinds)
    total = sum(seconds.values())
    covered = sum(part for origin, part in seconds.items() if origin.spread is not None) / total if total else 0.0
    misses: dict[str, float] = {}
    for origin, part in seconds.items():
        misses[origin.name] = misses.get(origin.name, 0.0) + part * (origin.spread or 0.0)
    model = sum(miss**2 for miss in misses.values())
    drift = sum(part * origin.drift for origin, part in seconds.items() if origin.drift is not None)
    parts = {"jitter": sqrt(variance) / middle, "model": sqrt(model) / middle, "drift": drift / middle}
    parts["simulation"] = error_model().of(EPOCHS).spread or 0.0
    if covered < LEAST_COVERED:
        return None, covered, parts
    width = QUANTILE * sqrt(sum(part * part for part in parts.values()))
    return (middle * exp(-width), middle * exp(width)), covered, parts


class _Walk:
    """Propagates delays through the epochs of a trace, each together with the epoch before it."""

    def __init__(self, simulation: Simulation, machine: Machine, stats: PartitionStats | None, activity: Activity):
        self.simulation = simulation
        self.program = simulation.program
        self.compiled = simulation.compiled
        self.origins = Origins(self.compiled, machine, Sizes(self.program, activity), stats)
        self._ops = {op.op_id: op for template in self.compiled.templates.values() for op in template.ops}
        columns = simulation.columns
        training = columns["step"] >= 0
        self._columns = {
            name: np.ascontiguousarray(columns[name][training])
            for name in ("epoch", "step", "op_id", "rank", "issued_s", "started_s", "ended_s")
        }
        self._bounds = np.searchsorted(self._columns["epoch"], np.arange(len(simulation.epoch_s) + 1))
        # all origins must be known before the first path is taken down
        op_ids, rows = np.unique(self._columns["op_id"], return_index=True)
        epochs, steps = (self._columns[name][rows].tolist() for name in ("epoch", "step"))
        first = {
            op_id: Turn(epoch, step, self.program.ops[op_id][0])
            for op_id, epoch, step in zip(op_ids.tolist(), epochs, steps, strict=True)
        }
        self._parts = {op_id: self.origins.parts(self._ops[op_id], turn) for op_id, turn in first.items()}
        self._awaited = {op_id: self.origins.awaited(self._ops[op_id], turn) for op_id, turn in first.items()}

    def key(self, epoch: int) -> bytes:
        """A digest of everything that the spread of an epoch depends on: the trace of this and the previous epoch."""
        first = int(self._bounds[max(epoch - 1, 0)])
        rows = slice(first, int(self._bounds[epoch + 1]))
        digest = hashlib.sha256(str(min(epoch, 1)).encode())
        for name in ("step", "op_id", "rank"):
            digest.update(self._columns[name][rows].tobytes())
        start = float(self._columns["issued_s"][rows].min(initial=np.inf))
        for name in ("issued_s", "started_s", "ended_s"):
            digest.update(np.rint((self._columns[name][rows] - start) * PICOSECONDS).astype(np.int64).tobytes())
        if any(op.kind in PAIRWISE_KINDS for _, op in self.program.ops):
            digest.update(str(id(self.simulation.traffic.epochs[epoch])).encode())
        return digest.digest()

    def epoch(self, epoch: int) -> _Epoch:
        """Estimate the spread of one epoch."""
        delays = Delays(self.compiled, len(self.origins.known))
        if epoch > 0:
            self._pass(delays, epoch - 1)
        before, late, carried = delays.begin_epoch()
        if not self._pass(delays, epoch):
            return _Epoch(0.0, {}, 0.0, np.zeros(len(self.origins.known)))
        _, shift, variance, seconds = delays.end()
        begins = float(self._columns["issued_s"][self._bounds[epoch] : self._bounds[epoch + 1]].min())
        # after an evaluation an epoch starts at its own first issue, which is not delayed
        late = late if begins <= before * (1 + 1e-12) else 0.0
        return _Epoch(shift - late, delays.waits, max(variance - carried, 0.0), seconds)

    def _pass(self, delays: Delays, epoch: int) -> bool:
        for step in self._steps(epoch):
            delays.pass_through(step)
            delays.drop_before(step.turn - self.compiled.window)
        return bool(self._bounds[epoch + 1] > self._bounds[epoch])

    def _steps(self, epoch: int) -> Iterator[Step]:
        """The ops of all turns of an epoch, in program order."""
        low, high = int(self._bounds[epoch]), int(self._bounds[epoch + 1])
        step, op_id = self._columns["step"][low:high], self._columns["op_id"][low:high]
        ends = np.flatnonzero((np.diff(step, append=-1) != 0) | (np.diff(op_id, append=-1) != 0)) + 1
        for first, last in pairwise([0, *ends.tolist()]):
            yield self._step(epoch, slice(low + first, low + last))

    def _step(self, epoch: int, rows: slice) -> Step:
        program, columns = self.program, self._columns
        compiled = self._ops[int(columns["op_id"][rows.start])]
        number, rank = int(columns["step"][rows.start]), columns["rank"][rows]
        meets = compiled.op.kind in PAIRWISE_KINDS | COLLECTIVE_KINDS
        runs, busy = np.zeros(program.ranks, dtype=np.bool_), np.zeros(program.ranks)
        issued, ended = np.full(program.ranks, np.nan), np.full(program.ranks, np.nan)
        runs[rank] = True
        issued[rank], ended[rank] = columns["issued_s"][rows], columns["ended_s"][rows]
        waits = meets or program.streams[compiled.op.stream].in_turn
        busy[rank] = columns["ended_s"][rows] - columns["started_s" if waits else "issued_s"][rows]
        seconds = self._parts[compiled.op_id].seconds(busy, len(self.origins.known))
        variance = np.sum((seconds * [origin.jitter or 0.0 for origin in self.origins.known]) ** 2, axis=1)

        def awaited() -> Bools | None:
            if compiled.op.kind not in PAIRWISE_KINDS:
                return self._awaited[compiled.op_id]
            sent = self.simulation.traffic.epochs[epoch].get(compiled.op_id, ())
            if not sent:
                return np.zeros((program.ranks, program.ranks), dtype=np.bool_)
            # guarded steps are left out of the traffic: the steps that are there stand for one another
            place = program.calendar.ordinal(epoch, number)
            messages = sent[min(place, len(sent) - 1)].messages > 0
            return messages | messages.T

        turn = epoch * program.calendar.steps + number
        return Step(turn, compiled, runs, issued, ended, variance, seconds, awaited)
