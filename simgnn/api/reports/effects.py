"""Predictions of an experiment with other numbers: of the hardware profile, of its own options, and with even work."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgnn.api.experiments import load_experiment
from simgnn.api.predict import Prediction, predict, simulation_of
from simgnn.errors import SimgnnError
from simgnn.experiment.slots import SLOTS
from simgnn.progress import Progress
from simgnn.record.explanation import Effect, EvenWork
from simgnn.sim.limited_by.even_work import even_shares, with_even_work
from simgnn.sim.limited_by.sensitivity import numbers_in_use, with_changes
from simgnn.sim.simulate import Simulation
from simgnn.sim.spread.intervals import estimate_spread


def even_work(prediction: Prediction) -> EvenWork:
    """Predict with work spread so that all ranks compute equally long."""
    simulation, machine, prepared = prediction.simulation, prediction.machine, prediction.prepared
    typical_s = _typical_s(prediction)

    def simulated(shares: NDArray[np.float64]) -> Simulation:
        program = with_even_work(simulation.program, shares)
        changed = replace(prepared, planned=replace(prepared.planned, program=program))
        again = simulation_of(changed, prediction.replay)
        return again.simulate(machine, prepared.experiment.train.epochs)

    ranks = simulation.program.ranks
    equal = np.full(ranks, 1.0 / ranks)
    found = simulated(equal)
    # where devices differ, equal work takes unequal time: shares by their speed
    shares = even_shares(np.median(found.compute_s, axis=0))
    if np.abs(shares - equal).max() > 0.01 / ranks:
        found = simulated(shares)
    else:
        shares = equal
    return EvenWork(epoch_s=typical_s(found, machine), shares=shares.tolist())


def effects_of_numbers(prediction: Prediction, progress: Progress) -> Iterator[Effect]:
    """Predict with each number of the profile twice and half as good."""
    machine, experiment = prediction.machine, prediction.prepared.experiment
    numbers = numbers_in_use(machine, prediction.simulation.program)
    again = simulation_of(prediction.prepared, prediction.replay)
    changes = with_changes(numbers, machine, again, experiment.train.epochs, _typical_s(prediction))
    with progress.counting("numbers of the profile, twice and half as good", len(numbers)) as counter:
        counter.at(0)
        for done, changed in enumerate(changes, start=1):
            counter.at(done)
            number = changed.number
            yield Effect(
                key=number.key,
                part=number.part,
                value=number.value,
                source=number.source,
                better_s=changed.better_s,
                worse_s=changed.worse_s,
                better="twice as good",
                worse="half as good",
            )


def effects_of_options(prediction: Prediction, progress: Progress) -> Iterator[Effect]:
    """Predict with twice and half of each amount that policies state: rows of caches, bits, batches, epochs."""
    experiment = prediction.prepared.experiment
    for slot in SLOTS:
        for option, value in getattr(experiment, slot).stated_amounts().items():
            key, told, refused = f"{slot}.{option}", [], list[str]()
            for other in (value * 2, value / 2 if isinstance(value, float) else max(value // 2, 1)):
                if other == value:
                    continue
                progress.stage(f"predicting with {key} = {other}")
                seconds = _with_option(prediction, key, other, refused)
                told.append((seconds, f"{other}"))
            told.sort(key=lambda one: (one[0] is None, one[0] or 0.0))
            (better_s, better), (worse_s, worse) = [*told, (None, "-")][:2]
            yield Effect(
                key=key, part="experiment", value=f"{value}", source=None, better_s=better_s, worse_s=worse_s,
                better=better, worse=worse, refused=refused,
            )  # fmt: skip


def _with_option(prediction: Prediction, key: str, value: float, refused: list[str]) -> float | None:
    experiment = prediction.prepared.experiment
    try:
        changed = load_experiment(experiment, set={key: value})
        found = predict(changed, Progress(), prediction.chosen, limits=False)
    except SimgnnError as error:
        refused.append(f"{key} = {value}: {error}")
        return None
    if found.result.epoch_s_median is None:
        refused.append(f"{key} = {value}: {found.result.message}")
    return found.result.epoch_s_median


def _typical_s(prediction: Prediction) -> Callable[[Simulation, Any], float]:
    """How ``simgnn simulate`` gets the median epoch from a simulation on a machine."""
    stats, activity = prediction.prepared.stats, prediction.replay.activity
    return lambda simulation, machine: estimate_spread(simulation, machine, stats, activity).epoch_s_median
