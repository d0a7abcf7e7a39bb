"""The policies of ``docs/extend.md`` in a folder outside of the tree, and runs that name them."""

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from executor.state.plan import RunPlan
from simgnn.program.dispatch import Picks
from simgnn.program.program import Program
from simgnn.program.storage import load_program
from simgnn.record.activity import decisions_in, decisions_of, read_activity
from simgnn.record.rundir import RunDirectory, read_table
from simgnn.registry import add_to_path
from simgnn.sim.simulate import Simulation, simulate
from tests.equality.counting import Decided, counted_rows, differences, planned_rows, turns_of
from tests.executor.harness import run_ranks
from tests.executor.minibatch.batch_runs import prepared_batches
from tests.executor.runs import prepared_run, small_graph, train_in_process
from tests.sim.worlds import machine

PAGE = Path(__file__).parents[2] / "docs" / "extend.md"
EPOCHS = 5
BATCHES = (f"train.epochs={EPOCHS}", "model.dropout=0.0", "train.eval_every=0")


def policies() -> dict[str, str]:
    """Name -> text of every file of Python that the page for authors shows."""
    return dict(re.findall(r"```python\n# (\w+)\.py\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL))


def outside(folder: Path) -> None:
    """Write these files to a package ``my_policies`` in a folder of a user's own, where modules are found."""
    package = folder / "my_policies"
    package.mkdir()
    for name, text in policies().items():
        (package / f"{name}.py").write_text(text)
    add_to_path(str(folder))


def imported(text: str) -> set[str]:
    """Modules of ours that a file imports."""
    tree = ast.parse(text)
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
    schedule: Picks | None

    @property
    def losses(self) -> list[float]:
        """Of every epoch, the same on all ranks."""
        first: list[float] = self.ranks[0]["losses"]
        assert all(rank["losses"] == first for rank in self.ranks)
        return first


def train_all(root: Path, ranks: int, cases: Mapping[str, Sequence[str]]) -> dict[str, Trained]:
    """Carry out every case of so many ranks, one after another in the same processes: those that name a batching on
    mini-batches of as many hosts, the others on the full graph of one."""
    graph, folders = small_graph(), {}
    for name, settings in cases.items():
        if any(setting.startswith("batching.") for setting in settings):
            folders[name] = prepared_batches(graph, root / name, ranks, 1, "distdgl", *BATCHES, *settings)
        else:
            folders[name] = prepared_run(graph, root / name, ranks, "train.eval_every=0", *settings)
    paths = [str(folder) for folder in folders.values()]
    found = run_ranks(ranks, train_in_process, root / "ranks", paths, joined=False)
    return {
        name: _trained(folder, [results[place] for results in found])
        for place, (name, folder) in enumerate(folders.items())
    }


def _trained(folder: Path, results: list[dict[str, Any]]) -> Trained:
    program, path = load_program(folder / "plan"), RunDirectory(folder).activity
    decided = decisions_of(read_activity(path), program.ranks) if path.is_file() else {}
    return Trained(folder, results, program, decided, RunPlan.open(folder).schedule)


def simulated(run: Trained) -> Simulation:
    """The program of a run in the simulator, with the decisions of the run."""
    activity = {name: run.decided[name] for name in decisions_in(run.program)}
    on = machine(list(run.program.hosts), kind="cpu", cores=64, threads=1, floor=0.05)
    return simulate(run.program, on, epochs=EPOCHS, activity=activity, evaluate_every=EPOCHS, schedule=run.schedule)


def differing(run: Trained) -> list[str]:
    """Every (rank, epoch, step, op) of which the program, the simulation and the run count other bytes or messages."""
    measured, predicted = counted_rows(read_table(RunDirectory(run.folder).trace)), counted_rows(simulated(run).trace)
    found = differences(predicted, measured)
    if run.program.calendar.steps == 1:  # of mini-batches the program lists rows, not the requests for them
        planned = planned_rows(run.program, turns_of(run.program, EPOCHS, (EPOCHS - 1,)), run.decided)
        found += differences(planned, measured)
    return found


def payload(run: Trained) -> int:
    """Bytes that all ranks sent to one another in training."""
    return int(sum(read_table(RunDirectory(run.folder).trace)["bytes_sent"].to_pylist()))
