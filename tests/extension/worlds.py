"""Policies of a user in a folder outside of the tree, and experiments that name them."""

import ast
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simgnn.hardware.price.machine import Machine
from simgnn.hardware.profile.profile import load_profile
from simgnn.program.program import Program
from simgnn.program.storage import load_program
from simgnn.record.activity import decisions_in, decisions_of, read_activity
from simgnn.record.rundir import RunDirectory, read_table
from simgnn.registry import add_to_path
from simgnn.sim.simulate import Simulation, simulate
from tests.equality.counting import Decided, counted_rows, differences, planned_rows, turns_of
from tests.executor.harness import run_ranks
from tests.executor.runs import prepared_run, small_graph, train_in_process

POLICIES = Path(__file__).parent / "policies"
PROFILE = str(Path(__file__).parents[1] / "hardware" / "data" / "invented-8x8.toml")
EPOCHS = 5
ALLOWED = ("simgnn.policy", "simgnn.emit", "simgnn.program")
"""What a policy of a user may import of ours; of ``simgnn.program`` any module."""


def outside(folder: Path) -> Path:
    """A copy of the toy policies in a folder of a user's own, where modules are found."""
    copied = shutil.copytree(POLICIES, folder / "my_policies", ignore=shutil.ignore_patterns("__pycache__"))
    add_to_path(str(folder))
    return copied


def imported(path: Path) -> set[str]:
    """Modules of ours that a file imports."""
    tree = ast.parse(path.read_text())
    names = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    return {name for name in names if name.split(".")[0] in ("simgnn", "executor", "tests")}


@dataclass(frozen=True)
class Trained:
    """A run that has ended: its folder, what each rank returned, its program, what its policies decided."""

    folder: Path
    ranks: list[dict[str, Any]]
    program: Program
    decided: Decided

    @property
    def losses(self) -> list[float]:
        """Of every epoch, the same on all ranks."""
        first: list[float] = self.ranks[0]["losses"]
        assert all(rank["losses"] == first for rank in self.ranks)
        return first


def train_all(root: Path, ranks: int, cases: Mapping[str, Sequence[str]]) -> dict[str, Trained]:
    """Carry out every case of so many ranks, one after another in the same processes."""
    graph = small_graph()
    folders = {name: prepared_run(graph, root / name, ranks, *settings) for name, settings in cases.items()}
    found = run_ranks(
        ranks, train_in_process, root / "ranks", [str(folder) for folder in folders.values()], joined=False
    )
    return {
        name: _trained(folder, [results[place] for results in found])
        for place, (name, folder) in enumerate(folders.items())
    }


def _trained(folder: Path, results: list[dict[str, Any]]) -> Trained:
    program, path = load_program(folder / "plan"), RunDirectory(folder).activity
    decided = decisions_of(read_activity(path), program.ranks) if path.is_file() else {}
    return Trained(folder, results, program, decided)


def simulated(run: Trained) -> Simulation:
    """The program of a run in the simulator, with the decisions of the run."""
    activity = {name: run.decided[name] for name in decisions_in(run.program)}
    machine = Machine.place(load_profile(PROFILE), run.program.hosts)
    return simulate(run.program, machine, epochs=EPOCHS, activity=activity, evaluate_every=EPOCHS)


def differing(run: Trained) -> list[str]:
    """Every (rank, epoch, step, op) of which program, simulation and run count other bytes or messages."""
    turns = turns_of(run.program, EPOCHS, (EPOCHS - 1,))
    planned = planned_rows(run.program, turns, run.decided)
    counted = [read_table(RunDirectory(run.folder).trace), simulated(run).trace]
    return [difference for trace in counted for difference in differences(planned, counted_rows(trace))]


def payload(run: Trained) -> int:
    """Bytes that all ranks sent to one another in training."""
    return int(sum(read_table(RunDirectory(run.folder).trace)["bytes_sent"].to_pylist()))
