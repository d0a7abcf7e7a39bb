"""Compare an experiment with a recorded run: which differences are rejected, noted or ignored.

A simulation does not compute accuracy. Where what is computed does not depend on the hardware, the accuracy after an
epoch is that of the recorded run, and only the time at which the epoch ends is predicted.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from simgnn.errors import ConfigError
from simgnn.policy import Policy
from simgnn.program.program import Program
from simgnn.program.sizes import Decision
from simgnn.record.plan import PlanFile, read_plan
from simgnn.record.result import Accuracy, Result, TimedAccuracy, read_result
from simgnn.record.rundir import RunDirectory
from simgnn.seal import check_seal
from simgnn.tomlfile import load_toml

AUTO = "auto"
KIND, ORDER, HOIST = "model.kind", "model.order", "model.hoist"
MOVES = frozenset({KIND, ORDER, HOIST})
"""Fields of ``[model]`` that determine which rows travel, or what they are."""
LEARNS = frozenset(
    f"train.{field}"
    for field in (
        "optimizer", "learning_rate", "weight_decay", "decay_biases", "momentum", "dtype", "clip_norm", "clip_scale",
        "gradient_mean",
    )
)  # fmt: skip
"""Fields of ``[train]`` that change what is learned, and so which rows move."""
SCHEDULE = "train.learning_rate_schedule"
"""Begin of the keys that change the learning rate while training."""
WHOLE = "expected the whole directory of a finished `simgnn run`"
Difference = tuple[str, Any, Any]
"""Key path, value in the recorded run, value here."""


class RecordedPlan(NamedTuple):
    """The plan of a run: its plan.json, and by key path what planning chose where the experiment states ``auto``."""

    file: PlanFile
    resolved: Mapping[str, Any]

    @property
    def digests(self) -> frozenset[str]:
        """Digests of its partition; any one of them identifies it."""
        return frozenset(digest for digest in (self.file.partition_digest, self.file.cut_digest) if digest)


def recorded_result(root: Path) -> Result:
    """Return the result of the run in ``root``, with its accuracy after each evaluated epoch.

    Raises :class:`ConfigError` if ``root`` holds no successful run, or a sealed file of it has changed.
    """
    path = RunDirectory(root).result
    expected = "expected the directory of a finished `simgnn run`"
    if not path.is_file():
        raise ConfigError(f"--activity: got {root}, which holds no {path.name}; {expected}")
    check_seal(root, "copy the whole directory again, or run the experiment again")
    result = read_result(path)
    if result.backend == "sim":
        raise ConfigError(f"--activity: got {root}, which holds a prediction; {expected}")
    if result.status != "ok":
        raise ConfigError(
            f"--activity: got {root}, whose run ended with status '{result.status}' ({result.message}); {expected}"
        )
    return result


def on_clock(accuracy: Sequence[Accuracy], epoch_s: Sequence[float]) -> list[TimedAccuracy]:
    """Add to each accuracy the time at which its epoch ends; epochs take ``epoch_s`` seconds, one after the other.

    Epochs that were not predicted are left out. Evaluations take no time, as in ``epoch_s``.
    """
    ends = list(accumulate(epoch_s))
    timed = [one for one in accuracy if one.epoch <= len(ends)]
    return [TimedAccuracy(**one.model_dump(), seconds=ends[one.epoch - 1]) for one in timed]


def recorded_plan(root: Path) -> RecordedPlan:
    """Read the plan of the run in ``root``. Raises :class:`ConfigError` if it cannot be read."""
    plan = RunDirectory(root).plan
    try:
        return RecordedPlan(read_plan(plan / "plan.json"), load_toml(plan / "resolved.toml"))
    except ConfigError as error:
        raise ConfigError([f"--activity: {problem}; {WHOLE}" for problem in error.problems]) from error


def check_complete(root: Path, program: Program, recorded: int, trained: int) -> None:
    """Raise :class:`ConfigError` if the record in ``root`` is too short: ``program`` makes decisions in one of its
    ``trained`` epochs, but only the first ``recorded`` epochs were recorded."""
    deciding = set()
    for template, op in program.ops:
        sizes = (*op.sizes, *(program.buffers[access.buffer].rows for access in op.writes))
        if op.guard is not None or any(isinstance(size, Decision) for size in sizes):
            deciding.add(template)
    calendar = program.calendar
    for epoch in range(recorded, min(trained, recorded + calendar.period)):
        if any(calendar.template(epoch, step) in deciding for step in range(calendar.steps)):
            raise ConfigError(
                f"--activity: the record in {root} is incomplete: it ends with epoch {recorded - 1}, expected epoch "
                f"{trained - 1} (counted from 0), the last one of the run; run the experiment again"
            )


def stated_differences(differences: Sequence[Difference], resolved: Mapping[str, Any]) -> list[Difference]:
    """Return ``differences`` without keys on which planning may still agree: ``auto`` on one side, and a value that
    planning chose for the run (``resolved``)."""
    return [(key, there, here) for key, there, here in differences if key not in resolved or AUTO not in (there, here)]


def planned_differences(
    differences: Sequence[Difference], stated: Mapping[str, Any], there: Mapping[str, Any], here: Mapping[str, Any]
) -> list[Difference]:
    """Return the ``differences`` left after planning chose values for ``auto``, ``there`` (in the run) and ``here``.

    Planning may choose otherwise for other epochs, and one side may state what the other chose. ``stated``: values
    here, by key path. Where the numbers of layers differ, choices of each layer are not compared.
    """
    known = {key: (old, new) for key, old, new in differences}
    found = [one for one in differences if one[0] not in there or one[0] not in here]
    for key in sorted(there.keys() & here.keys()):
        one, other = there[key], here[key]
        old, new = known.get(key, (stated.get(key), stated.get(key)))
        lists = isinstance(one, list) and isinstance(other, list)
        differ = bool(one != other) and not (lists and len(one) != len(other))
        # where both state a value, the resolved ones differ by another key, which has a difference of its own
        if differ and (key in known or new == AUTO):
            found.append((key, _shown(key, old, one), _shown(key, new, other)))
    if ORDER in {key for key, _, _ in found} and HOIST not in known:
        found = [one for one in found if one[0] != HOIST]  # it follows from the order
    return sorted(found, key=lambda one: one[0])


def _shown(key: str, stated: Any, resolved: Any) -> Any:
    """Return the stated value, or for ``auto`` the value that a user would have to state for the same choice."""
    if stated != AUTO:
        return stated
    if key == HOIST:
        return f"{AUTO}, by which layer 1 is summed once" if True in resolved else f"never (chosen by '{AUTO}')"
    if key == ORDER and len(set(resolved)) > 1:
        return f"{AUTO}, which chose {', '.join(resolved)}"
    return f"{resolved[0] if key == ORDER else resolved} (chosen by '{AUTO}')"


def graph_differences(
    differences: Sequence[Difference], source: str, there: str | None, here: str | None
) -> list[Difference]:
    """Return ``differences``, but let the graphs' digests, if both are known, decide whether ``[graph]`` differs.

    The same graph may have many names, and another graph may have replaced the file ``source``.
    """
    if there is None or here is None:
        return list(differences)
    named = [one for one in differences if one[0].startswith("graph.")]
    others = [one for one in differences if not one[0].startswith("graph.")]
    if there == here:
        return others
    return [
        *(named or [("graph.source", f"{source} of digest {there[:12]}", f"{source} of digest {here[:12]}")]),
        *others,
    ]


def different_experiment(
    differences: Sequence[Difference],
    root: Path,
    policies: Mapping[str, type[Policy]],
    irrelevant: Collection[str] = (),
) -> tuple[list[str], list[str]]:
    """Sort ``differences`` into faults (policies decide otherwise, other rows are sent) and notes (learning differs).

    ``policies``: those here, by slot; each states what another value of its options changes. Where the kind of a policy
    differs, its options are not compared. Keys in ``irrelevant`` are ignored.
    """
    other_kinds = {key.removesuffix(".kind") for key, _, _ in differences if key.endswith(".kind")}
    faults, notes = [], []
    for key, there, here in differences:
        section, _, field = key.partition(".")
        if key in irrelevant or (section in other_kinds and field != "kind"):
            continue
        effect = policies[section].effects.get(field, policies[section].effect) if section in policies else None
        if effect == "decisions" or key in MOVES:
            faults.append(
                f"--activity: {key}: got {here}, expected {there} as in {root}: set it so, or run this experiment to "
                "record it"
            )
        elif effect == "learning" or section in ("graph", "model", "seed") or key.startswith(SCHEDULE) or key in LEARNS:
            notes.append(f"activity was recorded with {key} = {there}; here it is {here}")
    return faults, notes
