"""What is read of a validation's folder is held against its suite: a score from rows that no run wrote is none."""

from collections import Counter
from collections.abc import Sequence
from math import isfinite
from pathlib import Path

from simgnn.errors import ConfigError
from simgnn.study.cases import Case
from simgnn.study.truth import Measured


def check_runs(runs: Sequence[Measured], cases: Sequence[Case], repeats: int, path: Path) -> None:
    """Raise :class:`ConfigError` unless each run is of a case and repeat of the suite, there once, with figures of a
    real epoch. ``path``: where they were read."""
    known = set(cases)
    faults = [f"{run.name}: the suite has no such case" for run in runs if run.case not in known]
    faults += [
        f"{run.name}: got repeat {run.repeat}, expected 0 to {repeats - 1}, as the suite says"
        for run in runs
        if not 0 <= run.repeat < repeats
    ]
    counted = Counter((run.case, run.repeat) for run in runs)
    faults += [f"{case.name}: repeat {repeat} is there {n} times" for (case, repeat), n in counted.items() if n > 1]
    for run in runs:
        for key, seconds in (("epoch_s", run.times.epoch_s), ("canary_s", run.canary_s)):
            if not is_duration(seconds):
                faults.append(f"{run.name}: {key}: got {seconds}, expected seconds above zero")
        for key in ("compute_s", "wait_s", "transfer_s"):
            seconds = getattr(run.times, key)
            if seconds != 0 and not is_duration(seconds):
                faults.append(f"{run.name}: {key}: got {seconds}, expected seconds, zero or above")
        memory = run.times.memory_bytes
        if memory is not None and memory <= 0:
            faults.append(f"{run.name}: memory_bytes: got {memory}, expected bytes above zero")
    if faults:
        more = f" (and {len(faults) - 3} more faults)" if len(faults) > 3 else ""
        raise ConfigError(
            f"{path}: {'; '.join(faults[:3])}{more}: no validation wrote that; start over in a new folder"
        )


def check_programs(runs: Sequence[Measured], predicted: dict[Case, str], path: Path) -> None:
    """Raise :class:`ConfigError` where a run is of another program than the one that was predicted before it."""
    others = [run.name for run in runs if run.program_digest != predicted.get(run.case)]
    if others:
        raise ConfigError(
            f"{path}: {len(others)} runs are of another program than was predicted, the first {others[0]}; start over "
            "in a new folder"
        )


def is_duration(seconds: object) -> bool:
    """Whether this is a finite number of seconds above zero."""
    return isinstance(seconds, int | float) and not isinstance(seconds, bool) and isfinite(seconds) and seconds > 0
