"""Predicts an experiment by simulation, and writes the run directory of a prediction."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from simgnn.analysis.compare import timed_ops
from simgnn.analysis.replay.activity import Replay
from simgnn.analysis.replay.recorded_run import on_clock
from simgnn.api.activity import check_run, find_activity
from simgnn.api.memory.chunk_memory import chunk_shortfall, simulated_needs, trials_of
from simgnn.api.results import Outcome
from simgnn.errors import ConfigError
from simgnn.experiment.schema import Experiment
from simgnn.experiment.slots import SLOTS
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.price.work import choose_level
from simgnn.hardware.profile.library import calibration_path
from simgnn.hardware.profile.profile import Profile, load_profile
from simgnn.planner.directory import write_run_directory
from simgnn.planner.make_plan import plan
from simgnn.planner.memory.cache_capacity import with_capacities
from simgnn.planner.memory.largest_cache import largest_caches, without_caches
from simgnn.planner.memory.program_memory import shortfall
from simgnn.planner.prepare import STATISTICS, Prepared, prepare, with_default_cluster
from simgnn.program.drain_points import Stops
from simgnn.program.program import Program
from simgnn.progress import Progress
from simgnn.record.batches import batch_table, draws_batches, input_rows
from simgnn.record.energy import sum_of
from simgnn.record.epoch_kinds import kinds_of, typical
from simgnn.record.memory import budget_peak
from simgnn.record.result import (
    STATED_DECISIONS,
    WEIGHTED_SUMS,
    DroppedEdges,
    EvaluationCost,
    JitterCorrection,
    RankTimes,
    Result,
    environment,
    versions,
    write_result,
)
from simgnn.record.rundir import RunDirectory, ops_table, write_table
from simgnn.record.stages import StageTimes, stage_times
from simgnn.record.summary import buffer_bytes, described_kinds, evaluation_s, halo_rows
from simgnn.record.traffic import traffic_by_rank
from simgnn.registry import reported
from simgnn.report.perfetto import write_perfetto
from simgnn.sim.limited_by.find import EVENTS, Resimulation, find_limits
from simgnn.sim.link_traffic import traffic_by_link
from simgnn.sim.simulate import Simulation, simulate
from simgnn.sim.spread.intervals import Spread, estimate_spread

if TYPE_CHECKING:
    import pandas as pd

FALLBACK_PROFILE = "cpu-100gbe-8"
"""Shipped profile for a machine that was never calibrated; the result is marked uncalibrated."""
TRACE_EPOCHS = 10
"""Number of epochs in ``trace.perfetto.json``: enough to see, small enough to load at once."""
NO_CALIBRATION = (
    "this machine was never calibrated, so '{}' stands in for it: run `simgnn calibrate` first, or name a profile with "
    "--hardware (`simgnn demo` keeps the one that it measured, as runs/demo/hardware.toml)"
)
THROUGH_HOSTS = (
    "what travels on the stream '{}' goes through host memory by Gloo, since on GPUs two collectives of NCCL at once "
    "could block each other; with a schedule.kind that sends all messages in turn they travel by NCCL"
)
BUNDLED = "{} ops send so many messages a round that those between a rank and a host flow as one, at their mean size"
UNLOADED = (
    "streams {} talk between hosts at once: that small messages wait behind large ones on a link, and that bytes take "
    "processor time from work, is not modelled, as the profile states no load of {}; times may be too short"
)
STOPS_EARLY = "train.patience = {}: training may end before epoch {}; this is the time of all {} epochs, an upper bound"
TIMED = "time_to_accuracy is the accuracy that the run {} reached after its epochs, at their predicted ends"
UNCACHED_EPOCHS = 4
"""Number of epochs that are simulated to see how long they take with empty caches."""
EVALUATED_EPOCHS = 6
"""Number of epochs that are simulated to see what evaluations cost."""
RESERVED = (
    "assumed: the rules of PyTorch's caching allocator, replayed; no CUDA device has run a program here. CUDA's "
    "context and NCCL's own buffers, some hundred MiB on a GPU, are not in it"
)


@dataclass(frozen=True)
class ChosenProfile:
    """A profile with its name or path. ``fallback``: used only because this machine was never calibrated."""

    profile: Profile
    label: str
    fallback: bool = False

    @property
    def uncalibrated(self) -> bool:
        """Whether the times were not measured on the machine that the profile describes."""
        return self.fallback or not self.profile.calibrated


def known_profile(experiment: Experiment) -> ChosenProfile | None:
    """Return the profile that the experiment names, else this machine's last calibration, else None."""
    named, last = experiment.hardware.profile, calibration_path()
    if named is not None:
        return ChosenProfile(load_profile(named), named)
    return ChosenProfile(load_profile(last), str(last)) if last.is_file() else None


def default_cluster(profile: Profile) -> tuple[int, int]:
    """Return hosts and ranks per host for an experiment that states none: all hosts of the profile, one rank for each
    device. For CPUs use the largest calibrated number of ranks, for a testbed the declared number."""
    hosts = [host for _, host in profile.topology.host_names()]
    each = min(sum(placed.count for placed in host.devices) for host in hosts)
    return len(hosts), profile.usual_ranks(each)


@dataclass(frozen=True, repr=False)
class Prediction(Outcome):
    """A simulated experiment: what was prepared, the chosen profile, the simulation and the result."""

    prepared: Prepared
    chosen: ChosenProfile
    simulation: Simulation
    spread: Spread

    def _op_times(self) -> "pd.DataFrame":
        if self.simulation.status != "ok":
            return super()._op_times()  # there is no trace, and it says so
        return timed_ops(self.simulation.trace, ops_table(self.simulation.program))


def predict(
    experiment: Experiment,
    progress: Progress,
    chosen: ChosenProfile | None = None,
    activity: Path | None = None,
    counted: Path | None = None,
    limits: bool = True,
    thorough: bool = False,
    record: Sequence[str] = (),
) -> Prediction:
    """Simulate an experiment on its profile (or on ``chosen``), with the decisions of the run in ``activity``, and with
    batches of the sizes in ``counted``. ``limits``: find what limits it, which takes a few more simulations;
    ``thorough``: also where these take long. ``record``: words of the command that records such a run, for the error
    message if one is needed. Raises :class:`ConfigError` for layers that declare no cost."""
    chosen = known_or_fallback(chosen or known_profile(experiment))
    if chosen.fallback:
        progress.stage(NO_CALIBRATION.format(chosen.label))
    if activity is not None:
        check_run(experiment, activity)  # before minutes go into graph and partition
    _check_machine(experiment, chosen.profile)
    cluster = default_cluster(chosen.profile)
    # the partition is that of a run, which knows no stand-in for this machine and no other numbers than the profile
    known = known_profile(experiment)
    prepared = prepare(
        experiment,
        default_cluster=cluster,
        counted=counted,
        profile=None if known is None else known.profile,
        needs=simulated_needs(known_or_fallback(known).profile),
        progress=progress,
    )
    check_declared(prepared)
    machine = Machine.place(chosen.profile, prepared.experiment.rank_hosts(), experiment.hardware.threads)
    with reported(getattr(experiment, slot) for slot in SLOTS):
        found = find_activity(prepared, activity, record)
        progress.stage(f"simulating {experiment.train.epochs} epochs on {chosen.label}")
        again = simulation_of(prepared, found)
        simulation = again.simulate(machine, experiment.train.epochs)
        if short := _shortfall(prepared, simulation, chosen.profile, known, progress):
            simulation = replace(simulation, status="oom", message=short)
        spread = estimate_spread(simulation, machine, prepared.stats, found.activity)
        limited_by = None
        if limits and simulation.status == "ok":
            jitter_s = spread.epoch_s_median - simulation.epoch_s_median if spread.jitter_known else 0.0
            limited_by = find_limits(
                simulation,
                machine,
                again,
                stats=prepared.stats,
                activity=found.activity,
                jitter_s=max(jitter_s, 0.0),
                events=inf if thorough else EVENTS,
            )
    result = _result(prepared, chosen, machine, simulation, spread, found)
    if simulation.status == "oom" and (remedy := _smaller_caches(prepared, machine)):
        result = result.model_copy(update={"message": f"{result.message}; {remedy}"})
    evaluation = None
    apart = any(getattr(experiment, slot).evaluates_apart for slot in SLOTS)
    if apart and not experiment.train.eval_every and simulation.status == "ok":
        evaluation = _evaluation_cost(experiment, simulation, simulation_of(prepared, found, 1), machine)
    stages = _stage_times(prepared, machine, simulation, spread, compared=limits) if simulation.status == "ok" else None
    result = result.model_copy(update={"limited_by": limited_by, "evaluation": evaluation, "stages": stages})
    return Prediction(result, None, prepared, chosen, simulation, spread)


def known_or_fallback(known: ChosenProfile | None) -> ChosenProfile:
    """Return a known profile, or the shipped one that stands in for a machine that was never calibrated."""
    return known or ChosenProfile(load_profile(FALLBACK_PROFILE), FALLBACK_PROFILE, fallback=True)


def _shortfall(
    prepared: Prepared, simulation: Simulation, profile: Profile, known: ChosenProfile | None, progress: Progress
) -> str:
    """Describe which rank needs more than its budget, and what to do; "" if none does."""
    experiment, held = prepared.experiment, simulation.memory.own
    if experiment.communication.moves != "chunks" or not shortfall(experiment, held):
        return shortfall(experiment, held)
    stated = None if known is None else known.profile
    trials = None if prepared.graph is None else trials_of(prepared, profile, stated, progress)
    return chunk_shortfall(prepared, held, simulation, trials)


def _smaller_caches(prepared: Prepared, machine: Machine) -> str:
    """Name the caches of halo rows that fit into the machine's memory; "" if the experiment states none."""
    if not prepared.experiment.freshness.caches_halo:
        return ""

    def fits(experiment: Experiment) -> bool:
        program = plan(with_capacities(experiment, prepared.stats, machine.profile)[0], prepared.stats).program
        epochs = min(experiment.train.epochs, 2)  # one that fills the caches, and one that reads them
        found = simulate(program, machine, stats=prepared.stats, epochs=epochs, evaluate_every=epochs)
        return found.status == "ok" and not shortfall(experiment, found.memory.own)

    return largest_caches(prepared.experiment, int(prepared.stats.halo_rows().max(initial=0)), fits)


def _stage_times(
    prepared: Prepared, machine: Machine, simulation: Simulation, spread: Spread, compared: bool
) -> StageTimes | None:
    """Return the times of stages if the simulated program has caches of halo rows; ``compared``: also the time of an
    epoch with empty ones, which takes another simulation."""
    columns, program = simulation.columns, simulation.program
    training = columns["step"] >= 0
    rank, epoch, op_id = (columns[name][training] for name in ("rank", "epoch", "op_id"))
    lasted = (columns["ended_s"] - columns["issued_s"])[training]
    found = stage_times(program, rank, epoch, op_id, lasted, spread.epoch_s_median)
    if found is None or not compared:
        return found
    experiment = without_caches(prepared.experiment)
    again = simulate(
        plan(experiment, prepared.stats).program, machine, stats=prepared.stats,
        epochs=min(experiment.train.epochs, UNCACHED_EPOCHS), schedule=experiment.schedule,
    )  # fmt: skip
    without = estimate_spread(again, machine, prepared.stats, {})
    return found.against(without.epoch_s_median, spread.epoch_s_median)


def _evaluation_cost(
    experiment: Experiment, simulation: Simulation, again: Resimulation, machine: Machine
) -> EvaluationCost:
    """Compare a few epochs, which `again` simulates with an evaluation after each, with those of a simulation."""
    calendar, epochs = simulation.program.calendar, min(EVALUATED_EPOCHS, experiment.train.epochs)
    if calendar.cycles and experiment.freshness.late:  # waits depend on the kind of epoch: all that were simulated
        epochs = max(epochs, min(calendar.period + 1, len(simulation.epoch_s)))
    often = again.simulate(machine, epochs)
    longer_s = max(often.epoch_s_median - simulation.epoch_s_median, 0.0)
    return EvaluationCost(
        evaluate_s=evaluation_s(often.columns), drain_s=longer_s if experiment.freshness.late else None
    )


def simulation_of(prepared: Prepared, found: Replay, evaluate_every: int = 0) -> Resimulation:
    """Return how to place and simulate a prepared experiment with the decisions ``found``. ``evaluate_every``: epochs
    between evaluations, if not those of the experiment."""
    experiment = prepared.experiment
    run = experiment.train

    def place(profile: Profile) -> Machine:
        return Machine.place(profile, experiment.rank_hosts(), experiment.hardware.threads)

    def simulated(machine: Machine, epochs: int) -> Simulation:
        return simulate(
            prepared.planned.program,
            machine,
            stats=prepared.stats,
            epochs=epochs,
            activity=found.activity,
            # the last epoch is always evaluated
            evaluate_every=evaluate_every or run.eval_every or run.epochs,
            stops=Stops(run.epochs, checkpoint_every=run.checkpoint_every),
            schedule=experiment.schedule,
        )

    return Resimulation(place, simulated)


def check_declared(prepared: Prepared) -> None:
    """Raise :class:`ConfigError` for layers that declare no cost."""
    if prepared.planned.undeclared:
        raise ConfigError(
            f"model.kind: got '{prepared.planned.undeclared[0]}', expected a layer that declares its cost, so that it "
            "can be simulated: give the class a static method 'work' (docs/own_layer.md)"
        )


def _check_machine(experiment: Experiment, profile: Profile) -> None:
    """Raise :class:`~simgnn.errors.HardwareError` if the profile has no place for the ranks or no price for drawing
    batches, before minutes are spent on them. Statistics files, whose own hosts count, are checked later."""
    if experiment.graph.source.startswith(STATISTICS):
        return
    sampling = experiment.sampling
    machine = Machine.place(profile, with_default_cluster(experiment, default_cluster(profile)).rank_hosts())
    if sampling is not None:
        for primitive in {work.primitive for work in sampling.drawing(len(sampling.fanouts))}:
            for rank in dict(zip(machine.types, range(machine.ranks), strict=True)).values():
                worker = machine.worker(rank, primitive, 1)
                choose_level(worker.device, worker.name, primitive, 1, machine.threads_per_rank[rank])


def write_prediction(prediction: Prediction, out: Path, force: bool = False) -> Path:
    """Write the run directory of a prediction. ``result.json`` comes last and so marks a complete directory. If memory
    runs out, tables of the run (trace, traffic, batches, memory) are not written."""
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


def _result(
    prepared: Prepared,
    chosen: ChosenProfile,
    machine: Machine,
    simulation: Simulation,
    spread: Spread,
    found: Replay,
) -> Result:
    """Build the result of a prediction with the decisions ``found``. It has no times and energy if memory runs out."""
    memory = simulation.memory
    traffic = traffic_by_rank(simulation.program, simulation.columns, simulation.payload_epochs)
    traffic = traffic.model_copy(update={"by_link": traffic_by_link(simulation, machine, found.activity)})
    experiment, program, facts = prepared.experiment, simulation.program, prepared.stats.facts
    train = experiment.train
    fits = simulation.status == "ok"
    timed = on_clock(found.accuracy, spread.epoch_s) if fits else []
    energy = list(simulation.energy) if fits else []
    batches = batch_table(program, simulation.trace) if fits and draws_batches(program) else None
    sources = [f"{count} {source}" for source, count in chosen.profile.source_counts().items() if count]
    return Result(
        backend="sim",
        status=simulation.status,
        message=simulation.message,
        name=experiment.name,
        digest=simulation.digest,
        program_digest=simulation.program_digest,
        hardware=chosen.profile.meta.name,
        seed=experiment.seed,
        ranks=program.ranks,
        hosts=len(set(program.hosts)),
        epochs=experiment.train.epochs,
        versions=versions(),
        environment=environment(),
        **(_times(simulation, spread) if fits else {"epoch_s": [], "epoch_s_median": None}),
        energy_J=sum_of(energy, "device", "total_J"),
        energy=energy,
        payload_epochs=(simulation.payload_epochs[0], simulation.payload_epochs[-1]),
        traffic=traffic,
        bytes_sent=simulation.bytes_sent().tolist(),
        bytes_sent_first_epoch=simulation.traffic.matrix(0).tolist(),
        collective_bytes=simulation.sum_by_rank("collective_bytes").tolist(),
        control_bytes=simulation.sum_by_rank("control_bytes").tolist(),
        messages=simulation.messages().tolist(),
        memory=[*memory.peaks, *budget_peak(experiment.placement.device_bytes, memory.own.tolist())],
        buffer_bytes=buffer_bytes(program),
        peak_memory_bytes=np.where(memory.gpu, memory.device, memory.both).tolist(),
        device_memory_bytes=memory.own.tolist(),
        shared_memory_bytes=memory.shared.tolist() if memory.shared.any() else None,
        host_memory_bytes=memory.host.tolist() if memory.gpu.all() else None,
        resident_memory_bytes=memory.reserved.tolist() if memory.reserved is not None and memory.gpu.all() else None,
        halo_rows=halo_rows(program),
        input_rows=None if batches is None else input_rows(batches),
        accuracy_metric="micro_f1" if facts.multilabel else "accuracy",
        time_to_accuracy=timed or None,
        extrapolated=[*prepared.estimated, *simulation.extrapolated],
        assumed=[
            *simulation.assumed,
            *([WEIGHTED_SUMS] if facts.weighted else []),
            *([STATED_DECISIONS] if found.assumed else []),
        ],
        transferred=found.transferred,
        dropped_edges=None if prepared.dropped_edges is None else DroppedEdges(**prepared.dropped_edges),
        uncalibrated=chosen.uncalibrated or simulation.uncalibrated,
        synthetic=[word for word in ("features", "labels") if getattr(facts, f"synthetic_{word}")],
        notes=[
            *([NO_CALIBRATION.format(chosen.label)] if chosen.fallback else []),
            *filter(None, [chosen.profile.assumptions()]),
            *chosen.profile.limits(),
            *_idle_hosts(program, chosen.profile),
            *_through_hosts(program, chosen.profile),
            *unmodelled_waiting(program, chosen.profile),
            *prepared.stats.notes,
            *([STOPS_EARLY.format(train.patience, train.epochs, train.epochs)] if train.patience else []),
            *([BUNDLED.format(len(simulation.bundled))] if simulation.bundled else []),
            *([TIMED.format(found.run)] if timed else []),
            *found.notes,
        ],
        confidence={
            "hardware": f"numbers of '{chosen.profile.meta.name}': {', '.join(sources)}",
            **({"interval": _interval_confidence(spread)} if fits else {}),
            **({} if memory.reserved is None else {"memory": RESERVED}),
        },
    )


def _idle_hosts(program: Program, profile: Profile) -> list[str]:
    """Say so where hosts of the profile have no ranks, since these may have been meant to be spread."""
    used, hosts = len(set(program.hosts)), len(profile.topology.host_names())
    if used >= hosts:
        return []
    remedy = "" if program.ranks % hosts else f"; --set cluster.hosts={hosts} spreads them over all"
    return [f"all ranks are on {used} of the profile's {hosts} hosts{remedy}"]


def _through_hosts(program: Program, profile: Profile) -> list[str]:
    """Say which streams of GPUs use Gloo, as that may take longer than all they could hide."""
    if profile.default_backend() != "nccl":
        return []
    groups = {name for name, group in program.groups.items() if group.backend == "gloo"}
    streams = sorted(stream.name for stream in program.streams.values() if stream.group in groups)
    return [THROUGH_HOSTS.format("', '".join(streams))] if streams else []


def unmodelled_waiting(program: Program, profile: Profile) -> list[str]:
    """Describe the waiting between hosts that is not modelled, as links state no ``load``; [] with a single stream."""
    streams = {op.stream for _, op in program.ops if program.group_of(op) is not None}
    if len(set(program.hosts)) < 2 or len(streams) < 2:
        return []
    links = sorted({edge.link for edge in profile.topology.edges if profile.links[edge.link].load is None})
    return [UNLOADED.format(" and ".join(sorted(streams)), ", ".join(links))] if links else []


def _times(simulation: Simulation, spread: Spread) -> dict[str, Any]:
    kinds = kinds_of(simulation.program.calendar, len(simulation.epoch_s))
    times = {name: getattr(simulation, name) for name in ("compute_s", "wait_s", "comm_total_s", "comm_exposed_s")}
    for waiting in ("wait_s", "comm_exposed_s"):
        times[waiting] = np.maximum(times[waiting] + spread.wait_s, 0.0)
    times["communication_s"] = times["wait_s"] + times["comm_total_s"]
    times = {name: typical(values, kinds).tolist() for name, values in times.items()}
    return {
        "epoch_s": spread.epoch_s,
        "epoch_s_median": spread.epoch_s_median,
        "epoch_kinds": described_kinds(spread.epoch_s, simulation.program.calendar),
        "epoch_s_interval": spread.interval,
        "jitter": _jitter_correction(simulation, spread),
        "per_rank": [
            RankTimes(**dict(zip(times, of_rank, strict=True))) for of_rank in zip(*times.values(), strict=True)
        ],
    }


def _jitter_correction(simulation: Simulation, spread: Spread) -> JitterCorrection | None:
    """Return what jitter adds to the epoch; None if the profile has no jitter."""
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


def _interval_confidence(spread: Spread) -> str:
    """Describe what the interval of a prediction is based on."""
    if spread.interval is None:
        return (
            f"none: the hardware profile has the spread of {100 * spread.covered:.0f} % of the time only; measure it "
            "with `simgnn calibrate`"
        )
    jitter = "" if spread.jitter_known else "; jitter was not measured: waiting that it makes is left out"
    return (
        f"90 %, log-normal; spread known for {100 * spread.covered:.0f} % of the time; misses of one curve fully "
        f"correlated, curves independent, one drift for all; coverage not validated here{jitter}"
    )
