"""Measuring for ``simgnn calibrate``: one group of ranks after another, kept stage by stage, progress told."""

import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from simgnn.cli.executor_process import check_executor, end_session, start_session
from simgnn.cli.tables.console import Counter, Reporter
from simgnn.errors import BackendError, ConfigError
from simgnn.locks import locked_folder, scratch_folder

if TYPE_CHECKING:
    from simgnn.analysis.fit.samples import SampleFile

QUICK_RANKS = (2,)
FULL_RANKS = (1, 2, 4)
BUSY_INTERVAL_S = 0.5
BUSY_PERCENT = 15.0
PATIENCE_S = 600.0
"""A group of ranks that has not finished by then hangs."""
RANKS_PER_CORE, LEAST_MOST_RANKS = 8, 16
"""More ranks than so many a core are refused, but never as few as the second number."""
PROGRESS = "progress "
"""How the micro-benchmarks begin a line that says how much is through: "progress SECONDS OF_SECONDS TEXT"."""


class Place(NamedTuple):
    """Where torchrun has started this process: one of ``ranks``, which measure together; ``local_rank`` on its host."""

    rank: int
    ranks: int
    local_rank: int


def torchrun_place(environment: Mapping[str, str] | None = None) -> Place | None:
    """This process's place in a group that torchrun started; None: it was started by hand."""
    found = os.environ if environment is None else environment
    if "RANK" not in found or "WORLD_SIZE" not in found:
        return None
    return Place(int(found["RANK"]), int(found["WORLD_SIZE"]), int(found.get("LOCAL_RANK", found["RANK"])))


def kept_folder() -> Path:
    """Where the samples of an interrupted calibration wait for the next one."""
    # loaded when the command runs: its help starts fast
    from simgnn.hardware.profile.library import calibration_path

    return calibration_path().parent / "calibrating"


def one_at_a_time() -> AbstractContextManager[None]:
    """Two calibrations would take one another's work for slowness of the machine, and mix what they keep."""
    # loaded when the command runs: its help starts fast
    from simgnn.hardware.profile.library import CACHE_NAME

    otherwise = f"end it; if it is another machine's, name another folder ({CACHE_NAME})"
    return locked_folder(kept_folder().parent, "calibrate", otherwise)


def forget_kept(quick: bool) -> None:
    """Drop the samples that were kept for a calibration, quick or full, of every pass: it is written."""
    folder = kept_folder()
    for path in folder.rglob(f"{'quick' if quick else 'full'}-*.json"):
        path.unlink(missing_ok=True)
    for emptied in (*folder.glob("pass-*"), folder):
        if emptied.is_dir() and not any(emptied.iterdir()):
            emptied.rmdir()


def kept_stages(quick: bool, ranks: Sequence[int] | None, passes: int) -> dict[Path, int]:
    """Kept stages that such a calibration goes on from, unless they are refused, and when each was written (ns)."""
    # loaded when the command runs: its help starts fast
    from simgnn.hardware.profile.library import KEPT_FOR

    size, youngest = "quick" if quick else "full", time.time_ns() - KEPT_FOR // timedelta(microseconds=1) * 1000
    found = {
        path: path.stat().st_mtime_ns
        for turn, count in product(range(passes), _groups(quick, ranks))
        for path in _kept_in(turn).glob(f"{size}-{count}-*.json")
    }
    return {path: written for path, written in found.items() if written >= youngest}


def told_of_kept(before: Mapping[Path, int], now: Mapping[Path, int], fresh: bool) -> str:
    """What an interrupted calibration leaves to the next one, in words: stages are kept whole or not at all.

    ``before``, ``now``: :func:`kept_stages` at its beginning and now; a ``fresh`` one has used none of the former.
    """
    if now.items() - before.items() if fresh else now:
        how = "without --fresh the same command" if fresh else "the same command"
        return f"stages that were measured to their end are kept for a day: {how} goes on from there"
    return "no stage was measured to its end, so nothing is kept: the same command starts anew"


def _kept_in(turn: int) -> Path:
    """Where a pass keeps its stages."""
    return kept_folder() if turn == 0 else kept_folder() / f"pass-{turn + 1}"


def _groups(quick: bool, ranks: Sequence[int] | None) -> Sequence[int]:
    """The sizes of the groups that measure: under torchrun that of its one group."""
    place = torchrun_place()
    return (place.ranks,) if place is not None else ranks or (QUICK_RANKS if quick else FULL_RANKS)


def measure_groups(
    quick: bool, ranks: Sequence[int] | None, reporter: Reporter, samples: Path | None, fresh: bool, passes: int = 1
) -> "list[SampleFile]":
    """The samples of every group of ranks, one group after another; under torchrun those of its one group, on rank 0.

    ``samples``: folder that keeps the raw samples. ``passes``: so often all groups take their turn, and the samples of
    a probe are pooled. Raises :class:`BackendError` when a measurement fails.
    """
    # loaded when the command runs: its help starts fast
    from simgnn.analysis.fit.samples import pool_passes

    check_executor()
    if passes < 1:
        raise ConfigError(f"--passes: got {passes}, expected 1 or more")
    place, groups = torchrun_place(), _groups(quick, ranks)
    if place is not None:
        if ranks is not None and tuple(ranks) != (place.ranks,):
            told = ", ".join(map(str, ranks))
            raise ConfigError(f"--ranks: got {told}, but torchrun started {place.ranks} ranks; leave the option out")
    else:
        check_counts(groups)
    if place is None or place.rank == 0:
        tell_if_busy(reporter)
    elif place.local_rank == 0:
        tell_if_busy(Reporter())  # of its own host, of which rank 0 sees nothing
    files = []
    with scratch_folder("simgnn-calibrate-") as scratch:
        folder = scratch if samples is None else samples
        folder.mkdir(parents=True, exist_ok=True)
        with reporter.counting("calibrating", 1, share=True) as counter:
            through = _Through(counter, len(groups) * passes)
            for turn, count in product(range(passes), groups):
                path = folder / (f"samples-{count}.json" if turn == 0 else f"samples-{count}-pass-{turn + 1}.json")
                arguments = [
                    "--out",
                    str(path),
                    "--keep",
                    str(_kept_in(turn)),
                    *(["--quick"] if quick else []),
                ]
                if fresh:
                    arguments.append("--fresh")
                if place is None:
                    arguments += ["--ranks", str(count)]
                    # more ranks than cores measure communication only: they take turns computing
                    arguments += ["--only", "communication"] if count > _cores() else []
                _measure(count, arguments, reporter, through)
                through.group_done()
                if place is None or place.rank == 0:
                    files.append(_read(path))
    return pool_passes(files)


def kept_samples(folders: Sequence[Path]) -> "list[SampleFile]":
    """The samples that calibrations kept in ``folders`` (``--samples``), pooled, by number of ranks.

    Raises :class:`ConfigError` for a folder that holds none or is named twice, :class:`HardwareError` for samples that
    cannot be read or are of different machines, versions or probes.
    """
    # loaded when the command runs: its help starts fast
    from simgnn.analysis.fit.samples import pool_passes

    files, seen = [], set[Path]()
    for folder in folders:
        found = sorted(folder.glob("samples-*.json"))
        if not found:
            raise ConfigError(
                f"--pool: {folder} holds no samples-*.json; name a folder that `simgnn calibrate --samples DIR` filled"
            )
        if folder.resolve() in seen:
            raise ConfigError(f"--pool: {folder} is named twice, its samples would count twice; name it once")
        seen.add(folder.resolve())
        files += [_read(path) for path in found]
    return sorted(pool_passes(files), key=lambda file: file.ranks)


def check_counts(groups: Sequence[int], key: str = "--ranks") -> None:
    """Raise :class:`ConfigError` for more ranks than this machine can hold: each is a process with torch in it.
    ``key``: what said so many."""
    cores = _cores()
    most = max(LEAST_MOST_RANKS, RANKS_PER_CORE * cores)
    if max(groups) > most:
        raise ConfigError(
            f"{key}: got {max(groups)}, expected at most {most} on this machine of {cores} cores, since each is a "
            "process here; calibrate more of them on their own hosts: torchrun ... -m simgnn calibrate"
        )


def _read(path: Path) -> "SampleFile":
    # loaded when the command runs: its help starts fast
    from simgnn.analysis.fit.samples import read_samples

    return read_samples(path)


def tell_if_busy(reporter: Reporter) -> None:
    """Others' work on this machine would be measured as its own slowness: say so, and go on."""
    # loaded when the command runs: its help starts fast
    import psutil

    busy = psutil.cpu_percent(BUSY_INTERVAL_S)
    if busy > BUSY_PERCENT:
        reporter.stage(f"this machine is {busy:.0f} % busy with other work: calibrate it again when it is idle")


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Through:
    """How much of all groups is through, in hundredths of a second as planned. Groups to come count as the last one:
    only the micro-benchmarks know what they will measure."""

    def __init__(self, counter: Counter, groups: int) -> None:
        self._counter, self._left = counter, groups
        self._before = self._here = 0

    def at(self, seconds: float, of_seconds: float, what: str) -> None:
        """So much of this group's plan is through; ``what`` is measured now."""
        self._here = round(100 * of_seconds)
        self._counter.at(self._before + round(100 * seconds), what, self._before + self._here * self._left)

    def group_done(self) -> None:
        """This group is through."""
        self._before += self._here
        self._left -= 1
        if self._left == 0:
            self._counter.at(self._before, "", self._before)


def _measure(ranks: int, arguments: Sequence[str], reporter: Reporter, through: _Through) -> None:
    """Run one group of ranks to its end."""
    process = start_session([sys.executable, "-m", "executor.microbench", *arguments])
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
                through.at(float(seconds), float(of_seconds), what)
            elif text:
                last = [*last[-9:], text]
                if "kept" in text.split():
                    reporter.stage(text)
        status = process.wait()
    finally:
        hangs.cancel()
        if process.poll() is None:
            end_session(process)
    if status != 0:
        told = "\n".join(last)
        raise BackendError(f"calibrate: measuring with {ranks} ranks ended with status {status}:\n{told}")
