"""``python -m tools.list_predictions``: predicts every shipped system on every shipped profile, on a small
generated graph.

It prints the median epoch, the 90 % interval and the labels of each result, as a Markdown table. Systems whose training
decides what is sent replay a small run, which is recorded first (``--recorded``: folder with one from an earlier call).
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from simgnn.api.activity import RECORDED
from simgnn.api.predict import predict
from simgnn.errors import ConfigError, SimgnnError
from simgnn.experiment.load import load_experiment, system_names
from simgnn.hardware.profile.library import shipped_folder
from simgnn.progress import Progress
from simgnn.record.result import Result

EPOCHS = 3
SMALL = ("graph.source=synthetic:communities", "graph.vertices=600", "graph.edges=2400")
"""Overrides of the experiment that make it small."""
BATCHES = ("batching.batch_size=16",)
"""Further overrides of systems with mini-batches: several batches an epoch on 16 ranks."""
RECORDING_RANKS = 2


def systems() -> list[str]:
    """Return the names of the shipped systems; ``default`` is only their base."""
    return [name for name in system_names() if name != "default"]


def profiles() -> list[str]:
    """Return the names of the shipped profiles."""
    return sorted(path.stem for path in shipped_folder().glob("*.toml"))


def overrides(system: str) -> list[str]:
    """Return the settings of the small experiment of a system."""
    return [*SMALL, *(BATCHES if load_experiment(system).batching.mini_batches else ())]


def needs_record(system: str) -> bool:
    """Return whether training decides what a system sends: whether it is refused without a recorded run."""
    try:
        next(predictions({}, [system]))
    except ConfigError as error:
        if RECORDED not in str(error):
            raise
        return True
    return False


def record(system: str, folder: Path) -> Path:
    """Train the small experiment on this machine; return the run directory in ``folder``."""
    out = folder / system
    words = [word for given in overrides(system) for word in ("--set", given)]
    command = [sys.executable, "-m", "simgnn", "run", system, "--ranks", str(RECORDING_RANKS), *words]
    command += ["--epochs", str(EPOCHS), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SimgnnError(f"{system}: recording a run failed: {done.stderr.strip().splitlines()[-1:]}")
    return out


def predictions(recorded: Mapping[str, Path], chosen: Sequence[str] = ()) -> Iterator[tuple[str, str, Result]]:
    """Predict systems (default: all) on every shipped profile; yield system, profile and result."""
    for system in chosen or systems():
        for profile in profiles():
            experiment = load_experiment(system, overrides(system), epochs=EPOCHS, hardware=profile)
            yield system, profile, predict(experiment, Progress(), activity=recorded.get(system), limits=False).result


def labels(result: Result) -> list[str]:
    """Return the labels that a result carries, in one word each, with what they are about."""
    found = [name for name in ("uncalibrated", "transferred") if getattr(result, name)]
    found += [f"assumed: {', '.join(result.assumed)}"] if result.assumed else []
    found += [f"assumed {note.partition(' of ')[0].removeprefix('assumed: ')} numbers" for note in result.notes
              if note.startswith("assumed: ")]  # fmt: skip
    found += ["extrapolated"] if result.extrapolated else []
    return found + (["no energy"] if result.energy_J is None else [])


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; exit status 2 if a system cannot be predicted on a profile."""
    parser = argparse.ArgumentParser(prog="python -m tools.list_predictions", description=__doc__)
    parser.add_argument("--recorded", type=Path, help="folder with a recorded run of each system that needs one")
    chosen = parser.parse_args(arguments)
    print("| system | profile | ranks | epoch | 90 % interval | high / low | labels |\n|---|---|--:|--:|---|--:|---|")
    try:
        with tempfile.TemporaryDirectory() as scratch:
            wanted = [name for name in systems() if needs_record(name)]
            recorded = {
                name: chosen.recorded / name if chosen.recorded else record(name, Path(scratch)) for name in wanted
            }
            for system, profile, result in predictions(recorded):
                print(_line(system, profile, result))
    except SimgnnError as error:
        print(f"simgnn: {error}", file=sys.stderr)
        return 2
    return 0


def _line(system: str, profile: str, result: Result) -> str:
    assert result.epoch_s_median is not None
    assert result.epoch_s_interval is not None
    low, high = result.epoch_s_interval
    times = f"{result.epoch_s_median:.3g} s | {low:.3g} to {high:.3g} s | {high / low:.1f}"
    return f"| {system} | {profile} | {result.ranks} | {times} | {'; '.join(labels(result))} |"


if __name__ == "__main__":
    sys.exit(main())
