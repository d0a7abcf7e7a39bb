"""What a simulation amounts to, as the ``result.json`` of a prediction."""

from typing import Any

import numpy as np

from simgnn.analysis.replay.activity import Replay
from simgnn.analysis.replay.recorded_run import on_clock
from simgnn.cli.profiles import ChosenProfile
from simgnn.hardware.profile.profile import Profile
from simgnn.planner.prepare import Prepared
from simgnn.program.program import Program
from simgnn.program.storage import program_digest
from simgnn.record.batches import batch_table, draws_batches, input_rows
from simgnn.record.energy import sum_of
from simgnn.record.result import JitterCorrection, RankTimes, Result, environment, versions
from simgnn.record.summary import buffer_bytes
from simgnn.sim.memory.timeline import Memory
from simgnn.sim.simulate import Simulation
from simgnn.sim.spread.intervals import Spread

NO_CALIBRATION = "this machine was never calibrated, so '{}' stands in for it; run `simgnn calibrate` first"
BUNDLED = "{} ops send so many messages a round that those between a rank and a host flow as one, at their mean size"
UNLOADED = (
    "streams {} talk between hosts at once: that small messages wait behind large ones on a link, and that bytes take "
    "processor time from work, is not modelled, as the profile states no load of {}; times may be too short"
)
TIMED = "time_to_accuracy is the accuracy that the run {} reached after its epochs, at their predicted ends"
RESERVED = "assumed: the rules of PyTorch's caching allocator, replayed; no CUDA device has run a program here"


def prediction_result(
    prepared: Prepared, chosen: ChosenProfile, simulation: Simulation, spread: Spread, found: Replay
) -> Result:
    """The result of a prediction with the decisions that were ``found``; where memory runs out there is no epoch, so it
    tells no times and no energy."""
    experiment, program, facts = prepared.experiment, simulation.program, prepared.stats.facts
    fits = simulation.status == "ok"
    timed = on_clock(found.accuracy, spread.epoch_s) if fits else []
    energy = list(simulation.energy) if fits else []
    batches = batch_table(program, simulation.trace) if fits and draws_batches(program) else None
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
        **(_times(simulation, spread) if fits else {"epoch_s": [], "epoch_s_median": None}),
        energy_J=sum_of(energy, "device", "total_J"),
        energy=energy,
        payload_epochs=(simulation.payload_epochs[0], simulation.payload_epochs[-1]),
        bytes_sent=simulation.bytes_sent().tolist(),
        bytes_sent_first_epoch=simulation.traffic.matrix(0).tolist(),
        collective_bytes=simulation.sum_by_rank("collective_bytes").tolist(),
        control_bytes=simulation.sum_by_rank("control_bytes").tolist(),
        messages=simulation.messages().tolist(),
        buffer_bytes=buffer_bytes(program),
        **_memory(simulation.memory),
        input_rows=None if batches is None else input_rows(batches),
        accuracy_metric="micro_f1" if facts.multilabel else "accuracy",
        time_to_accuracy=timed or None,
        extrapolated=[*prepared.estimated, *simulation.extrapolated],
        assumed=list(simulation.assumed),
        transferred=found.transferred,
        uncalibrated=chosen.uncalibrated or simulation.uncalibrated,
        synthetic=[word for word in ("features", "labels") if getattr(facts, f"synthetic_{word}")],
        notes=[
            *([NO_CALIBRATION.format(chosen.label)] if chosen.fallback else []),
            *filter(None, [chosen.profile.assumptions()]),
            *chosen.profile.limits(),
            *unmodelled_waiting(program, chosen.profile),
            *prepared.stats.notes,
            *([BUNDLED.format(len(simulation.bundled))] if simulation.bundled else []),
            *([TIMED.format(found.run)] if timed else []),
            *found.notes,
        ],
        confidence={
            "hardware": f"numbers of '{chosen.profile.meta.name}': {', '.join(told)}",
            **({"interval": interval_confidence(spread)} if fits else {}),
            **({} if simulation.memory.reserved is None else {"resident_memory_bytes": RESERVED}),
        },
    )


def unmodelled_waiting(program: Program, profile: Profile) -> list[str]:
    """What a profile without loads hides of a program whose streams talk between hosts at once, in a sentence."""
    streams = {op.stream for _, op in program.ops if program.group_of(op) is not None}
    if len(set(program.hosts)) < 2 or len(streams) < 2:
        return []
    links = sorted({edge.link for edge in profile.topology.edges if profile.links[edge.link].load is None})
    return [UNLOADED.format(" and ".join(sorted(streams)), ", ".join(links))] if links else []


def _times(simulation: Simulation, spread: Spread) -> dict[str, Any]:
    """Fields of the result that are times, or made of them."""
    steady = slice(1, None) if len(simulation.epoch_s) > 1 else slice(None)
    times = {name: getattr(simulation, name) for name in ("compute_s", "wait_s", "comm_total_s", "comm_exposed_s")}
    for waiting in ("wait_s", "comm_exposed_s"):
        times[waiting] = np.maximum(times[waiting] + spread.wait_s, 0.0)
    times = {name: np.median(values[steady], axis=0) for name, values in times.items()}
    ranks = range(simulation.program.ranks)
    return {
        "epoch_s": spread.epoch_s,
        "epoch_s_median": spread.epoch_s_median,
        "epoch_s_interval": spread.interval,
        "jitter": jitter_correction(simulation, spread),
        "per_rank": [RankTimes(**{name: float(values[rank]) for name, values in times.items()}) for rank in ranks],
    }


def _memory(memory: Memory) -> dict[str, Any]:
    """Fields of the result that are memory: of a rank with a GPU its device's, and its host's beside it."""
    reserved = memory.reserved
    return {
        "peak_memory_bytes": np.where(memory.gpu, memory.device, memory.both).tolist(),
        "host_memory_bytes": memory.host.tolist() if memory.gpu.all() else None,
        "resident_memory_bytes": reserved.tolist() if reserved is not None and memory.gpu.all() else None,
    }


def jitter_correction(simulation: Simulation, spread: Spread) -> JitterCorrection | None:
    """The correction for the record; None where the profile tells no jitter."""
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


def interval_confidence(spread: Spread) -> str:
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
