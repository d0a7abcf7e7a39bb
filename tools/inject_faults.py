"""``python -m tools.inject_faults``: disturbs training runs of the shipped systems, and checks how they end and go on.

Each fault is drawn by the seed: a system, its ranks and hosts, what is done (a rank killed or stopped, the disk full,
the run directory deleted, `simgnn run` or its executor killed, terminated or interrupted), and when (the first
meeting, the first epoch, the middle, a checkpoint being written, the last epoch). Then these are checked:

1. Every process of the run ends in time, and nothing runs on.
2. The screen names the cause in one message, without a traceback, and the exit status is not 0.
3. No file is left cut off.
4. `simgnn run --resume` ends with the losses, accuracies and weights of a run that nobody disturbed, bit for bit;
   where no checkpoint is complete it fails with one message, and a new run ends with them.

It prints a line for each fault and a table. The exit status is 1 if any check failed; the folder of such a fault is
kept in OUT.
"""

import argparse
import json
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from simgnn.errors import BackendError, ConfigError, SimgnnError
from tools.faults.disturb import (
    LIMIT_S,
    Started,
    command_of,
    delete,
    make_room,
    mounted,
    reaches,
    strike,
)
from tools.faults.draw import KINDS, Fault, Setup, draw_faults
from tools.faults.judge import (
    FINISHED,
    MESSAGE,
    NO_RUN,
    NOTHING_SAVED,
    damaged,
    other_outcome,
    outcome,
    screen_faults,
    unfinished,
)
from tools.list_predictions import systems

ATTEMPTS = 4
"""Runs that are started for a fault, if they end before it can be caused; the delay is halved each time."""


@dataclass(frozen=True)
class Verdict:
    """How a fault ended. ``seconds``: until every process had ended; ``after``: how the run went on."""

    fault: Fault
    seconds: float
    after: str
    faults: tuple[str, ...]

    def __str__(self) -> str:
        end = f"FAILED: {'; '.join(self.faults)}" if self.faults else "identical"
        return f"{self.fault}: ended in {self.seconds:.1f} s; {self.after}: {end}"


class Trials:
    """Tries faults below the folder ``out``. ``timeout_s``: ``train.timeout`` of the runs; ``grace_s``: seconds beyond
    it in which all processes of a disturbed run must have ended."""

    def __init__(self, out: Path, timeout_s: float, grace_s: float) -> None:
        self.out, self.timeout_s, self.bound_s = out, timeout_s, timeout_s + grace_s
        self._undisturbed: dict[Setup, dict[str, object]] = {}

    def undisturbed(self, setup: Setup) -> dict[str, object]:
        """Return the outcome of a run that nobody disturbs, which is made when it is first asked for."""
        if setup not in self._undisturbed:
            place = self.out / "undisturbed" / setup.name
            place.mkdir(parents=True)
            status, said = self._carry_out(setup, place / "run", place / "screen.txt")
            if status:
                raise BackendError(f"{setup.name}: a run that nobody disturbed ended with status {status}: {said}")
            self._undisturbed[setup] = outcome(place / "run")
            shutil.rmtree(place)
        return self._undisturbed[setup]

    def attempt(self, fault: Fault, place: Path) -> Verdict:
        """Cause a fault in a new run below the new folder ``place``, let the run go on, and judge both."""
        expected = self.undisturbed(fault.setup)
        place.mkdir(parents=True)
        with mounted(place / "disk") if fault.kind == "disk-full" else nullcontext(place) as room:
            folder = room / "run"
            started, seconds, left = self._disturb(fault, folder, place / "screen.txt")
            wrong = [f"not ended after {self.bound_s:g} s: {', '.join(left)}"] if left else []
            wrong += screen_faults(fault, started.said, started.process.returncode)
            if fault.kind == "directory-deleted" and folder.exists():
                wrong.append(f"made anew after it was deleted: {sorted(path.name for path in folder.iterdir())}")
            if fault.kind == "disk-full":
                status, said = self._carry_out(fault.setup, folder, place / "still-full.txt", "--resume")
                if not (NOTHING_SAVED.search(said) or FINISHED.search(said)):
                    wrong += [f"--resume on the full disk: {each}" for each in screen_faults(fault, said, status)]
            make_room(room)
            wrong += damaged(folder)
            after, more = self._go_on(fault.setup, folder, place)
            wrong += more
            if not more:
                wrong += [*damaged(folder), *unfinished(folder), *other_outcome(outcome(folder), expected)]
            return Verdict(fault, seconds, after, tuple(wrong))

    def _disturb(self, fault: Fault, folder: Path, screen: Path) -> tuple[Started, float, list[str]]:
        """Disturb a run, and wait for its end; return it, the seconds until all of its processes had ended, and those
        that had not."""
        for attempt in range(ATTEMPTS):
            started = Started(command_of(fault.setup, folder, self.timeout_s), screen)
            try:
                if reaches(started, replace(fault, delay_s=fault.delay_s / 2**attempt), folder):
                    seconds, left = started.wait(self.bound_s, strike(started, fault, folder))
                    # whoever ends well needed neither room nor directory any more
                    if started.process.returncode or fault.kind not in ("disk-full", "directory-deleted"):
                        return started, seconds, left
            except (psutil.NoSuchProcess, ValueError):  # what was to be disturbed has just ended
                pass
            finally:
                started.end()
            make_room(folder.parent)
            delete(folder)
        raise BackendError(f"the run ended {ATTEMPTS} times before this could be done to it:\n{started.said[-500:]}")

    def _go_on(self, setup: Setup, folder: Path, place: Path) -> tuple[str, list[str]]:
        """Resume a run, or start it again if nothing can be resumed; return how it went on, and what is wrong with
        that."""
        nothing_saved = not (folder / "checkpoint" / "latest.json").is_file()
        status, said = self._carry_out(setup, folder, place / "resumed.txt", "--resume")
        if not status:
            result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
            return f"resumed after epoch {result['environment']['started_at_epoch']}", []
        if FINISHED.search(said):
            return "had finished", []
        one = "Traceback" not in said and len(MESSAGE.findall(said)) == 1
        if not one or not ((nothing_saved and NOTHING_SAVED.search(said)) or NO_RUN.search(said)):
            return "not resumed", [f"--resume ended with status {status}: {said[-500:]}"]
        options = ["--force"] if folder.is_dir() else []
        status, said = self._carry_out(setup, folder, place / "anew.txt", *options)
        return "began anew", [f"a new run ended with status {status}: {said[-500:]}"] if status else []

    def _carry_out(self, setup: Setup, folder: Path, screen: Path, *options: str) -> tuple[int, str]:
        """Train to the end; return exit status and what was printed."""
        started = Started(command_of(setup, folder, self.timeout_s, *options), screen)
        _, left = started.wait(LIMIT_S)
        if left:
            raise BackendError(f"{setup.name} {' '.join(options)}: not ended after {LIMIT_S:g} s: {', '.join(left)}")
        return started.process.returncode, started.said

    def verdicts(self, faults: Mapping[int, Fault]) -> Iterator[tuple[int, Verdict]]:
        """Try faults one after another, and keep what is left of those that fail."""
        for number, fault in faults.items():
            place = self.out / f"{number:03}-{fault.name}"
            try:
                verdict = self.attempt(fault, place)
            except SimgnnError as error:
                verdict = Verdict(fault, 0.0, "not judged", (str(error),))
            if not verdict.faults:
                shutil.rmtree(place)
            yield number, verdict


def table(found: Sequence[Verdict]) -> str:
    """Return a Markdown table of verdicts by kind of fault."""
    lines = [
        "| fault | runs | resumed | began anew | had finished | failed | longest end |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for kind in (*KINDS, "all"):
        mine = [verdict for verdict in found if kind in (verdict.fault.kind, "all")]
        if not mine:
            continue
        passed = Counter(verdict.after.partition(" after ")[0] for verdict in mine if not verdict.faults)
        counts = [len(mine), *(passed[name] for name in ("resumed", "began anew", "had finished"))]
        counts.append(len(mine) - passed.total())
        longest = max(verdict.seconds for verdict in mine)
        lines.append(f"| {kind} | {' | '.join(map(str, counts))} | {longest:.1f} s |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the faults and print the table; exit status 1 if a check failed, 2 for bad input."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.inject_faults", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=23, help="of the faults that are drawn (default: 23)")
    parser.add_argument("--count", type=int, default=60, help="number of faults (default: 60)")
    parser.add_argument("--out", type=Path, required=True, help="new folder for the runs")
    parser.add_argument("--systems", nargs="+", choices=systems(), default=systems(), help="default: all")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="default: all")
    parser.add_argument("--only", type=int, nargs="+", help="numbers of the drawn faults that are tried (default: all)")
    parser.add_argument(
        "--timeout", type=float, default=10.0, help="train.timeout of the runs, in seconds (default: 10); ranks that "
        "start slowly on a busy machine need more",
    )  # fmt: skip
    parser.add_argument(
        "--grace", type=float, default=30.0, help="seconds beyond it in which all processes of a run must have ended "
        "(default: 30); a rank that waits ends, and the result is written",
    )  # fmt: skip
    chosen = parser.parse_args(arguments)
    # what a shell starts in its background ignores Ctrl-C, and so would the runs
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        drawn = _drawn(chosen)
    except SimgnnError as error:
        print(f"simgnn: {error}", file=sys.stderr)
        return 2
    trials = Trials(chosen.out, chosen.timeout, chosen.grace)
    print(f"seed {chosen.seed}: all processes must end within {trials.bound_s:g} s of each fault", flush=True)
    found = []
    for number, verdict in trials.verdicts(drawn):
        found.append(verdict)
        print(f"{number}/{chosen.count} {verdict}", flush=True)
    print(table(found))
    return 1 if any(verdict.faults for verdict in found) else 0


def _drawn(chosen: argparse.Namespace) -> dict[int, Fault]:
    """Return the faults to try, by number from 1. Raises :class:`ConfigError` for bad input."""
    if chosen.count < 1:
        raise ConfigError(f"--count: got {chosen.count}, expected 1 or more")
    if not (chosen.timeout > 0 and chosen.grace > 0):
        raise ConfigError(f"--timeout, --grace: got {chosen.timeout:g} and {chosen.grace:g}, expected seconds above 0")
    if chosen.out.exists():
        raise ConfigError(f"--out: got {chosen.out}, which exists; expected a new folder: name another")
    numbered = dict(enumerate(draw_faults(chosen.seed, chosen.count, chosen.systems, chosen.kinds), start=1))
    if wrong := [number for number in chosen.only or () if number not in numbered]:
        raise ConfigError(f"--only: got {wrong[0]}, expected numbers from 1 to {chosen.count}")
    return {number: numbered[number] for number in chosen.only or numbered}


if __name__ == "__main__":
    sys.exit(main())
