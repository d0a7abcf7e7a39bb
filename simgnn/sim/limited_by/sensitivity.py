"""How a predicted epoch changes with each number of the profile: twice as good, and half as good. Everything else is
unchanged: partition, plan and decisions are those of the prediction."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from simgnn.hardware.price.machine import Machine
from simgnn.hardware.profile.numbers import ProfileNumber, grouped_numbers
from simgnn.hardware.profile.profile import Profile
from simgnn.program.program import Program
from simgnn.sim.limited_by.find import Resimulation
from simgnn.sim.simulate import Simulation


@dataclass(frozen=True)
class Changed:
    """Seconds of a typical epoch with a number twice as good (``better_s``) and half as good (``worse_s``)."""

    number: ProfileNumber
    better_s: float
    worse_s: float


def numbers_in_use(machine: Machine, program: Program) -> list[ProfileNumber]:
    """Return the numbers of a machine's profile that a program can depend on: without devices that run no rank, and
    without curves of work that it does not do where the device has curves of all that it does."""
    done = {piece.primitive for _, op in program.ops for piece in op.work} | {"copy"}
    return [number for number in grouped_numbers(machine.profile) if _in_use(number, machine, done)]


def _in_use(number: ProfileNumber, machine: Machine, done: set[str]) -> bool:
    path = number.paths[0]
    if number.part != "device":
        return True
    if path[1] not in machine.working_types:
        return False
    curves = machine.profile.devices[str(path[1])].curves
    if path[2] != "curves":
        return True
    known = {curve.primitive for curve in curves}
    primitives = {curves[int(path[3])].primitive for path in number.paths}
    # work without a curve is priced by others
    return bool(primitives & done) or not done <= known


def with_changes(
    numbers: Iterable[ProfileNumber],
    machine: Machine,
    again: Resimulation,
    epochs: int,
    typical_s: Callable[[Simulation, Machine], float],
) -> Iterator[Changed]:
    """Simulate ``epochs`` epochs with each number twice and half as good; ``typical_s``: the time to report."""

    def seconds(profile: Profile) -> float:
        changed = again.place(profile)
        return typical_s(again.simulate(changed, epochs), changed)

    for number in numbers:
        better, worse = number.doubled(machine.profile), number.halved(machine.profile)
        yield Changed(number, seconds(better), seconds(worse))
