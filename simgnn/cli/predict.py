"""From an experiment to a prediction: shared by ``simulate`` and ``demo``."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from simgnn.cli.console import Reporter

if TYPE_CHECKING:
    from simgnn.cli.profiles import ChosenProfile
    from simgnn.experiment.prepare import Prepared
    from simgnn.experiment.schema import Experiment
    from simgnn.record.result import Result
    from simgnn.sim.simulate import Simulation

TRACE_EPOCHS = 20
"""Epochs that a Perfetto trace shows."""


@dataclass(frozen=True)
class Prediction:
    """What was simulated, on what, and what came out."""

    prepared: "Prepared"
    chosen: "ChosenProfile"
    simulation: "Simulation"
    result: "Result"


def predict(experiment: "Experiment", reporter: Reporter) -> Prediction:
    """Simulate an experiment on its profile. Raises :class:`ConfigError` for layers that declare no cost."""
    from simgnn.cli.profiles import choose_profile, default_cluster
    from simgnn.errors import ConfigError
    from simgnn.experiment.prepare import prepare
    from simgnn.hardware.machine import Machine
    from simgnn.sim.simulate import simulate

    chosen = choose_profile(experiment)
    prepared = prepare(experiment, default_cluster=default_cluster(chosen.profile), stage=reporter.stage)
    if prepared.planned.undeclared:
        raise ConfigError(
            f"model.kind: got '{prepared.planned.undeclared[0]}', expected a layer that declares its cost, so that it "
            "can be simulated: give the class a static method 'work' (see simgnn/experiment/planning/user_layer.py)"
        )
    threads = prepared.experiment.hardware.threads_per_rank
    machine = Machine.place(chosen.profile, prepared.experiment.rank_hosts(), None if threads == "auto" else threads)
    reporter.stage(f"simulating {experiment.train.epochs} epochs on {chosen.label}")
    simulation = simulate(prepared.planned.program, machine, stats=prepared.stats, epochs=experiment.train.epochs)
    return Prediction(prepared, chosen, simulation, _result(prepared, chosen, simulation))


def write_prediction(prediction: Prediction, out: Path, force: bool) -> Path:
    """Write the run directory of a prediction: plan, profile, trace, ops, traffic, result, Perfetto trace."""
    from simgnn.experiment.directory import write_run_directory
    from simgnn.record.result import write_result
    from simgnn.record.rundir import RunDirectory, ops_table, write_table
    from simgnn.report.perfetto import write_perfetto

    root = write_run_directory(prediction.prepared, out, prediction.chosen.profile, force=force)
    run, simulation = RunDirectory(root), prediction.simulation
    write_table(simulation.trace, run.trace)
    write_table(ops_table(simulation.program), run.ops)
    write_table(simulation.traffic_table, run.traffic)
    write_result(prediction.result, run.result)
    write_perfetto({"predicted": root}, run.perfetto, TRACE_EPOCHS)
    return root


def _result(prepared: "Prepared", chosen: "ChosenProfile", simulation: "Simulation") -> "Result":
    import numpy as np

    from simgnn.program.digest import program_digest
    from simgnn.record.provenance import environment, versions
    from simgnn.record.result import RankTimes, Result

    experiment, program = prepared.experiment, simulation.program
    steady = slice(1, None) if len(simulation.epoch_s) > 1 else slice(None)
    parts = ("compute_s", "wait_s", "comm_total_s", "comm_exposed_s")
    medians = {part: np.median(getattr(simulation, part)[steady], axis=0) for part in parts}
    facts = prepared.stats.facts
    synthetic = [name for name in ("features", "labels") if getattr(facts, f"synthetic_{name}")]
    sources = chosen.profile.source_counts()
    return Result(
        backend="sim",
        status=simulation.status,
        message=simulation.message,
        name=experiment.name,
        digest=simulation.digest,
        program_digest=program_digest(program),
        hardware=chosen.label,
        seed=experiment.seed,
        ranks=program.ranks,
        hosts=len(set(program.hosts)),
        epochs=len(simulation.epoch_s),
        versions=versions(),
        environment=environment(),
        epoch_s=simulation.epoch_s,
        epoch_s_median=simulation.epoch_s_median,
        per_rank=[RankTimes(**{part: float(medians[part][rank]) for part in parts}) for rank in range(program.ranks)],
        bytes_sent=simulation.bytes_sent().tolist(),
        bytes_sent_first_epoch=simulation.bytes_sent(0).tolist(),
        messages=simulation.messages().tolist(),
        collective_bytes=simulation.sum_by_rank("collective_bytes").tolist(),
        control_bytes=simulation.sum_by_rank("control_bytes").tolist(),
        buffer_bytes=simulation.memory.both.tolist(),
        energy_J=None if simulation.energy is None else simulation.energy.total_J,
        extrapolated=list(simulation.extrapolated),
        uncalibrated=chosen.uncalibrated or simulation.uncalibrated,
        synthetic=synthetic,
        confidence={"numbers of the profile": ", ".join(f"{count} {name}" for name, count in sources.items())},
        notes=list(prepared.stats.notes),
    )
