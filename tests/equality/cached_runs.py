"""Runs whose caches decide what is sent: their settings, what they decided, and what must hold of any of them."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from simgnn.hardware.price.machine import Machine
from simgnn.hardware.profile.profile import load_profile
from simgnn.program.calendar import EVALUATE
from simgnn.program.program import Program
from simgnn.record.activity import decisions_in, decisions_of, read_activity
from simgnn.record.rundir import RunDirectory, read_table
from simgnn.sim.simulate import simulate
from tests.equality.cases import EPOCHS, Case
from tests.equality.conftest import Bench, Finished
from tests.equality.counting import (
    Decided,
    counted_pairs,
    counted_rows,
    differences,
    planned_calls,
    planned_pairs,
    planned_rows,
    turns_of,
)

FIXED = ("freshness.kind=adaptive-vertex", "freshness.epsilon=0", "freshness.adapt=false")
CACHE = ("freshness.kind=adaptive-vertex", "freshness.epsilon=0.03")
EIGHT_BITS = ("codec.kind=linear",)
DRAWN = ("codec.kind=stochastic", "codec.bits=4")
TRANSFORMED = ("communication.rows=transformed",)
PROFILE = str(Path(__file__).parents[1] / "hardware" / "data" / "invented-8x8.toml")


@dataclass(frozen=True)
class Recorded:
    """A run, its program and what it decided."""

    finished: Finished
    program: Program
    decided: Decided

    @property
    def losses(self) -> list[float]:
        """Of every epoch, the same on all ranks."""
        found: list[float] = self.finished.ranks[0]["losses"]
        return found


class Runs:
    """Each case is carried out once."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.of = lru_cache(None)(self._of)

    def _of(self, case: Case) -> Recorded:
        finished = self.bench.run(case)
        path = RunDirectory(finished.folder).activity
        decided = decisions_of(read_activity(path), case.ranks) if path.is_file() else {}
        return Recorded(finished, finished.plan.program, decided)


def case(*extra: str, ranks: int = 2, model: str = "gcn", graph: str = "communities") -> Case:
    """A run on a METIS edge-cut."""
    return Case(graph, model, "metis", ranks, extra=extra)


def check_exact(bench: Bench, one: Case) -> None:
    """What is trained is what one process trains."""
    found = bench.errors(one)
    assert max(found[name] for name in ("losses", "first gradients", "last gradients", "parameters")) <= 1e-9


def check_learns(lossy: Recorded, exact: Recorded) -> None:
    """Something is lost, and little of what is learned."""
    assert lossy.losses != exact.losses, "the codec or the cache did nothing"
    assert lossy.losses[-1] < lossy.losses[0]
    assert abs(lossy.losses[-1] - exact.losses[-1]) <= 0.1 * exact.losses[0]


def check_bytes(recorded: Recorded) -> None:
    """Program with the run's own decisions, transport, trace, calls and simulation tell the same bytes and messages, by
    op, rank and epoch; what arrived is what was sent."""
    program, decided, run = recorded.program, recorded.decided, RunDirectory(recorded.finished.folder)
    turns = turns_of(program, EPOCHS, (EPOCHS - 1,))
    rows = planned_rows(program, turns, decided)
    assert not differences(planned_pairs(program, turns, decided), counted_pairs(read_table(run.traffic)))
    assert not differences(rows, counted_rows(read_table(run.trace)))
    for rank, result in enumerate(recorded.finished.ranks):
        assert [tuple(call) for call in result["calls"]] == planned_calls(program, turns, rank, decided), f"rank {rank}"
    machine = Machine.place(load_profile(PROFILE), program.hosts)
    activity = {name: decided[name] for name in decisions_in(program)}
    simulation = simulate(program, machine, epochs=EPOCHS, activity=activity, evaluate_every=EPOCHS)
    assert not differences(rows, counted_rows(simulation.trace))
    training = [turn for turn in turns if turn.template != EVALUATE]  # a simulation tells no traffic of evaluations
    assert not differences(planned_pairs(program, training, decided), counted_pairs(simulation.traffic_table))
    for name in decided:
        if name.endswith("/arrived"):
            sent = decided[name.replace("/arrived", "/rows")].sum(axis=0)
            assert (decided[name] == sent).all(), name


def check_repeats(one: Recorded, again: Recorded) -> None:
    """Two runs are alike bit for bit, caches and decisions too; all ranks share a threshold."""
    threshold = one.finished.ranks[0]["caches"]["threshold#0"]
    for first, second in zip(one.finished.ranks, again.finished.ranks, strict=True):
        assert first["losses"] == second["losses"]
        assert first["parameters"].equal(second["parameters"])
        assert first["caches"].keys() == second["caches"].keys()
        assert all(first["caches"][name].equal(second["caches"][name]) for name in first["caches"])
        assert first["caches"]["threshold#0"].equal(threshold)
    tables = [read_activity(RunDirectory(run.finished.folder).activity) for run in (one, again)]
    assert tables[0].equals(tables[1])
