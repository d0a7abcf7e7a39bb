"""``python -m tools.mutate_inputs``: damages small valid inputs of every kind, each by a seeded draw, and runs the
command that reads them. An attempt is fine if it succeeds or refuses the input in words (exit status 0, 2, 3 or 4).
Exit status 1, a traceback, a signal, more than 60 s or more than 4 GiB of memory are faults.

The attempts of a seed are numbered within each kind, whatever else is run: --only KIND:NUMBER repeats one and prints
what the command said (SIMGNN_DEBUG=1 shows where an exception came from). Inputs of the kinds record, checkpoint, model
and batches are made by real runs, whose times differ from call to call; --out keeps the damaged files of each fault.
"""

import argparse
import io
import os
import shutil
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from simgnn.cli.main import invoke
from simgnn.errors import SimgnnError
from tools.mutate_inputs.attempt import GIB, Limits, Outcome, attempt
from tools.mutate_inputs.draws import one_of
from tools.mutate_inputs.graph_inputs import graph_inputs, side_inputs
from tools.mutate_inputs.inputs import EXPERIMENT, KINDS, MINI_BATCHES, Input, environment_of, in_fork, new_folder
from tools.mutate_inputs.mutate import mutate
from tools.mutate_inputs.recorded_inputs import batch_inputs, run_inputs, statistics_inputs, truth_inputs
from tools.mutate_inputs.settings_inputs import profile_inputs, suite_inputs, toml_inputs

SHARES: Mapping[str, float] = {
    "toml": 0.2, "graph": 0.22, "side": 0.12, "record": 0.14, "checkpoint": 0.02, "model": 0.02, "suite": 0.08,
    "profile": 0.1, "statistics": 0.06, "batches": 0.04,
}  # fmt: skip
"""Shares of the attempts by kind; those of which many start processes that load torch are rarer."""
MAKERS: Mapping[Callable[[Path], Iterator[Input]], frozenset[str]] = {
    toml_inputs: frozenset({"toml"}),
    graph_inputs: frozenset({"graph"}),
    side_inputs: frozenset({"side"}),
    run_inputs: frozenset({"record", "checkpoint", "model"}),
    suite_inputs: frozenset({"suite"}),
    truth_inputs: frozenset({"suite"}),
    profile_inputs: frozenset({"profile"}),
    statistics_inputs: frozenset({"statistics"}),
    batch_inputs: frozenset({"batches"}),
}
"""What makes the inputs of each kind."""


@dataclass(frozen=True)
class Tried:
    """An attempt: its number within its kind, the input, the damaged file and what was done to it, how it ended."""

    number: int
    source: Input
    file: str
    mutation: str
    outcome: Outcome

    @property
    def name(self) -> str:
        return f"{self.source.kind}:{self.number}"


def make_inputs(root: Path, kinds: Sequence[str]) -> dict[str, list[Input]]:
    """Make the valid inputs of some kinds in the folder ``root``. Raises :class:`SimgnnError` if a command fails."""
    found: dict[str, list[Input]] = {kind: [] for kind in kinds}
    for make, makes in MAKERS.items():
        if makes & set(kinds):
            for made in make(root):
                if made.kind in found:
                    found[made.kind].append(made)
    return found


def counts(total: int, kinds: Sequence[str]) -> dict[str, int]:
    """Divide ``total`` attempts among all kinds by their shares, at least one each; return those of ``kinds``."""
    bounds = np.round(np.cumsum([0.0, *SHARES.values()]) * total).astype(int)
    each = {kind: max(1, int(count)) for kind, count in zip(SHARES, np.diff(bounds), strict=True)}
    return {kind: each[kind] for kind in kinds}


def draw(seed: int, number: int, inputs: Sequence[Input]) -> tuple[Input, np.random.Generator]:
    """Draw an input of a kind, and return the generator of all further draws of this attempt. All of them depend on
    ``seed``, the kind and ``number`` alone. The first attempts take every input once."""
    rng = np.random.default_rng([seed, zlib.crc32(inputs[0].kind.encode()), number])
    shares = np.array([source.share for source in inputs])
    drawn = int(rng.choice(len(inputs), p=shares / shares.sum()))
    return inputs[number if number < len(inputs) else drawn], rng


def check_sound(source: Input, scratch: Path) -> None:
    """Run the command of an input on undamaged files. Raises :class:`SimgnnError` unless it ends as it should. What is
    compiled at first use is compiled here, so that no attempt waits for it."""
    folder = scratch / "sound"
    shutil.copytree(source.folder, folder, symlinks=True)
    environment = environment_of(folder, source.environment)
    outcome = attempt(source.command, folder, environment, scratch / "output.txt", Limits(600.0, cpu_s=600.0))
    if outcome.status != source.sound:
        raise SimgnnError(f"{source.name}: simgnn {' '.join(source.command)} ended with status {outcome.status} on "
                          f"undamaged files:\n{outcome.output}")  # fmt: skip
    shutil.rmtree(folder)


def damage(source: Input, folder: Path, rng: np.random.Generator) -> str:
    """Damage a drawn file in a copy of an input; return its name, a zero byte, and what was done."""
    path = one_of(rng, source.damaged_files(folder))
    told = mutate(path, rng).replace("\0", "\\0")
    if source.unseal is not None and rng.random() < 0.5:
        source.unseal(folder)
        told += "; digests renewed"
    return f"{path.relative_to(folder).as_posix()}\0{told}"


def try_one(source: Input, number: int, rng: np.random.Generator, scratch: Path, limits: Limits) -> Tried:
    """Damage a copy of an input in ``scratch`` and run its command."""
    folder = scratch / "input"
    shutil.copytree(source.folder, folder, symlinks=True)
    file, _, told = in_fork(lambda: damage(source, folder, rng)).partition("\0")
    environment = environment_of(folder, source.environment)
    outcome = attempt(source.command, folder, environment, scratch / "output.txt", limits)
    if source.scores and outcome.fault == "exit status 1" and "simgnn: " not in outcome.output:
        outcome = replace(outcome, fault="")
    return Tried(number, source, file, told, outcome)


def table(tried: Sequence[Tried]) -> str:
    """Format how many attempts of each kind ended with which exit status, as a Markdown table."""
    statuses = sorted({one.outcome.status for one in tried})
    found = Counter((one.source.kind, one.outcome.status) for one in tried)
    head = ["kind", "attempts", *(f"exit {status}" for status in statuses), "faults", "longest", "most work", "memory"]
    lines = [f"| {' | '.join(head)} |"]
    lines.append("|---" + "|--:" * (len(statuses) + 5) + "|")
    for kind in (*dict.fromkeys(one.source.kind for one in tried), "all"):
        mine = [one for one in tried if kind in (one.source.kind, "all")]
        cells = [sum(count for (name, one), count in found.items() if one == status and kind in (name, "all"))
                 for status in statuses]  # fmt: skip
        faults = sum(bool(one.outcome.fault) for one in mine)
        longest = max(one.outcome.seconds for one in mine)
        work = max(one.outcome.cpu_s for one in mine)
        most = max(one.outcome.peak_bytes for one in mine) / GIB
        lines.append(f"| {kind} | {len(mine)} | {' | '.join(map(str, cells))} | {faults} | {longest:.0f} s | "
                     f"{work:.0f} s | {most:.1f} GiB |")  # fmt: skip
    return "\n".join(lines)


def warm_up(root: Path) -> None:
    """Load what most commands need, once for all forks, by two commands in this process."""
    # these take a second or more to load, and the commands below need none of them
    import simgnn.analysis.compare
    import simgnn.api.take_home
    import simgnn.api.train
    import simgnn.report.text
    import simgnn.study.validate.suite_runs  # noqa: F401

    for name, text in (("full", EXPERIMENT), ("batches", f'extends = "distdgl"\n{MINI_BATCHES}')):
        folder = new_folder(root, "warm", name, {"e.toml": text})
        said = io.StringIO()
        with redirect_stdout(said), redirect_stderr(said):
            status = invoke(("simulate", str(folder / "e.toml")))
        if status:
            raise SimgnnError(f"simgnn simulate failed on an undamaged experiment:\n{said.getvalue()}")


def run(arguments: argparse.Namespace, root: Path) -> int:
    """Carry out what the command line asks for, in the folder ``root``; return the exit status."""
    began = time.monotonic()
    limits = Limits(arguments.seconds)
    only = None if arguments.only is None else _numbered(arguments.only)
    kinds = tuple(arguments.kinds) if only is None else (only[0],)
    warm_up(root)
    inputs = make_inputs(root / "inputs", kinds)
    tried: list[Tried] = []
    sound: set[str] = set()
    numbers = counts(arguments.count, kinds)
    for kind in kinds:
        for number in range(numbers[kind]) if only is None else (only[1],):
            scratch = Path(tempfile.mkdtemp(prefix=f"{kind}-{number}-", dir=root))
            source, rng = draw(arguments.seed, number, inputs[kind])
            if arguments.check_inputs and source.name not in sound:
                check_sound(source, scratch)
                sound.add(source.name)
            one = try_one(source, number, rng, scratch, limits)
            tried.append(one)
            if one.outcome.fault or only is not None:
                _tell(one, arguments.seed, only is not None)
            if one.outcome.fault and arguments.out is not None:
                shutil.move(scratch, root / f"fault-{arguments.seed}-{kind}-{number}")
            else:
                shutil.rmtree(scratch, ignore_errors=True)
        done = [one for one in tried if one.source.kind == kind]
        print(f"{kind}: {len(done)} attempts, {sum(bool(one.outcome.fault) for one in done)} faults", flush=True)
    print(f"\nseed {arguments.seed}, {len(tried)} attempts, {time.monotonic() - began:.0f} s\n\n{table(tried)}")
    return int(any(one.outcome.fault for one in tried))


def _tell(one: Tried, seed: int, whole: bool) -> None:
    outcome, source = one.outcome, one.source
    said = outcome.output.strip().splitlines()
    print(
        f"{'FAULT' if outcome.fault else 'fine'}: {outcome.fault or f'exit status {outcome.status}'}\n"
        f"  repeat: python -m tools.mutate_inputs --seed {seed} --only {one.name}\n"
        f"  input: {source.name}, file {one.file}: {one.mutation}\n"
        f"  command: simgnn {' '.join(source.command)}\n"
        f"  {outcome.seconds:.1f} s, {outcome.peak_bytes / GIB:.2f} GiB; said:\n"
        + "\n".join(f"    {line[:300]}" for line in (said if whole else said[-6:])),
        flush=True,
    )


def _numbered(text: str) -> tuple[str, int]:
    kind, colon, number = text.partition(":")
    if kind not in KINDS or not colon or not number.isdecimal():
        raise SimgnnError(f"--only: got '{text}', expected KIND:NUMBER as it was printed, such as toml:17")
    return kind, int(number)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the attempts; exit status 1 if there was a fault, 2 for bad arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.mutate_inputs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=23, help="of all draws (default 23)")
    parser.add_argument("--count", type=int, default=3000, help="attempts over all kinds (default 3000)")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="run only these kinds' part of them")
    parser.add_argument("--seconds", type=float, default=60.0, help="longest time of an attempt (default 60); more for "
                        "a busy machine: processor time above 60 s counts as a fault in any case")  # fmt: skip
    parser.add_argument("--only", metavar="KIND:NUMBER", help="repeat one attempt")
    parser.add_argument("--check-inputs", action="store_true", help="first run each command on undamaged files")
    parser.add_argument("--out", type=Path, help="new folder that keeps inputs, and the damaged files of faults")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.out is not None:
            chosen.out.mkdir(parents=True)
            return run(chosen, chosen.out.resolve())
        with tempfile.TemporaryDirectory(prefix="mutate-inputs-", ignore_cleanup_errors=True) as folder:
            return run(chosen, Path(folder))
    except (SimgnnError, FileExistsError) as error:
        print(f"mutate_inputs: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    os.nice(5)
    sys.exit(main())
