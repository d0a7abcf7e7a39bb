"""Measures this machine, one group of ranks after another, and fits its hardware profile."""

import os
import sys
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from itertools import product
from pathlib import Path
from typing import NamedTuple

import psutil

from simgnn.analysis.fit.profile import Calibration, fit_profile
from simgnn.analysis.fit.samples import SampleFile, pool_passes, read_samples
from simgnn.api.executor_process import check_executor, end_session, start_session
from simgnn.errors import BackendError, ConfigError
from simgnn.graph.thread_pool import usable_threads
from simgnn.hardware.profile.library import CACHE_NAME, calibration_path
from simgnn.locks import locked_folder, scratch_folder
from simgnn.progress import Counter, Progress

QUICK_RANKS = (2,)
FULL_RANKS = (1, 2, 4)
BUSY_PERCENT = 15.0
PATIENCE_S = 600.0
"""Seconds after which a group of ranks that has not finished counts as hung and is ended."""
RANKS_PER_CORE, LEAST_MOST_RANKS = 8, 16
"""Most ranks for each core; ``LEAST_MOST_RANKS`` ranks are always accepted."""
PROGRESS = "progress "
"""Prefix of the micro-benchmarks' progress lines: "progress SECONDS OF_SECONDS TEXT"."""


class Place(NamedTuple):
    """Rank numbers of this process in a group that torchrun started."""

    rank: int
    ranks: int
    local_rank: int


def torchrun_place() -> Place | None:
    """Return this process's :class:`Place` in a group that torchrun started; None without torchrun."""
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return None
    rank = os.environ["RANK"]
    return Place(int(rank), int(os.environ["WORLD_SIZE"]), int(os.environ.get("LOCAL_RANK", rank)))


def kept_folder() -> Path:
    """Return the folder that keeps the samples of an interrupted calibration for the next one."""
    return calibration_path().parent / "calibrating"


def one_at_a_time() -> AbstractContextManager[None]:
    """Hold the lock of calibrations: two at once would slow each other down and mix the samples that they keep."""
    otherwise = f"end it; if it is another machine's, name another folder ({CACHE_NAME})"
    return locked_folder(kept_folder().parent, "calibrate", otherwise)


def forget_kept(quick: bool) -> None:
    """Remove the samples that were kept for a quick or full calibration, from every pass."""
    folder = kept_folder()
    for path in folder.rglob(f"{'quick' if quick else 'full'}-*.json"):
        path.unlink(missing_ok=True)
    for emptied in (*folder.glob("pass-*"), folder):
        if emptied.is_dir() and not any(emptied.iterdir()):
            emptied.rmdir()


def _groups(quick: bool, ranks: Sequence[int] | None) -> Sequence[int]:
    """Return the numbers of ranks to measure with, one group after another; under torchrun only its group."""
    place = torchrun_place()
    return (place.ranks,) if place is not None else ranks or (QUICK_RANKS if quick else FULL_RANKS)


def fit(files: Sequence[SampleFile], progress: Progress) -> Calibration:
    """Fit a profile to samples; its date is that of the last samples."""
    progress.stage("fitting curves to the samples")
    return fit_profile(files, max(file.started for file in files).astimezone().date())


def measure_groups(
    quick: bool,
    ranks: Sequence[int] | None,
    progress: Progress,
    samples: Path | None = None,
    fresh: bool = False,
    passes: int = 1,
) -> list[SampleFile]:
    """Measure with each group of ranks in turn and return the samples; under torchrun with its one group, on rank 0.

    ``ranks``: default 1, 2 and 4, quick: 2. ``samples``: folder that keeps the raw samples. ``fresh``: do not continue
    an interrupted calibration. ``passes``: how often all groups measure; their samples are averaged.
    """
    check_executor()
    place, groups = torchrun_place(), _groups(quick, ranks)
    if place is None:
        check_counts(groups)
    elif ranks is not None and tuple(ranks) != (place.ranks,):
        got = ", ".join(map(str, ranks))
        raise ConfigError(f"--ranks: got {got}, but torchrun started {place.ranks} ranks; leave the option out")
    leads = place is None or place.rank == 0
    if leads or (place is not None and place.local_rank == 0):
        _warn_if_busy(progress)  # each host by itself
    progress = progress if leads else Progress()
    files = []
    with scratch_folder("simgnn-calibrate-") as scratch:
        folder = scratch if samples is None else samples
        folder.mkdir(parents=True, exist_ok=True)
        with progress.counting("calibrating", 1, share=True) as counter:
            planned = _PlannedTime(counter, len(groups) * passes)
            for turn, count in product(range(passes), groups):
                path = folder / (f"samples-{count}.json" if turn == 0 else f"samples-{count}-pass-{turn + 1}.json")
                kept = kept_folder() if turn == 0 else kept_folder() / f"pass-{turn + 1}"
                arguments = ["--out", str(path), "--keep", str(kept)]
                arguments += [option for option, given in (("--quick", quick), ("--fresh", fresh)) if given]
                if place is None:
                    arguments += ["--ranks", str(count)]
                    # more ranks than cores measure communication only: they take turns computing
                    arguments += ["--only", "communication"] if count > usable_threads() else []
                _measure(count, arguments, progress, planned)
                planned.group_done()
                if leads:
                    files.append(read_samples(path))
    return pool_passes(files)


def kept_samples(folders: Sequence[Path]) -> list[SampleFile]:
    """Read the samples that calibrations kept in ``folders`` (``--samples``), averaged, by number of ranks. Raises
    :class:`ConfigError` for a folder without samples or named twice, :class:`HardwareError` for samples of different
    machines, versions or thread counts."""
    files, seen = [], set[Path]()
    for folder in folders:
        found = sorted(folder.glob("samples-*.json"))
        if not found:
            raise ConfigError(
                f"--pool: {folder} holds no samples-*.json; name a folder that `simgnn calibrate --samples DIR` filled"
            )
        if folder.resolve() in seen:
            raise ConfigError(f"--pool: {folder} is named twice, so its samples would count twice; name it once")
        seen.add(folder.resolve())
        files += [read_samples(path) for path in found]
    return sorted(pool_passes(files), key=lambda file: file.ranks)


def check_counts(groups: Sequence[int], key: str = "--ranks") -> None:
    """Raise :class:`ConfigError` if this machine cannot hold so many processes with torch; its text names ``key``."""
    cores = usable_threads()
    most = max(LEAST_MOST_RANKS, RANKS_PER_CORE * cores)
    if max(groups) > most:
        raise ConfigError(
            f"{key}: got {max(groups)}, expected at most {most} on this machine of {cores} cores, since each is a "
            "process here; to calibrate more, use several hosts: torchrun ... -m simgnn calibrate"
        )


def _warn_if_busy(progress: Progress) -> None:
    """Report other work on this machine, which would make the machine seem slower than it is."""
    busy = psutil.cpu_percent(interval=0.5)
    if busy > BUSY_PERCENT:
        progress.stage(f"this machine is {busy:.0f} % busy with other work: calibrate it again when it is idle")


class _PlannedTime:
    """Progress over all groups, in hundredths of a second of planned time. Later groups are assumed to take as long as
    the current one, since only the micro-benchmarks know what they will measure."""

    def __init__(self, counter: Counter, groups: int) -> None:
        self._counter, self._left = counter, groups
        self._before = self._here = 0

    def at(self, seconds: float, of_seconds: float, what: str) -> None:
        """Report that ``seconds`` of this group's planned ``of_seconds`` are over and that ``what`` is measured now."""
        self._here = round(100 * of_seconds)
        self._counter.at(self._before + round(100 * seconds), what, self._before + self._here * self._left)

    def group_done(self) -> None:
        self._before += self._here
        self._left -= 1
        if self._left == 0:
            self._counter.at(self._before, "", self._before)


def _measure(ranks: int, arguments: Sequence[str], progress: Progress, planned: _PlannedTime) -> None:
    """Run the micro-benchmarks with one group of ranks to their end."""
    process = start_session([sys.executable, "-P", "-m", "executor.microbench", *arguments])
    assert process.stdout is not None
    hangs = threading.Timer(PATIENCE_S, end_session, [process])
    hangs.daemon = True
    hangs.start()
    last: list[str] = []
    try:
        for line in process.stdout:
            text = line.strip()
            if text.startswith(PROGRESS):
                seconds, of_seconds, what = text.removeprefix(PROGRESS).split(" ", 2)
                planned.at(float(seconds), float(of_seconds), what)
            elif text:
                last = [*last[-9:], text]
                if "kept" in text.split():
                    progress.stage(text)
        status = process.wait()
    finally:
        hangs.cancel()
        if process.poll() is None:
            end_session(process)
    if status != 0:
        output = "\n".join(last)
        raise BackendError(f"calibrate: measuring with {ranks} ranks ended with status {status}:\n{output}")
