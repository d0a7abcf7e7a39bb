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
            f"model.kind: got '{prepared.planned.undeclared[0]}', expected a layer that declares its cost, so that it can "
            "be simulated: give the class a static method 'work' (see simgnn/experiment/planning/user_layer.py)"
        )
    machine = Machine.place(chosen.profile, prepared.experiment.rank_hosts())
    reporter.stage(f"simulating {experiment.train.epochs} epochs on {chosen.label}")
    simulation = simulate(
        prepared.planned.program, machine, stats=prepared.stats, epochs=experiment.train.epochs
    )
    raise NotImplementedError
