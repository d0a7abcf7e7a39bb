"""Refuses a run whose ranks need more memory than ``placement.device_bytes``, before it trains."""

import numpy as np
from numpy.typing import NDArray

from simgnn.api.activity import find_activity
from simgnn.api.memory.chunk_memory import chunk_shortfall, trials_of
from simgnn.api.predict import ChosenProfile, known_or_fallback, simulation_of
from simgnn.errors import ConfigError, HardwareError, ShortMemoryError
from simgnn.experiment.schema import Experiment
from simgnn.hardware.price.machine import Machine
from simgnn.outside import reason_of
from simgnn.planner.make_plan import plan
from simgnn.planner.memory.cache_capacity import with_capacities
from simgnn.planner.memory.largest_cache import largest_caches
from simgnn.planner.memory.program_memory import program_bytes, shortfall
from simgnn.planner.prepare import Prepared
from simgnn.progress import Progress
from simgnn.sim.simulate import Simulation


def check_device_budget(prepared: Prepared, chosen: ChosenProfile | None, progress: Progress) -> None:
    """Raise :class:`ShortMemoryError` if a rank of a run needs more than its budget, by the prediction that ``simgnn
    simulate`` makes on the profile ``chosen`` (None: on the one that stands in for a machine never calibrated).

    Where that prediction needs what only a run decides, or a profile that knows these ranks and this work, sizes count
    as their upper bounds and ops in program order: the same peaks, unless ops of several epochs overlap."""
    experiment = prepared.experiment
    if not experiment.placement.device_bytes:
        return
    progress.stage("memory: what each device needs (placement.device_bytes)")
    known, chosen, simulation = chosen, known_or_fallback(chosen), None
    try:
        simulation = _simulated(prepared, chosen)
        held = simulation.memory.own
    except (ConfigError, HardwareError) as error:
        progress.stage(f"memory: counted in program order, since no simulation is possible here ({reason_of(error)})")
        held = program_bytes(prepared.planned.program, _on_cpu(experiment, chosen))
    if not (short := shortfall(experiment, held)):
        return
    if experiment.communication.moves == "chunks":
        trials = trials_of(prepared, chosen.profile, None if known is None else known.profile, progress)
        raise ShortMemoryError(chunk_shortfall(prepared, held, simulation, trials))

    def fits(other: Experiment) -> bool:
        fitted = with_capacities(other, prepared.stats, chosen.profile)[0]
        needed = program_bytes(plan(fitted, prepared.stats).program, _on_cpu(experiment, chosen))
        return not shortfall(other, needed)

    remedy = ""
    if experiment.freshness.caches_halo:
        remedy = largest_caches(experiment, int(prepared.stats.halo_rows().max(initial=0)), fits)
    raise ShortMemoryError("; ".join(filter(None, (short, remedy))))


def _simulated(prepared: Prepared, chosen: ChosenProfile) -> Simulation:
    """Simulate a prepared run."""
    found, experiment = find_activity(prepared, None), prepared.experiment
    again = simulation_of(prepared, found)
    return again.simulate(again.place(chosen.profile), experiment.train.epochs)


def _on_cpu(experiment: Experiment, chosen: ChosenProfile) -> NDArray[np.bool_]:
    """Return which ranks have a CPU as their device, bool [P]: all, where the profile has no place for them."""
    try:
        machine = Machine.place(chosen.profile, experiment.rank_hosts())
    except HardwareError:
        return np.ones(experiment.ranks, dtype=np.bool_)
    return np.array([machine.device(rank).kind == "cpu" for rank in range(experiment.ranks)])
