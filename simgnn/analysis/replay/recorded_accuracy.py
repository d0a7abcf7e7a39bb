"""Time to accuracy: what a real run reached after its epochs, at the predicted ends of those epochs.

A simulation knows nothing of accuracy. Where what is computed does not depend on the hardware, the accuracy after an
epoch is that of the recorded run, and only the time at which the epoch ends is predicted.
"""

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from simgnn.errors import ConfigError
from simgnn.record.result import Accuracy, Result, TimedAccuracy, read_result
from simgnn.record.rundir import RunDirectory
from simgnn.seal import check_seal

RECORD_AGAIN = "copy the whole directory again, or run the experiment again"


def recorded_result(root: Path) -> Result:
    """The result of the run in ``root``, with its accuracy after each evaluated epoch.

    Raises :class:`ConfigError` where ``root`` holds no run that ended well, or a sealed file of it has changed.
    """
    path = RunDirectory(root).result
    expected = "expected the directory of a finished `simgnn run`"
    if not path.is_file():
        raise ConfigError(f"--activity: got {root}, which holds no {path.name}; {expected}")
    check_seal(root, RECORD_AGAIN)
    result = read_result(path)
    if result.backend == "sim":
        raise ConfigError(f"--activity: got {root}, which holds a prediction; {expected}: predictions decide nothing")
    if result.status != "ok":
        raise ConfigError(
            f"--activity: got {root}, whose run ended with status '{result.status}' ({result.message}); {expected}"
        )
    return result


def on_clock(accuracy: Sequence[Accuracy], epoch_s: Sequence[float]) -> list[TimedAccuracy]:
    """``accuracy`` at the ends of its epochs, which take ``epoch_s`` seconds each, one after the other.

    Epochs that were not predicted are left out. Evaluations take no time, as in ``epoch_s``.
    """
    ends = list(accumulate(epoch_s))
    timed = [one for one in accuracy if one.epoch <= len(ends)]
    return [TimedAccuracy(**one.model_dump(), seconds=ends[one.epoch - 1]) for one in timed]
