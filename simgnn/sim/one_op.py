"""Time of a single op, simulated as a program that contains only this op."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp

import numpy as np
from numpy.typing import NDArray

from simgnn.errors import HardwareError
from simgnn.hardware.price.collectives import find_collective
from simgnn.hardware.price.host_copies import host_route
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.price.operations import Question, Told, numbers_behind
from simgnn.hardware.price.uncertainty import saturation
from simgnn.hardware.profile.error_model import QUANTILE, combined
from simgnn.limits import MAX_PAIRED_RANKS
from simgnn.program.calendar import Calendar
from simgnn.program.kinds import OpKind
from simgnn.program.ops import Group, Op, Stream, Transfer, Work
from simgnn.program.program import Program, Template
from simgnn.program.sizes import Route, SizeTable
from simgnn.sim.shared_processors import ranks_at_work
from simgnn.sim.simulate import simulate


@dataclass(frozen=True)
class OpTime:
    """Time of one op. ``per_rank_s`` [P]: from the common start until each rank ends; ``seconds``: until the last ends.
    ``interval_s``: 90 % log-normal interval (None: no number has a spread). It combines the largest spread that the
    profile's ``numbers`` behind the time state, that of assumed numbers, each for its part of the time, and that of the
    distance from what was measured. Where more ranks of a host than were measured share network cards, it begins at
    cards that scale and ends at cards that are saturated."""

    seconds: float
    per_rank_s: NDArray[np.float64]
    interval_s: tuple[float, float] | None
    spread: float | None
    extrapolated: bool
    numbers: tuple[Told, ...]


def time_op(question: Question, machine: Machine) -> OpTime:
    """Simulate one op that all ranks of the machine begin at the same instant while nothing else runs.

    Raises :class:`HardwareError` for a price that the profile lacks, a time beyond the clock, and too many ranks.
    """
    if question.form.moves in ("send", "exchange") and machine.ranks > MAX_PAIRED_RANKS:
        raise HardwareError(
            f"--ranks: got {machine.ranks:,}, expected at most {MAX_PAIRED_RANKS:,} for '{question.op}', which has a "
            f"message for each pair of ranks. Use fewer ranks."
        )
    simulation = simulate(one_op_program(question, machine), machine, epochs=1)
    ended = np.zeros(machine.ranks)
    np.maximum.at(ended, simulation.columns["rank"], simulation.columns["ended_s"])
    numbers = numbers_behind(question, machine, ranks_at_work(machine), _crossed(question, machine))
    seconds = float(ended.max())
    spread = _spread(numbers, _delay_s(question, machine) / seconds if seconds else 0.0)
    longest = seconds + _saturation_s(question, machine)
    around = None if spread is None else (seconds * exp(-QUANTILE * spread), longest * exp(QUANTILE * spread))
    return OpTime(seconds, ended, around, spread, bool(simulation.extrapolated), tuple(numbers))


def one_op_program(question: Question, machine: Machine) -> Program:
    """Build a program of one turn in which every rank of the machine runs this op."""
    ranks, form, sizes = machine.ranks, question.form, question.sizes
    routes: dict[str, Route] = {}
    if form.primitive is not None:
        work = (Work(form.primitive.name, dict(sizes)),)
        op = Op(question.op, OpKind(form.primitive.kind), "compute", work=work)
    elif form.moves == "copy":
        op = Op(question.op, OpKind(question.op), "compute", transfer=Transfer(1, sizes["bytes"]))
    elif form.moves == "collective":
        transfer = Transfer(1, sizes["bytes"]) if "bytes" in sizes else None
        op = Op(question.op, OpKind(question.op), "comm", transfer=transfer, root=sizes.get("root"))
    else:
        # one message needs no call of the whole group, as an exchange does
        kind = OpKind.PEER_READ if form.moves == "send" else OpKind.EXCHANGE
        routes = {"pairs": Route.from_matrix(_matrix(question, ranks))}
        op = Op(question.op, kind, "comm", transfer=Transfer(1), route="pairs")
    group = Group("world", backend=question.backend)  # type: ignore[arg-type]
    return Program(
        name=f"time of {question.op}",
        templates={"once": Template("once", (op,))},
        calendar=Calendar(steady="once"),
        buffers={},
        streams={"compute": Stream("compute"), "comm": Stream("comm", group="world")},
        groups={"world": group},
        sizes=SizeTable(ranks, {}, routes),
        hosts=machine.hosts,
    )


def _spread(numbers: Sequence[Told], delay: float) -> float | None:
    """Combine the spreads of numbers; ``delay``: share of the op's time that passes before bytes flow."""
    whole = max((told.spread for told in numbers if told.spread is not None and told.effect is None), default=None)
    parts = {
        effect: share * max((told.spread or 0.0 for told in numbers if told.effect == effect), default=0.0)
        for effect, share in (("delay", min(delay, 1.0)), ("rate", max(1.0 - delay, 0.0)), ("distance", 1.0))
    }
    return combined(whole, *(part or None for part in parts.values()))


def _delay_s(question: Question, machine: Machine) -> float:
    """Seconds of a communication that pass before its bytes flow."""
    moves, everyone = question.form.moves, range(machine.ranks)
    if moves not in ("collective", "send", "exchange") or machine.ranks < 2:
        return 0.0
    if moves == "collective":
        return machine.collective(question.op, question.backend, question.sizes.get("bytes", 0), everyone).latency_s
    one, other = (question.sizes["from"], question.sizes["to"]) if moves == "send" else (0, machine.ranks - 1)
    latency = machine.message(one, other, 0, question.backend).latency_s
    if moves == "send":
        return latency
    call = machine.call("exchange", question.backend, everyone)
    return latency + call.floor_s + call.hop_s * (machine.ranks - 1)


def _saturation_s(question: Question, machine: Machine) -> float:
    """Seconds that the op takes longer if network cards of a host are saturated by the ranks that were measured."""
    if question.form.moves != "collective" or machine.ranks < 2:
        return 0.0
    everyone, nbytes = range(machine.ranks), float(question.sizes.get("bytes", 0))
    entry, _ = find_collective(machine, question.op, question.backend, everyone, nbytes)
    return saturation(entry, machine.ranks, machine.least_ranks_per_host(everyone), nbytes)


def _crossed(question: Question, machine: Machine) -> list[int]:
    """Positions of the links between device and host memory that the op or the copies of its library cross."""
    copies: list[tuple[int, bool]] = []
    if question.form.moves == "copy":
        copies = [(rank, question.op == "h2d") for rank in range(machine.ranks)]
    elif question.form.moves is not None:
        staged = [rank for rank in range(machine.ranks) if machine.through_host(rank, question.backend)]
        copies = [(rank, to_device) for rank in staged for to_device in (False, True)]
    routes = [host_route(machine, rank, to_device) for rank, to_device in copies]
    return [link for route in routes if route is not None for link in route.links]


def _matrix(question: Question, ranks: int) -> NDArray[np.int64]:
    if question.form.moves == "send":
        matrix = np.zeros((ranks, ranks), dtype=np.int64)
        matrix[question.sizes["from"], question.sizes["to"]] = question.sizes["bytes"]
        return matrix
    wanted = question.matrix
    matrix = np.full((ranks, ranks), question.sizes["bytes"]) if wanted is None else np.array(wanted, dtype=np.int64)
    np.fill_diagonal(matrix, 0)
    return matrix
