"""The entry point of the simulator: it turns a program and a machine into times, bytes, memory and energy."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from simgnn.errors import BackendError
from simgnn.hardware.price.machine import Machine
from simgnn.partition.statistics.partition_stats import PartitionStats
from simgnn.program.dispatch import Picks
from simgnn.program.drain_points import Stops
from simgnn.program.program import Program
from simgnn.program.storage import program_digest
from simgnn.record.energy import EnergyFigure
from simgnn.record.epoch_kinds import kinds_among, typical_s
from simgnn.record.rundir import TRACE_SCHEMA
from simgnn.record.summary import Columns, Times, computing_ops, epoch_windows, payload_epochs, times_by_rank
from simgnn.sim.clock import PICOSECONDS
from simgnn.sim.energy import track_energy
from simgnn.sim.engine.compiled import Compiled, compile_program
from simgnn.sim.engine.driver import Engine
from simgnn.sim.engine.fast_forward import FastForward
from simgnn.sim.engine.recorder import start_ticks, trace_columns
from simgnn.sim.engine.sent_bytes import Traffic, count_traffic
from simgnn.sim.engine.turn_sizes import Activity, Sizes
from simgnn.sim.memory.timeline import Memory, track_memory
from simgnn.sim.network.flow_table import Ints
from simgnn.sim.network.message_bundles import BUNDLED_ABOVE
from simgnn.sim.network.network import WINDOW

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Simulation:
    """The results of one simulation. Times in seconds, sizes in bytes.

    - ``columns``: the trace, one array for each column of ``TRACE_SCHEMA``, sorted by (epoch, step, op_id, rank);
    - ``epoch_s``: training time of each epoch;
    - ``compute_s``, ``wait_s``, ``comm_total_s``, ``comm_exposed_s`` float64 [epochs, P]: see
      :func:`simgnn.record.summary.times_by_rank`;
    - ``status``: "oom" when memory runs out (``memory.out_of_memory``); times are then those of a machine with enough;
    - ``extrapolated``: names of ops that were priced outside the measured range; ``bundled``: names of ops whose
      messages were simulated in bundles (:mod:`simgnn.sim.network.message_bundles`);
    - ``assumed``: primitives that the profile does not measure and that were priced by other primitives or machines;
    - ``copied``: stretches of fast-forwarded epochs, as (first epoch, number of epochs); ``events``: how many events
      were simulated for the others, which the time that the simulation takes grows with.
    """

    compiled: Compiled
    columns: Mapping[str, NDArray[Any]]
    epoch_s: list[float]
    compute_s: Floats
    wait_s: Floats
    comm_total_s: Floats
    comm_exposed_s: Floats
    traffic: Traffic
    memory: Memory
    energy: tuple[EnergyFigure, ...]
    status: Literal["ok", "oom"]
    message: str
    extrapolated: tuple[str, ...]
    assumed: tuple[str, ...]
    uncalibrated: bool
    bundled: tuple[str, ...]
    copied: tuple[tuple[int, int], ...]
    events: int

    @property
    def program(self) -> Program:
        """The program that was simulated."""
        return self.compiled.program

    @cached_property
    def trace(self) -> pa.Table:
        """The trace as a table of ``TRACE_SCHEMA``."""
        return pa.table([pa.array(self.columns[field.name], field.type) for field in TRACE_SCHEMA], schema=TRACE_SCHEMA)

    @cached_property
    def program_digest(self) -> str:
        return program_digest(self.program)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the program's digest and the columns of the trace."""
        digest = hashlib.sha256(self.program_digest.encode())
        for name, column in self.columns.items():
            digest.update(f"{name}:{column.dtype}:{len(column)};".encode())
            digest.update(np.ascontiguousarray(column).tobytes())
        return digest.hexdigest()

    @cached_property
    def traffic_table(self) -> pa.Table:
        """Payload of pairwise ops by rank pair, summed over the run, as a table of ``TRAFFIC_SCHEMA``."""
        return self.traffic.table()

    @property
    def epoch_s_median(self) -> float:
        """Time of a typical epoch: the median after the first one; where epochs differ, the mean over a period."""
        return typical_s(self.epoch_s, self.program.calendar)

    @property
    def payload_epochs(self) -> range:
        """The range of epochs whose mean payload is reported, by kind where epochs differ."""
        return payload_epochs(len(self.epoch_s), self.program.calendar)

    def bytes_sent(self, epoch: int | None = None) -> Floats:
        """Payload bytes of pairwise ops in an epoch (None: mean of ``payload_epochs``), [sender, receiver]."""
        return self._mean(epoch, self.traffic.mean)

    def messages(self, epoch: int | None = None) -> Floats:
        """Number of messages of pairwise ops in an epoch (None: mean of ``payload_epochs``), [P, P]."""
        return self._mean(epoch, partial(self.traffic.mean, messages=True))

    def sum_by_rank(self, column: str, epoch: int | None = None) -> Floats:
        """Sum a count column of the trace by rank [P] over training in an epoch (None: mean of ``payload_epochs``)."""

        def mean(epochs: NDArray[np.int64]) -> Floats:
            mask = np.isin(self.columns["epoch"], epochs) & (self.columns["step"] >= 0)
            total = np.zeros(self.program.ranks, dtype=np.int64)
            np.add.at(total, self.columns["rank"][mask], self.columns[column][mask].astype(np.int64))
            return np.asarray(total / len(epochs), np.float64)

        return self._mean(epoch, mean)

    def _mean(self, epoch: int | None, mean: Callable[[NDArray[np.int64]], Floats]) -> Floats:
        """The ``mean`` of an epoch; None: of those of each kind among ``payload_epochs``, as often as in a period."""
        chosen = self.payload_epochs if epoch is None else range(epoch, epoch + 1)
        kinds = kinds_among(self.program.calendar, chosen)
        return np.asarray(sum(alike.share * mean(alike.epochs) for alike in kinds), np.float64)


def simulate(
    program: Program,
    machine: Machine,
    *,
    stats: PartitionStats | None = None,
    epochs: int,
    activity: Activity | None = None,
    fast_forward: bool = True,
    evaluate_every: int = 0,
    stops: Stops | None = None,
    window: float = WINDOW,
    bundle_above: int = BUNDLED_ABOVE,
    schedule: Picks | None = None,
) -> Simulation:
    """Simulate ``epochs`` epochs of a program on a machine.

    ``stats`` hold the locality tables that work refers to; without them aggregation is priced without locality and
    flagged. ``activity``: values of decisions and guards (:mod:`simgnn.sim.engine.turn_sizes`). ``evaluate_every``:
    evaluate every so many epochs and after the last (0: never); evaluations are not part of ``epoch_s``. ``stops``:
    points where ranks also wait until all their ops have ended. ``window``: span of a batch of messages that begin or
    end close together (:mod:`simgnn.sim.network.network`); 0 is exact. ``bundle_above``: rounds with more messages are
    simulated in bundles. ``schedule``: picks among ready ops (None: program order).

    Raises :class:`BackendError` for a decision that is missing in the activity, a deadlock, or a message without
    bandwidth; :class:`HardwareError` for a price that the profile lacks.
    """
    if len(program.hosts) != machine.ranks or tuple(program.hosts) != tuple(machine.hosts):
        raise BackendError(
            f"the program was planned for {program.ranks} ranks on hosts {list(program.hosts)}, but the machine has "
            f"{machine.ranks} ranks on hosts {list(machine.hosts)}. Use Machine.place(profile, program.hosts)."
        )
    if epochs < 1:
        raise BackendError(f"train.epochs: got {epochs}, expected at least 1")
    sizes = Sizes(program, {} if activity is None else activity)
    engine = Engine(
        compile_program(program), machine, sizes, epochs, stats=stats, evaluate_every=evaluate_every, stops=stops,
        schedule=schedule, window=window, bundle_above=bundle_above,
    )  # fmt: skip
    picks = schedule is not None and schedule.picks
    forward = FastForward(engine) if fast_forward and not picks else None
    engine.run()
    ticks = engine.recorder.table()
    started, computes = start_ticks(ticks, engine.compiled), computing_ops(program)[ticks["op_id"]]
    parts = ticks["rank"], ticks["epoch"], ticks["issued"], started, ticks["ended"]
    trains = ticks["step"] >= 0
    mask = slice(None) if trains.all() else trains
    rank, epoch, issued, began, ended = (column[mask] for column in parts)
    columns = Columns(rank, epoch, epochs, issued, began, ended, computes[mask], {})
    windows = epoch_windows(columns)
    memory = track_memory(program, engine.pricer.sizes, machine, engine.recorder.table(copies=False))
    types = [machine.profile.devices[name] for name in dict.fromkeys(machine.types)]
    primitives = dict.fromkeys(piece.primitive for _, op in program.ops for piece in op.work)
    return Simulation(
        compiled=engine.compiled,
        columns=trace_columns(ticks, started),
        epoch_s=((windows[:, 1] - windows[:, 0]) / PICOSECONDS).tolist(),
        **{
            name: values / PICOSECONDS
            for name, values in _times_by_rank(columns, program.ranks, engine.recorder.sources(epochs)).items()
        },
        traffic=count_traffic(engine.compiled, engine.pricer.sizes, epochs),
        memory=memory,
        energy=track_energy(machine, ticks, computes, windows),
        status="ok" if memory.out_of_memory is None else "oom",
        message="" if memory.out_of_memory is None else str(memory.out_of_memory),
        extrapolated=tuple(sorted(engine.pricer.flagged)),
        assumed=(
            *(name for name in primitives if machine.stands_in(name)),
            *(f"{name} of the CPU beside a GPU" for name in engine.pricer.carried),
        ),
        # a device of which no curve was measured
        uncalibrated=any(all(curve.source != "measured" for curve in device.curves) for device in types),
        bundled=tuple(sorted(engine.pricer.bundled)),
        copied=() if forward is None else tuple(forward.copied),
        events=engine.env.scheduled,
    )


def _times_by_rank(columns: Columns, ranks: int, sources: Ints) -> dict[str, Times]:
    """Return :func:`times_by_rank`, from recorded epochs alone where no epoch overlaps another: those that repeat them
    have the same times. ``sources`` [epochs]: see :meth:`simgnn.sim.engine.recorder.Recorder.sources`."""
    begins = np.full(columns.epochs, np.iinfo(np.int64).max)
    ends = np.zeros(columns.epochs, dtype=np.int64)
    np.minimum.at(begins, columns.epoch, columns.issued)
    np.maximum.at(ends, columns.epoch, columns.ended)
    recorded = sources == np.arange(len(sources))
    if recorded.all() or np.any(begins[1:] < np.maximum.accumulate(ends)[:-1]):
        return times_by_rank(columns, ranks)
    number, chosen = np.cumsum(recorded) - 1, recorded[columns.epoch]
    parts = columns.rank, columns.issued, columns.started, columns.ended, columns.computes
    rank, issued, started, ended, computes = (part[chosen] for part in parts)
    epoch = number[columns.epoch[chosen]]
    few = Columns(rank, epoch, int(recorded.sum()), issued, started, ended, computes, {})
    return {name: values[number[sources]] for name, values in times_by_rank(few, ranks).items()}
