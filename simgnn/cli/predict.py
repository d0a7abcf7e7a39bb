"""From an experiment to a prediction: shared by ``simulate`` and ``demo``."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from simgnn.cli.console import Reporter

if TYPE_CHECKING:
    from simgnn.cli.profiles import ChosenProfile
    from simgnn.experiment.prepare import Prepared
    from simgnn.experiment.schema import Experiment
    from simgnn.record.result import JitterCorrection, Result
    from simgnn.sim.simulate import Simulation
    from simgnn.sim.spread import Spread

TRACE_EPOCHS = 10
"""Epochs that ``trace.perfetto.json`` holds: enough to see, small enough to load at once."""
NO_CALIBRATION = "this machine was never calibrated, so '{}' stands in for it; run `simgnn calibrate` first"


@dataclass(frozen=True)
class Prediction:
    """What was simulated, on what, and what came out."""

    prepared: "Prepared"
    chosen: "ChosenProfile"
    simulation: "Simulation"
    spread: "Spread"
    result: "Result"


def predict(experiment: "Experiment", reporter: Reporter, chosen: "ChosenProfile | None" = None) -> Prediction:
    """Simulate an experiment on its profile (or on ``chosen``). Raises :class:`ConfigError` for layers that declare no
    cost."""
    from simgnn.cli.profiles import choose_profile, default_cluster
    from simgnn.errors import ConfigError
    from simgnn.experiment.prepare import prepare
    from simgnn.hardware.machine import Machine
    from simgnn.sim.simulate import simulate
    from simgnn.sim.spread import estimate_spread

    chosen = chosen or choose_profile(experiment)
    prepared = prepare(experiment, default_cluster=default_cluster(chosen.profile), stage=reporter.stage)
    if prepared.planned.undeclared:
        raise ConfigError(
            f"model.kind: got '{prepared.planned.undeclared[0]}', expected a layer that declares its cost, so that it "
            "can be simulated: give the class a static method 'work' (README, 'Your own layer')"
        )
    threads = experiment.hardware.threads_per_rank
    hosts = prepared.experiment.rank_hosts()
    machine = Machine.place(chosen.profile, hosts, None if threads == "auto" else threads)
    reporter.stage(f"simulating {experiment.train.epochs} epochs on {chosen.label}")
    simulation = simulate(
        prepared.planned.program,
        machine,
        stats=prepared.stats,
        epochs=experiment.train.epochs,
        evaluate_every=experiment.train.eval_every or experiment.train.epochs,  # the last epoch is always evaluated
    )
    spread = estimate_spread(simulation, machine, prepared.stats)
    return Prediction(prepared, chosen, simulation, spread, _result(prepared, chosen, simulation, spread))


def _result(prepared: "Prepared", chosen: "ChosenProfile", simulation: "Simulation", spread: "Spread") -> "Result":
    import numpy as np

    from simgnn.program.digest import program_digest
    from simgnn.record.provenance import environment, versions
    from simgnn.record.result import RankTimes, Result
    from simgnn.record.summary import buffer_bytes

    experiment, program, facts = prepared.experiment, simulation.program, prepared.stats.facts
    steady = slice(1, None) if len(simulation.epoch_s) > 1 else slice(None)
    times = {name: getattr(simulation, name) for name in ("compute_s", "wait_s", "comm_total_s", "comm_exposed_s")}
    for waiting in ("wait_s", "comm_exposed_s"):
        times[waiting] = np.maximum(times[waiting] + spread.wait_s, 0.0)
    times = {name: np.median(values[steady], axis=0) for name, values in times.items()}
    counts = chosen.profile.source_counts()
    told = [f"{count} {source}" for source, count in counts.items() if count]
    return Result(
        backend="sim",
        status=simulation.status,
        message=simulation.message,
        name=experiment.name,
        digest=simulation.digest,
        program_digest=program_digest(program),
        hardware=chosen.profile.meta.name,
        seed=experiment.seed,
        ranks=program.ranks,
        hosts=len(set(program.hosts)),
        epochs=experiment.train.epochs,
        versions=versions(),
        environment=environment(),
        epoch_s=spread.epoch_s,
        epoch_s_median=spread.epoch_s_median,
        epoch_s_interval=spread.interval,
        jitter=jitter_correction(simulation, spread),
        per_rank=[
            RankTimes(**{name: float(values[rank]) for name, values in times.items()}) for rank in range(program.ranks)
        ],
        bytes_sent=simulation.bytes_sent().tolist(),
        bytes_sent_first_epoch=simulation.bytes_sent(0).tolist(),
        collective_bytes=simulation.sum_by_rank("collective_bytes").tolist(),
        control_bytes=simulation.sum_by_rank("control_bytes").tolist(),
        messages=simulation.messages().tolist(),
        buffer_bytes=buffer_bytes(program),
        peak_memory_bytes=simulation.memory.both.tolist(),
        energy_J=None if simulation.energy is None else simulation.energy.total_J,
        accuracy_metric="micro_f1" if facts.multilabel else "accuracy",
        extrapolated=list(simulation.extrapolated),
        uncalibrated=chosen.uncalibrated or simulation.uncalibrated,
        synthetic=[word for word in ("features", "labels") if getattr(facts, f"synthetic_{word}")],
        notes=[
            *([NO_CALIBRATION.format(chosen.label)] if chosen.fallback else []),
            *filter(None, [chosen.profile.assumptions()]),
            *prepared.stats.notes,
        ],
        confidence={
            "hardware": f"numbers of '{chosen.profile.meta.name}': {', '.join(told)}",
            "interval": interval_confidence(spread),
        },
    )


def jitter_correction(simulation: "Simulation", spread: "Spread") -> "JitterCorrection | None":
    """The correction for the record; None where the profile tells no jitter."""
    from simgnn.record.result import JitterCorrection

    if not spread.jitter_known:
        return None
    waits: dict[str, float] = {}
    for (_, op), seconds in spread.op_wait_s.items():
        waits[op] = waits.get(op, 0.0) + seconds
    return JitterCorrection(
        epoch_s_median=simulation.epoch_s_median,
        added_s=spread.epoch_s_median - simulation.epoch_s_median,
        wait_s=waits,
        interval_parts=spread.parts,
    )


def interval_confidence(spread: "Spread") -> str:
    """What the interval of a prediction rests on."""
    if spread.interval is None:
        return (
            f"none: the hardware profile tells the spread of {100 * spread.covered:.0f} % of the time only; measure it "
            "with `simgnn calibrate`"
        )
    jitter = "" if spread.jitter_known else "; jitter was not measured: waiting that it makes is left out"
    return (
        f"90 %, log-normal; spread known for {100 * spread.covered:.0f} % of the time; misses of one curve fully "
        f"correlated, curves independent, one drift for all; coverage not validated here{jitter}"
    )


def write_prediction(prediction: Prediction, out: Path, force: bool = False) -> Path:
    """Write the run directory of a prediction; ``result.json`` comes last, so that what has one is whole."""
    from simgnn.experiment.directory import write_run_directory
    from simgnn.record.result import write_result
    from simgnn.record.rundir import RunDirectory, ops_table, write_table
    from simgnn.report.perfetto import write_perfetto

    simulation = prediction.simulation
    run = RunDirectory(write_run_directory(prediction.prepared, out, prediction.chosen.profile, force=force))
    write_table(simulation.trace, run.trace)
    write_table(ops_table(simulation.program), run.ops)
    write_table(simulation.traffic_table, run.traffic)
    write_perfetto({"predicted": run.root}, run.perfetto, TRACE_EPOCHS, predictions=["predicted"])
    write_result(prediction.result, run.result)
    return run.root
