"""Whether the files of a record are of one run: what two of them tell must be the same.

Each of them may be whole and sound, and of another run: an accuracy, or decisions, would be told of an experiment that
never reached or took them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simgnn.analysis.recorded_plan import AUTO
from simgnn.errors import ConfigError
from simgnn.experiment.problems import shown
from simgnn.experiment.schema import Experiment
from simgnn.program.digest import program_digest
from simgnn.program.program import Program
from simgnn.record.plan import PlanFile
from simgnn.record.result import Result
from simgnn.tomlfile import leaves

PLAN, RESULT, EXPERIMENT = "plan.json", "result.json", "experiment.toml"


def check_result(root: Path, plan: PlanFile, result: Result) -> None:
    """Raise :class:`ConfigError` where the result in ``root`` is not that of its plan."""
    planned = {"program_digest": plan.program_digest, "ranks": plan.ranks, "epochs": plan.train.epochs,
               "seed": plan.seed}  # fmt: skip
    _check(root, RESULT, {key: getattr(result, key) for key in planned}, PLAN, planned)


def check_program(root: Path, plan: PlanFile, program: Program) -> None:
    """Raise :class:`ConfigError` where the program in ``root`` is not that of its plan."""
    here = {"program_digest": program_digest(program), "ranks": program.ranks}
    _check(root, "its program", here, PLAN, {"program_digest": plan.program_digest, "ranks": plan.ranks})


def check_experiment(root: Path, plan: PlanFile, experiment: Experiment) -> None:
    """Raise :class:`ConfigError` where the ``experiment`` in ``root`` is not that of its plan, by what is trained and
    how. Which graph and which partition, their digests tell."""
    stated: dict[str, Any] = {slot: getattr(experiment, slot).model_dump(mode="json") for slot in plan.policies}
    planned: dict[str, Any] = dict(plan.policies)
    stated["batching"] = stated.get("batching", {"mini_batches": experiment.batching.mini_batches})
    planned["batching"] = planned.get("batching", {"mini_batches": False})
    stated |= {"seed": experiment.seed, "train": experiment.train.model_dump(mode="json")}
    planned |= {"seed": plan.seed, "train": plan.train.model_dump(mode="json")}
    stated["cluster"] = {"ranks": experiment.ranks, "hosts": len(set(experiment.rank_hosts()))}
    planned["cluster"] = {"ranks": plan.ranks, "hosts": len(set(plan.hosts))}
    stated["model"], planned["model"] = _stated_model(experiment), _planned_model(plan)
    _check(root, EXPERIMENT, stated, PLAN, planned)


def _stated_model(experiment: Experiment) -> dict[str, Any]:
    model = experiment.model
    function = model.function(experiment.batching.mini_batches)
    between = {"activation": function, "dropout": model.dropout} if model.layers > 1 else {}
    heads = {"heads": model.heads} if model.kind == "gat" and model.layers > 1 else {}
    return {"kind": model.kind, "layers": model.layers, "hidden": list(model.hidden_widths()), **between, **heads}


def _planned_model(plan: PlanFile) -> dict[str, Any]:
    first, *more = plan.layers
    between = {"activation": first.function, "dropout": first.dropout} if more else {}
    heads = {"heads": first.heads} if first.kind == "gat" and more else {}
    hidden = [layer.width_out for layer in plan.layers[:-1]]
    return {"kind": first.kind, "layers": len(plan.layers), "hidden": hidden, **between, **heads}


def _check(root: Path, file: str, told: Mapping[str, Any], other: str, expected: Mapping[str, Any]) -> None:
    here, there = dict(leaves(told)), dict(leaves(expected))
    # options of another kind are other ones, so kinds are told first
    for path in sorted({*here, *there}, key=lambda path: (path[-1] != "kind", path)):
        got, want = here.get(path), there.get(path)
        if got != want and got != AUTO:  # what planning chose for auto
            raise ConfigError(
                f"--activity: the files in {root} are not of one run: {file} tells {'.'.join(path)} = {shown(got)}, "
                f"{other} {shown(want)}; expected the whole directory of one finished `simgnn run`: copy it again, or "
                "run the experiment again"
            )
