"""Lets a run go on: what ``--resume`` may change in its directory, and what it refuses."""

import json
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from simgnn.emit.batches.placement import RowStore
from simgnn.errors import ConfigError
from simgnn.experiment.learning_rate import Cosine
from simgnn.experiment.schema import Experiment
from simgnn.experiment.sections import TrainSection
from simgnn.locks import locked_folder
from simgnn.planner.directory import EXPERIMENT_FILE, differences, plan_table, recorded_experiment, resolved_table
from simgnn.planner.make_plan import arrange_layers, plan
from simgnn.planner.prepare import Prepared, full_graph_stats, prepare
from simgnn.program.program import Program
from simgnn.program.storage import load_program, save_program
from simgnn.progress import Progress
from simgnn.record.early_stop import Patience
from simgnn.record.plan import PlanFile, read_plan
from simgnn.record.result import Result, read_result
from simgnn.record.rundir import RunDirectory, ops_table
from simgnn.seal import SEAL
from simgnn.tomlfile import load_toml, without_none, write_atomically, write_toml

EPOCHS, PATIENCE, T_MAX = "train.epochs", "train.patience", "train.learning_rate_schedule.t_max"
MAY_CHANGE = frozenset({EPOCHS, PATIENCE, T_MAX})
"""Keys that ``--resume`` takes from the experiment; all others are those of the run."""
SAME = ("partition_digest", "shards", "layers", "classes", "multilabel", "ranks", "hosts", "seed")
"""Fields of a plan that stay when it is planned for more epochs."""
PLAN_FILE = "plan.json"


def check_resumable(experiment: Experiment, out: Path | None, progress: Progress) -> Path:
    """Return the run directory to resume, changed if the experiment has more epochs or another patience than it.

    Raises :class:`ConfigError` unless it holds the same experiment otherwise, and training can go on.
    """
    if out is None:
        raise ConfigError("--resume: got no --out, expected --out DIR with the run directory to continue")
    if not (out / EXPERIMENT_FILE).is_file():
        raise ConfigError(f"--resume: got {out}, which is not a run directory; expected one `simgnn run` wrote")
    changed = {key: (old, new) for key, old, new in differences(experiment, out)}
    fixed = [
        f"--resume: {key}: got {new}, expected {old} as in {out}; use --out for a new run"
        for key, (old, new) in changed.items()
        if key not in MAY_CHANGE or (key == EPOCHS and new < old)
    ]
    if fixed:
        raise ConfigError(fixed)
    there = recorded_experiment(out, experiment)
    _check_cosine(there.train, experiment.train)
    run = RunDirectory(out)
    result = read_result(run.result) if run.result.is_file() else None
    if result is not None:
        _check_patience(result, experiment.train)
    if not changed and result is not None and result.status == "ok":
        raise ConfigError(
            f"--resume: got {out}, which holds a finished run of {there.train.epochs} epochs; expected an interrupted "
            f"one, or more epochs to go on with: --epochs above {there.train.epochs} (--out NEW for a new run)"
        )
    if changed:
        extend_run(out, experiment, progress)
    return out.resolve()


def _check_cosine(old: TrainSection, new: TrainSection) -> None:
    """Raise :class:`ConfigError` where the epochs of a cosine would change in the middle of a run."""
    was, now = old.learning_rate_schedule, new.learning_rate_schedule
    if not isinstance(was, Cosine) or not isinstance(now, Cosine):
        return
    trained = was.t_max or old.epochs
    if (now.t_max or new.epochs) != trained:
        raise ConfigError(
            f"--resume: {T_MAX}: got {now.t_max or f'none with {EPOCHS} = {new.epochs}'}, expected {trained}: the "
            f"learning rate of the trained epochs followed a cosine of {trained} epochs; --set {T_MAX}={trained} goes "
            "on with it (it rises again), a new run (--out) begins a longer one"
        )


def _check_patience(result: Result, train: TrainSection) -> None:
    """Raise :class:`ConfigError` where training that goes on would end at once, by what it reached before."""
    early = result.early_stop
    if early is None and train.epochs > len(result.epoch_s):
        early = Patience(train.patience, train.eval_every).over(result.accuracy or result.area_under_curve or ())
    if early is not None and 0 < train.patience <= early.evaluations:
        told = early.reason() if result.early_stop is not None else f"training would not go on: {early.since()}"
        raise ConfigError(
            f"--resume: {told}; got {PATIENCE} = {train.patience}, expected more than {early.evaluations}, or 0, to go "
            f"on up to epoch {train.epochs}: --set {PATIENCE}=0"
        )


def extend_run(directory: Path, experiment: Experiment, progress: Progress) -> None:
    """Let a run directory go on with the epochs, patience and cosine of ``experiment``, from its last checkpoint.

    On mini-batches, those of the new epochs are drawn. Raises :class:`ConfigError` if that cannot be."""
    there, run = recorded_experiment(directory, experiment), RunDirectory(directory)
    taken = {name: getattr(experiment.train, name) for name in ("epochs", "patience", "learning_rate_schedule")}
    longer = there.model_copy(update={"train": there.train.model_copy(update=taken)})
    with locked_folder(directory, "--resume"):
        described = read_plan(run.plan / PLAN_FILE)
        more = longer.train.epochs > described.train.epochs
        if described.batches is not None:
            if more:
                replan(run, described, _with_more_batches(longer, described, progress))
        elif more and _differs_by_epoch(load_program(run.plan)):
            replan(run, described, _with_more_draws(longer, described))
        else:
            _tell_other_choices(longer, run, described, progress)
        # after the new plan: if this is interrupted, the next --resume finds fewer epochs here and plans again
        table = json.loads((run.plan / PLAN_FILE).read_text(encoding="utf-8"))
        table["train"] = longer.train.model_dump(mode="json")
        _unfinish(run)
        write_atomically(run.plan / PLAN_FILE, json.dumps(table, indent=2) + "\n")
        write_toml(run.experiment, longer.to_table())


def _unfinish(run: RunDirectory) -> None:
    """Remove what marks a finished run: without a result the directory can be resumed if this is interrupted."""
    for finished in (run.result, run.root / SEAL):
        finished.unlink(missing_ok=True)


def _tell_other_choices(longer: Experiment, run: RunDirectory, described: PlanFile, progress: Progress) -> None:
    """Say so where a longer run, planned anew, would choose otherwise for ``auto``; this one keeps its program."""
    # Numba: loaded when a run is extended
    from simgnn.partition.store import PartitionArtifact

    assert described.partition is not None
    stats = PartitionArtifact.open(Path(described.partition)).stats
    # of layers alone: what caches hold follows from a hardware profile, and stays that of the run
    old, new = load_toml(run.plan / "resolved.toml"), without_none(arrange_layers(longer, stats).resolved)
    for key in sorted(key for key in new if old.get(key) != new[key]):
        progress.stage(
            f"resume: {key} stays {old.get(key)}, which 'auto' chose for {described.train.epochs} epochs; a new run of "
            f"{longer.train.epochs} would have {new[key]}, and losses that may differ in their last digits"
        )


def _differs_by_epoch(program: Program) -> bool:
    """Whether sizes of a program are counted epoch by epoch."""
    sizes = program.sizes
    return any(rows.ndim > 2 for rows in (*sizes.columns.values(), *(route.rows for route in sizes.routes.values())))


def _with_more_draws(longer: Experiment, described: PlanFile) -> Prepared:
    """Plan a longer run on the full graph whose epochs differ."""
    # Numba: loaded when a run is extended
    from simgnn.partition.store import PartitionArtifact

    assert described.partition is not None
    artifact = PartitionArtifact.open(Path(described.partition))
    stats = full_graph_stats(longer, artifact)
    return Prepared(longer, stats, plan(longer, stats), partition=artifact)


def _with_more_batches(longer: Experiment, described: PlanFile, progress: Progress) -> Prepared:
    """Draw the mini-batches of a longer run, with caches of as many rows as its first epochs had."""
    store = cast(RowStore, described.acting()["placement"])
    if store.cached_rows and not store.refills:
        raise ConfigError(
            f"--resume: {EPOCHS}: got {longer.train.epochs}, expected {described.train.epochs}: the rows of its caches "
            f"were chosen in the batches of all {described.train.epochs} epochs (placement.hot_scope = 'run'); use "
            "--out for a new run"
        )
    fixed = cast(RowStore, longer.placement).caching(store.cached_rows)
    prepared = prepare(longer.model_copy(update={"placement": fixed}), need_graph=True, progress=progress)
    return replace(prepared, experiment=longer)


def _source(described: PlanFile) -> str | None:
    """The digest of the data that mini-batches were drawn from; None on the full graph."""
    return None if described.batches is None else described.batches.source


def replan(run: RunDirectory, described: PlanFile, prepared: Prepared) -> None:
    """Replace the plan of a run by one for more epochs, which goes on from checkpoints of the old one.

    Raises :class:`ConfigError` if its first epochs are not those of the old plan."""
    assert described.shards is not None
    table: dict[str, Any] = {**plan_table(prepared, Path(described.shards))}
    if described.class_names:  # the graph that has them need not be loaded
        table["class_names"] = list(described.class_names)
    table["continues"] = [*described.continues, described.program_digest]
    draft = Path(tempfile.mkdtemp(prefix=".plan.", dir=run.root))
    try:
        draft.chmod(0o755)
        save_program(prepared.planned.program, draft)
        write_toml(draft / "resolved.toml", resolved_table(prepared))
        (draft / PLAN_FILE).write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")
        new = read_plan(draft / PLAN_FILE)
        other = [name for name in SAME if getattr(new, name) != getattr(described, name)]
        if not ops_table(prepared.planned.program).equals(ops_table(load_program(run.plan))):
            other.append("ops")
        if other or _source(new) != _source(described):
            raise ConfigError(
                f"--resume: {EPOCHS}: got {new.train.epochs}, expected {described.train.epochs}: planned anew, the "
                f"run has another {' and '.join(other) or 'graph or partition'} than {run.root}, since its graph or "
                "what is cached of it changed; use --out for a new run"
            )
        old = Path(tempfile.mkdtemp(prefix=".plan.old.", dir=run.root))
        os.replace(run.plan, old)
        os.replace(draft, run.plan)
        shutil.rmtree(old)
    finally:
        if draft.exists():
            shutil.rmtree(draft)
