"""Writes the run directory before a backend starts: the experiment, the hardware and the plan."""

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from simgnn.errors import BackendError, ConfigError
from simgnn.experiment.problems import shown
from simgnn.experiment.schema import Experiment
from simgnn.experiment.slots import SLOTS, kinds_in
from simgnn.hardware.profile.profile import Profile, save_profile
from simgnn.locks import locked_folder
from simgnn.model.spec import BUILT_IN_LAYERS
from simgnn.model.user_layer import load_user_class
from simgnn.outputs import check_output_folder, free_room
from simgnn.planner.prepare import Prepared, with_default_cluster
from simgnn.policy import Policy
from simgnn.program.storage import program_digest, save_program
from simgnn.registry import folder_of, is_external, shipped
from simgnn.tomlfile import leaves, load_toml, write_toml

EXPERIMENT_FILE, HARDWARE_FILE, PLAN_FOLDER = "experiment.toml", "hardware.toml", "plan"
PLAN_FORMAT = 1


def check_free(directory: Path, force: bool) -> None:
    """Raise :class:`ConfigError` if ``directory`` cannot be created, or holds files that may not be replaced.

    ``force`` allows replacing an earlier run directory, and nothing else."""
    check_output_folder(directory, "--out")
    if not directory.is_dir() or not any(directory.iterdir()):
        return
    is_run = (directory / EXPERIMENT_FILE).is_file() and (directory / PLAN_FOLDER).is_dir()
    if not force:
        remedy = "name another, or replace it with --force" if is_run else "name another"
        raise ConfigError(
            f"--out: got {directory}, which is not empty; expected a folder that is new or empty: {remedy}"
        )
    if not is_run:
        raise ConfigError(f"--force: {directory} is not an earlier run directory, so it is not replaced; name another")
    with locked_folder(directory, "--force"):  # held while a run trains in it
        pass


def write_run_directory(
    prepared: Prepared, directory: Path, profile: Profile | None, *, shards: Path | None = None, force: bool = False
) -> Path:
    """Write ``experiment.toml``, ``hardware.toml`` and ``plan/`` under a temporary name, then rename the folder.

    ``shards`` is the folder of the ranks' features and labels, which a run needs and a simulation does not."""
    check_free(directory, force)
    directory = directory.resolve()
    directory.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    try:
        temporary.chmod(0o755)  # mkdtemp makes private folders; results are to be read by others
        write_toml(temporary / EXPERIMENT_FILE, prepared.experiment.to_table())
        if profile is not None:
            save_profile(profile, temporary / HARDWARE_FILE)
        plan = temporary / PLAN_FOLDER
        plan.mkdir()
        save_program(prepared.planned.program, plan)
        write_toml(plan / "resolved.toml", resolved_table(prepared))
        (plan / "plan.json").write_text(json.dumps(plan_table(prepared, shards), indent=2) + "\n", encoding="utf-8")
        if directory.is_dir() and any(directory.iterdir()):
            old = Path(tempfile.mkdtemp(prefix=f".{directory.name}.old.", dir=directory.parent))
            os.replace(directory, old)
            os.replace(temporary, directory)
            shutil.rmtree(old)
        else:
            os.replace(temporary, directory)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise BackendError(f"--out: {directory} cannot be written ({error.strerror}); {free_room(directory)}") from None
    finally:
        if temporary.exists():
            shutil.rmtree(temporary)
    return directory


def resolved_table(prepared: Prepared) -> dict[str, Any]:
    """Return the content of ``plan/resolved.toml``: by key path, values chosen for ``auto``, and what the partitioner
    read off the hardware profile."""
    artifact = prepared.partition
    filled = prepared.experiment.partition.filled() if artifact is None else artifact.filled
    return {**prepared.planned.resolved, **{f"partition.{option}": value for option, value in filled.items()}}


def plan_table(prepared: Prepared, shards: Path | None) -> Mapping[str, Any]:
    """The content of ``plan/plan.json``: artefacts by path, the model's layers, how to train, the program's digest."""
    experiment, facts, origin = prepared.experiment, prepared.stats.facts, prepared.stats.origin
    policies: dict[str, Policy] = {slot: getattr(experiment, slot) for slot in SLOTS}
    if prepared.batches is not None:
        policies["placement"] = prepared.batches.placement  # with every choice resolved
    acting = {slot: policy for slot, policy in policies.items() if policy.acts}
    own: list[type[Any]] = [type(policy) for policy in acting.values() if is_external(policy)]
    if experiment.model.kind not in BUILT_IN_LAYERS:
        own.append(load_user_class(experiment.model.kind))
    folders = sorted(set(map(folder_of, own)))
    names = () if prepared.graph is None else prepared.graph.class_names
    return {
        "format": PLAN_FORMAT,
        "name": experiment.name,
        "partition": None if prepared.partition is None else str(prepared.partition.path.resolve()),
        "partition_digest": prepared.stats.digest,
        "cut_digest": None if origin is None else origin.cut,
        "graph_digest": None if origin is None else origin.graph,
        **({} if prepared.chunks is None else {"chunks": str(prepared.chunks.path.resolve())}),
        "shards": None if shards is None else str(shards.resolve()),
        "ranks": experiment.ranks,
        "hosts": list(experiment.rank_hosts()),
        "layers": [asdict(layer) for layer in prepared.planned.layers],
        "classes": facts.classes,
        "multilabel": facts.multilabel,
        **({"class_names": list(names)} if names else {}),
        "graph": asdict(facts),
        **({"device_bytes": experiment.placement.device_bytes} if experiment.placement.device_bytes else {}),
        **({} if prepared.dropped_edges is None else {"dropped_edges": prepared.dropped_edges}),
        **({"notes": list(prepared.stats.notes)} if prepared.stats.notes else {}),
        "train": experiment.train.model_dump(mode="json"),
        "policies": {slot: policy.model_dump(mode="json") for slot, policy in acting.items()},
        **({"code": folders} if folders else {}),
        "batches": None if prepared.batches is None or shards is None else prepared.batches.table(),
        "threads_per_rank": experiment.hardware.threads,
        "seed": experiment.seed,
        "program_digest": program_digest(prepared.planned.program),
    }


def recorded_experiment(directory: Path, here: Experiment) -> Experiment:
    """Load the experiment of a run directory, to be compared with the experiment ``here``.

    Raises :class:`ConfigError` if the directory names a policy that is not shipped, unless ``here`` names it in the
    same slot: a run directory never causes code to be imported."""
    path = directory / EXPERIMENT_FILE
    table = load_toml(path)
    problems = [
        f"{slot}.kind: got '{own}', expected {shown(kind)} as in {path}: it is not a shipped policy, and code is "
        "imported only where the experiment itself names it"
        for slot, kind in kinds_in(table).items()
        if (own := getattr(here, slot).label) != kind and kind not in shipped(slot)
    ]
    if problems:
        raise ConfigError(problems)
    # directories of earlier versions may hold options without effect, which no user has stated
    return Experiment.from_table(table, lambda key: str(path), stated=lambda key: False)


def differences(experiment: Experiment, directory: Path) -> list[tuple[str, Any, Any]]:
    """Return (key path, value in the run directory, value here) of every field that differs, except hardware and name.

    If ``experiment`` states no cluster, the directory's is used."""
    there = recorded_experiment(directory, experiment)
    cluster = there.cluster
    here = with_default_cluster(experiment, (cluster.hosts or 1, cluster.ranks_per_host or 1))
    old, new = (dict(leaves(each.to_table())) for each in (there, here))
    return [
        (".".join(path), old.get(path), new.get(path))
        for path in sorted({*old, *new})
        if path[0] not in ("hardware", "name") and old.get(path) != new.get(path)
    ]
