"""From an experiment to a prediction: shared by ``simulate`` and ``demo``."""

from dataclasses import dataclass
from pathlib import Path

from simgnn.cli.activity import check_run, find_activity
from simgnn.cli.prediction_result import prediction_result
from simgnn.cli.profiles import ChosenProfile, choose_profile, default_cluster
from simgnn.cli.tables.console import Reporter
from simgnn.errors import ConfigError
from simgnn.experiment.schema import Experiment
from simgnn.experiment.slots import SLOTS
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.price.work import choose_level
from simgnn.planner.directory import write_run_directory
from simgnn.planner.prepare import STATISTICS, Prepared, prepare, with_default_cluster
from simgnn.program.drain_points import Stops
from simgnn.record.batches import batch_table, draws_batches
from simgnn.record.result import Result, write_result
from simgnn.record.rundir import RunDirectory, ops_table, write_table
from simgnn.report.perfetto import write_perfetto
from simgnn.sim.simulate import Simulation, simulate
from simgnn.sim.spread.intervals import Spread, estimate_spread
from simgnn.user_code import reported

TRACE_EPOCHS = 10
"""Epochs that ``trace.perfetto.json`` holds: enough to see, small enough to load at once."""


@dataclass(frozen=True)
class Prediction:
    """What was simulated, on what, and what came out."""

    prepared: Prepared
    chosen: ChosenProfile
    simulation: Simulation
    spread: Spread
    result: Result


def predict(
    experiment: Experiment,
    reporter: Reporter,
    chosen: ChosenProfile | None = None,
    activity: Path | None = None,
    counted: Path | None = None,
) -> Prediction:
    """Simulate an experiment on its profile (or on ``chosen``), with the decisions of the run in ``activity``, and on
    batches of the sizes in ``counted``.

    Raises :class:`ConfigError` for layers that declare no cost, and for decisions that no activity tells.
    """
    chosen = chosen or choose_profile(experiment)
    if activity is not None:
        check_run(experiment, activity)  # before minutes go into graph and partition
    check_machine(experiment, chosen)
    cluster = default_cluster(chosen.profile)
    prepared = prepare(experiment, default_cluster=cluster, counted=counted, stage=reporter.stage)
    check_declared(prepared)
    policies = [getattr(experiment, slot) for slot in SLOTS]
    with reported(policies):
        found = find_activity(prepared, activity)
    threads = experiment.hardware.threads_per_rank
    hosts = prepared.experiment.rank_hosts()
    machine = Machine.place(chosen.profile, hosts, None if threads == "auto" else threads)
    reporter.stage(f"simulating {experiment.train.epochs} epochs on {chosen.label}")
    with reported(policies):
        simulation = simulate(
            prepared.planned.program,
            machine,
            stats=prepared.stats,
            epochs=experiment.train.epochs,
            activity=found.activity,
            evaluate_every=experiment.train.eval_every or experiment.train.epochs,  # the last epoch is always evaluated
            stops=Stops(experiment.train.epochs, checkpoint_every=experiment.train.checkpoint_every),
            schedule=prepared.experiment.schedule,
        )
    spread = estimate_spread(simulation, machine, prepared.stats, found.activity)
    result = prediction_result(prepared, chosen, simulation, spread, found)
    return Prediction(prepared, chosen, simulation, spread, result)


def check_declared(prepared: Prepared) -> None:
    """Raise :class:`ConfigError` for layers that declare no cost."""
    if prepared.planned.undeclared:
        raise ConfigError(
            f"model.kind: got '{prepared.planned.undeclared[0]}', expected a layer that declares its cost, so that it "
            "can be simulated: give the class a static method 'work' (README, 'Your own layer')"
        )


def check_machine(experiment: Experiment, chosen: ChosenProfile) -> None:
    """Raise :class:`~simgnn.errors.HardwareError` where the profile has no place for the ranks, or no price for drawing
    batches, before minutes go into graph, partition and batches. What a statistics file says of hosts is left to it."""
    if experiment.graph.source.startswith(STATISTICS):
        return
    profile, batching = chosen.profile, experiment.sampling
    machine = Machine.place(profile, with_default_cluster(experiment, default_cluster(profile)).rank_hosts())
    if batching is not None:
        for primitive in {work.primitive for work in batching.drawing(len(batching.fanouts))}:
            for name in dict.fromkeys(machine.types):
                choose_level(profile.devices[name], name, primitive, 1, 1)


def write_prediction(prediction: Prediction, out: Path, force: bool = False) -> Path:
    """Write the run directory of a prediction; ``result.json`` comes last, so that what has one is whole. Where memory
    runs out there is no run, so no table of one."""
    simulation = prediction.simulation
    run = RunDirectory(write_run_directory(prediction.prepared, out, prediction.chosen.profile, force=force))
    write_table(ops_table(simulation.program), run.ops)
    if simulation.status == "ok":
        write_table(simulation.trace, run.trace)
        write_table(simulation.traffic_table, run.traffic)
        if draws_batches(simulation.program):
            write_table(batch_table(simulation.program, simulation.trace), run.batches)
        write_table(simulation.memory.timeline, run.memory)
        write_perfetto({"predicted": run.root}, run.perfetto, TRACE_EPOCHS, predictions=["predicted"])
    write_result(prediction.result, run.result)
    return run.root
