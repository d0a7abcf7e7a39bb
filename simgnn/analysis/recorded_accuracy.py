"""Time to accuracy: what a real run reached after its epochs, at the predicted ends of those epochs.

A simulation knows nothing of accuracy. Where what is computed does not depend on the hardware, the accuracy after an
epoch is that of the recorded run, and only the time at which the epoch ends is predicted.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path

from simgnn.errors import ConfigError
from simgnn.record.result import Accuracy, Result, TimedAccuracy, read_result
from simgnn.record.rundir import RunDirectory


def recorded_result(root: Path) -> Result:
    """Of the run in ``root``, with its accuracy after each evaluated epoch; :class:`ConfigError` where it holds no run
    that ended well."""
    path = RunDirectory(root).result
    expected = "expected the directory of a finished `simgnn run`"
    if not path.is_file():
        raise ConfigError(f"--activity: got {root}, which holds no {path.name}; {expected}")
    result = read_result(path)
    if result.backend == "sim":
        raise ConfigError(f"--activity: got {root}, which holds a prediction; {expected}: predictions decide nothing")
    if result.status != "ok":
        raise ConfigError(
            f"--activity: got {root}, whose run ended with status '{result.status}' ({result.message}); {expected}"
        )
    accuracy = result.accuracy or []
    shares = [share for one in accuracy for share in (one.train, one.validation, one.test) if share is not None]
    epochs = [0, *(one.epoch for one in accuracy), result.epochs + 1]
    if any(not 0 <= share <= 1 for share in shares) or any(this >= then for this, then in pairwise(epochs)):
        raise ConfigError(
            f"--activity: {path} is damaged: expected accuracies in 0..1, of epochs 1..{result.epochs} in order; run "
            "the experiment again"
        )
    return result


def on_clock(accuracy: Sequence[Accuracy], epoch_s: Sequence[float]) -> list[TimedAccuracy]:
    """``accuracy`` at the ends of its epochs, which take ``epoch_s`` seconds each, one after the other; epochs that
    were not predicted are left out. Evaluations take no time, as in ``epoch_s``."""
    ends = list(accumulate(epoch_s))
    timed = [one for one in accuracy if one.epoch <= len(ends)]
    return [TimedAccuracy(**one.model_dump(), seconds=ends[one.epoch - 1]) for one in timed]
