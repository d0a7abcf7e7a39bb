"""Memory of training chunk by chunk: what a program holds by simulation, where its peak is, and what would fit."""

import numpy as np

from simgnn.api.activity import find_activity
from simgnn.emit.chunks.names import BATCH
from simgnn.errors import ConfigError, HardwareError
from simgnn.experiment.schema import Experiment
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.profile.profile import Profile
from simgnn.partition.statistics.partition_stats import PartitionStats
from simgnn.planner.chunks import with_transfer_rates
from simgnn.planner.make_plan import Planned
from simgnn.planner.memory.chunk_number import (
    ChunkTrials,
    Held,
    Needs,
    device_room,
    graph_trials,
    in_program_order,
    workable,
)
from simgnn.planner.prepare import Prepared
from simgnn.program.drain_points import Stops
from simgnn.progress import SILENT, Progress
from simgnn.sim.clock import PICOSECONDS
from simgnn.sim.simulate import Simulation, simulate

EPOCHS = 2
"""Epochs that are simulated to see what a program holds: one that begins, and one that begins while another ends."""


def simulated_needs(profile: Profile) -> Needs:
    """Return what says how much a program holds, by simulation of its first epochs and an evaluation on ``profile``;
    with ops in program order where no simulation is possible."""

    def needs(experiment: Experiment, stats: PartitionStats, planned: Planned) -> Held:
        train = experiment.train
        epochs = min(train.epochs, EPOCHS)
        try:
            found = find_activity(Prepared(experiment, stats, planned), None)
            machine = Machine.place(profile, experiment.rank_hosts(), experiment.hardware.threads)
            simulation = simulate(
                planned.program, machine, stats=stats, epochs=epochs, activity=found.activity,
                evaluate_every=min(train.eval_every or epochs, epochs),
                stops=Stops(epochs, checkpoint_every=train.checkpoint_every), schedule=experiment.schedule,
            )  # fmt: skip
        except (ConfigError, HardwareError):
            return in_program_order(experiment, stats, planned)
        return Held(simulation.memory.own, simulation.message if simulation.status == "oom" else "")

    return needs


def trials_of(prepared: Prepared, profile: Profile, known: Profile | None, progress: Progress = SILENT) -> ChunkTrials:
    """Return the trials of a prepared experiment with other numbers of chunks of the same parts. ``profile``: on which
    programs are simulated; ``known``: whose rates and memory count (None: stated ones)."""
    experiment = prepared.experiment
    assert prepared.graph is not None
    assert prepared.partition is not None
    timed, room = with_transfer_rates(experiment, known), device_room(experiment, known or profile)
    return graph_trials(
        timed, prepared.graph, prepared.partition, prepared.stats, simulated_needs(profile), room, progress
    )


def chunk_shortfall(
    prepared: Prepared, held: np.ndarray, simulation: Simulation | None, trials: ChunkTrials | None
) -> str:
    """Describe which rank needs more than ``placement.device_bytes``, in which layer and chunk, and how many chunks
    would do; "" if none does or there is no budget. ``held`` int64 [P]: the most bytes of each rank's device;
    ``simulation``: of the program, where one was possible; ``trials``: None where only these chunks are known."""
    budget, rank = prepared.experiment.placement.device_bytes, int(held.argmax())
    if not budget or held[rank] <= budget:
        return ""
    where = "" if simulation is None else fullest_chunk(simulation, rank)
    remedy = "state fewer layers or hidden columns, or more ranks" if trials is None else workable(trials)
    return f"placement.device_bytes: rank {rank}{where} needs {held[rank]:,} B, budget {budget:,} B; {remedy}"


def fullest_chunk(simulation: Simulation, rank: int) -> str:
    """Name layer and chunk of the step in which the device of ``rank`` holds most; "" where it is in none."""
    program, memory = simulation.program, simulation.memory
    spans = memory.spans.where((memory.spans.rank == rank) & (memory.on_device | ~memory.gpu[memory.spans.rank]))
    spans = spans.where(~spans.in_space(program, "host-shared"))
    _, span, tick, level = spans.levels(np.zeros(program.ranks, dtype=np.int64))
    if not len(level):
        return ""
    at = int(np.argmax(level))
    op_id = int(spans.op_id[span[at]])
    columns = simulation.columns
    here = np.flatnonzero((columns["rank"] == rank) & (columns["op_id"] == op_id))
    nearest = here[np.argmin(np.abs(columns["issued_s"][here] - tick[at] / PICOSECONDS))]
    layer, step = program.ops[op_id][1].layer, int(columns["step"][nearest])
    if layer is None or BATCH.name not in program.sizes.columns:
        return ""
    return f", layer {layer}, chunk {int(program.sizes.columns[BATCH.name][rank, step])}"
