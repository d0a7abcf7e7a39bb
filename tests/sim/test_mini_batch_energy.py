"""Energy of mini-batch training in closed form: none without power, idle power all the time, less for less waiting
(docs/systems/rapidgnn.md)."""

import pytest

from sim.mini_batches import made_sizes, planned
from sim.worlds import machine, run
from simgnn.sim.simulate import Simulation

HOSTS, EPOCHS, STEPS = [0, 1], 2, 5


def simulated(system: str, idle: str, active: str, window: int = 3) -> Simulation:
    sizes = made_sizes(HOSTS, EPOCHS, STEPS, hot_rows=40 if system == "rapidgnn" else 0)
    program = planned(system, HOSTS, sizes, f"schedule.window={window}").program
    power = {"idle_power": idle, "active_power": active}
    return run(program, machine(HOSTS, kind="cpu", cores=64, threads=1, latency=1e-3, power=power), EPOCHS)


def joules(simulation: Simulation) -> float:
    told = [figure.total_J for figure in simulation.energy]
    assert len(told) == len(HOSTS)
    return sum(told)


@pytest.mark.parametrize("system", ["rapidgnn", "distdgl"])
def test_energy_lies_between_that_of_idle_and_of_busy_devices(system: str) -> None:
    alike = simulated(system, "50 W", "50 W")
    seconds = float(alike.columns["ended_s"].max())
    assert joules(alike) == pytest.approx(len(HOSTS) * 50 * seconds, rel=1e-9)
    assert joules(simulated(system, "0 W", "0 W")) == 0
    assert 0 < joules(simulated(system, "0 W", "50 W")) < joules(alike) < joules(simulated(system, "50 W", "300 W"))


def test_batches_that_are_staged_ahead_save_the_energy_of_waiting() -> None:
    turned, ahead = (simulated("rapidgnn", "50 W", "300 W", window) for window in (1, 4))
    assert sum(ahead.epoch_s) < sum(turned.epoch_s)
    assert joules(ahead) < joules(turned)
