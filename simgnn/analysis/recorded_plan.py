"""The plan of a recorded run, and what of an experiment is otherwise than it: refused, noted, or of no consequence."""

import json
import tomllib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from simgnn.errors import ConfigError
from simgnn.record.rundir import RunDirectory

AUTO = "auto"
Difference = tuple[str, Any, Any]
"""Key path, value in the recorded run, value here."""


class RecordedPlan(NamedTuple):
    """What a run was trained on: its number of ranks, digests that each name its partition, the digest of its graph
    (None: an earlier version did not tell), and what planning resolved, by key path."""

    ranks: int
    digests: frozenset[str]
    graph: str | None
    resolved: Mapping[str, Any]


def recorded_plan(root: Path) -> RecordedPlan:
    """The plan of the run in ``root``. Raises :class:`ConfigError` where it cannot be read."""
    path = RunDirectory(root).plan / "plan.json"
    try:
        plan: dict[str, Any] = json.loads(path.read_text())
        # runs of earlier versions do not tell the second
        digests = frozenset(str(plan[key]) for key in ("partition_digest", "cut_digest") if plan.get(key))
        ranks, graph = int(plan["ranks"]), plan.get("graph_digest")
        path = RunDirectory(root).plan / "resolved.toml"
        return RecordedPlan(ranks, digests, graph, tomllib.loads(path.read_text()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"--activity: {path} cannot be read ({error}); expected the whole directory of a finished `simgnn run`"
        ) from error


def stated_differences(differences: Sequence[Difference], resolved: Mapping[str, Any]) -> list[Difference]:
    """``differences`` less those that planning may yet find to be none: ``auto`` on one side, of what the record has
    ``resolved``."""
    return [(key, there, here) for key, there, here in differences if key not in resolved or AUTO not in (there, here)]


def planned_differences(
    differences: Sequence[Difference], stated: Mapping[str, Any], there: Mapping[str, Any], here: Mapping[str, Any]
) -> list[Difference]:
    """``differences`` in what is stated, with those in what planning resolved ``there`` and ``here`` in the place of
    ``auto``: it may choose otherwise for other epochs, and what it chose may be stated too. ``stated``: values here,
    by key path."""
    known = {key: (old, new) for key, old, new in differences}
    found = [one for one in differences if one[0] not in there or one[0] not in here]
    for key in sorted(there.keys() & here.keys()):
        old, new = known.get(key, (stated.get(key), stated.get(key)))
        # of a value that both state, what was resolved differs by something else, which is told itself
        if there[key] != here[key] and (key in known or new == AUTO):
            found.append((key, _shown(old, there[key]), _shown(new, here[key])))
    return sorted(found, key=lambda one: one[0])


def _shown(stated: Any, resolved: Any) -> Any:
    return f"{resolved} (chosen by '{AUTO}')" if stated == AUTO else stated


def graph_differences(
    differences: Sequence[Difference], source: str, there: str | None, here: str | None
) -> list[Difference]:
    """``differences`` with those of ``[graph]`` as digests say, where both are known: the same graph may be named in
    many ways, and another one may have taken the place of the file ``source``."""
    if there is None or here is None:
        return list(differences)
    others = [one for one in differences if not _of_graph(one)]
    if there == here:
        return others
    named = [one for one in differences if _of_graph(one)]
    other = ("graph.source", f"{source} of digest {there[:12]}", f"{source} of digest {here[:12]}")
    return [*(named or [other]), *others]


def _of_graph(difference: Difference) -> bool:
    return difference[0].startswith("graph.")


def different_experiment(
    differences: Sequence[Difference], root: Path, irrelevant: Collection[str] = ()
) -> tuple[list[str], list[str]]:
    """(faults, notes) of ``differences``: policies must be those of the record. Of a policy of another kind only that
    is told: its options are other ones. Keys that are ``irrelevant`` here count for nothing."""
    other_kinds = {key.removesuffix(".kind") for key, _, _ in differences if key.endswith(".kind")}
    faults, notes = [], []
    for key, there, here in differences:
        section, _, field = key.partition(".")
        if section in other_kinds and field != "kind":
            continue
        if key in DECIDES_NOTHING or key in irrelevant:
            continue
        if section in ("freshness", "codec", "communication", "batching"):
            faults.append(
                f"--activity: {key}: got {here}, expected {there} as in {root}: set it so, or run this experiment to "
                "record it"
            )
        elif section in ("graph", "model", "seed") or field in LEARNS_IN.get(section, ()):
            notes.append(f"activity was recorded with {key} = {there}; here it is {here}")
    return faults, notes


DECIDES_NOTHING = frozenset({"batching.storage", "communication.blocks_ahead"})
"""Fields of policies that say where something lies, or when it is there. So does all of ``[schedule]``."""
LEARNS = ("optimizer", "learning_rate", "weight_decay", "momentum", "dtype", "clip_norm", "clip_scale", "gradient_mean")
LEARNS_IN = {"train": LEARNS, "placement": ("sparse_embedding", "sparse_delay")}
"""Fields by section that change what is learned, and so what moves."""
