"""A backend whose runs take a known factor of what the simulator says, so that a whole validation runs in seconds."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from simgnn.api.backend import CommandBackend
from simgnn.cli.tables.console import Reporter
from simgnn.errors import BackendError
from simgnn.experiment.load import load_experiment
from simgnn.experiment.schema import Experiment
from simgnn.hardware.profile.devices import Curve
from simgnn.hardware.profile.profile import Profile, load_profile, save_profile
from simgnn.partition.statistics.file import load_stats, save_stats
from simgnn.planner.prepare import prepare
from simgnn.record.result import Result
from simgnn.sampling.batches.sizes import save_sizes
from simgnn.study.backend import Counted, Predicted
from simgnn.study.validate.suite import Suite
from simgnn.study.validate.suite_file import parse_suite
from simgnn.tomlfile import write_toml

PROFILE = "cpu-100gbe-8"
SUITE = {
    "name": "small",
    "description": "two generated graphs on two ranks, on this machine and on a testbed",
    "repeats": 3,
    "epochs": 3,
    "ranks": [2],
    "calibration": {"ranks": [2], "quick": True},
    "hold_out": ["graph"],
    "graphs": [
        {"name": "small", "set": {"graph": {"source": "synthetic:communities", "vertices": 300, "edges": 1500}}},
        {"name": "large", "set": {"graph": {"source": "synthetic:rmat", "vertices": 2048, "edges": 30000}}},
    ],
    "partitions": [{"name": "random", "set": {"partition": {"kind": "random"}}}],
    "experiments": [
        {"name": "narrow", "set": {"model": {"kind": "gcn", "hidden": 8}}},
        {"name": "wide", "set": {"model": {"kind": "sage", "hidden": 64}}},
    ],
    "topologies": [{"name": "here"}, {"name": "far", "hosts": 2, "link": "100 Mbit/s"}],
    "bars": {"median_error": 0.15, "tau": 0.9, "regret": 0.03},
    "group_bars": [{"name": "what-if", "axis": "topology", "levels": ["far"], "bars": {"median_error": 0.15}}],
    "sensitivity": [{"primitive": "*"}],
}


def calibrated() -> Profile:
    """What calibrating gives: a shipped profile, and what drawing batches costs, which none of them knows."""
    profile = load_profile(PROFILE)
    draws = Curve.model_validate({"primitive": "sample", "source": "assumed", "costs": {"edges": "10 ns/edge"}})
    devices = {
        name: device.model_copy(update={"curves": (*device.curves, draws)}) for name, device in profile.devices.items()
    }
    return profile.model_copy(update={"devices": devices})


def small_suite(**changes: object) -> Suite:
    """The suite of this room, with keys changed."""
    return parse_suite({**SUITE, **changes}, "small.toml")


_PREDICTED: dict[tuple[str | bytes | None, ...], Predicted] = {}


def _predicted(experiment: Experiment, profile: Profile, counted: Path | None) -> Predicted:
    """What the simulator says, asked once of each experiment, profile, statistics file and file of batch sizes."""
    source = experiment.graph.source
    stats = Path(source.removeprefix("stats:")).read_bytes() if source.startswith("stats:") else None
    graph = experiment.graph if stats is None else type(experiment.graph)(source="stats:")
    told = experiment.model_copy(update={"graph": graph}).model_dump_json(), profile.model_dump_json()
    key = (*told, stats, None if counted is None else counted.read_bytes())
    if key not in _PREDICTED:
        _PREDICTED[key] = CommandBackend(Reporter(quiet=True)).predict(experiment, profile, counted)
    return _PREDICTED[key]


class Pretended:
    """Runs take ``factor`` times the simulated time, give or take ``jitter`` (a share, seeded). ``fail_at``: the number
    of the run that fails (None: none does). ``events``: what was called, in order."""

    def __init__(self, factor: float = 1.1, jitter: float = 0.005, fail_at: int | None = None) -> None:
        self.factor, self.jitter, self.fail_at = factor, jitter, fail_at
        self.events: list[str] = []
        self.slower = 1.0
        self._inner = CommandBackend(Reporter(quiet=True))
        self._rng = np.random.default_rng(0)
        self._runs = 0

    def names(self) -> list[str]:
        """The first word of every event."""
        return [event.split()[0] for event in self.events]

    def calibrate(self, ranks: Sequence[int], quick: bool, passes: int, out: Path) -> None:
        self.events.append("calibrate")
        save_profile(calibrated(), out)

    def declare(self, testbed: Path, base: Path, out: Path) -> None:
        self.events.append(f"declare {testbed.name}")
        save_profile(load_profile(base), out)

    def check(self, experiment: Experiment) -> None:
        self._inner.check(experiment)

    def prepare(self, experiment: Experiment, out: Path) -> Counted:
        self.events.append(f"prepare {out.name}")
        prepared = prepare(experiment)
        out.mkdir()
        counted = Counted.of(prepared)
        save_stats(counted.stats, out / "stats.toml")
        if counted.sizes is not None:
            save_sizes(counted.sizes, counted.hot_rows, out / "batches.npz")
        write_toml(out / "experiment.toml", prepared.experiment.to_table())
        return counted

    def predict(self, experiment: Experiment, profile: Profile, counted: Path | None = None) -> Predicted:
        self.events.append(f"predict {experiment.name}")
        found = _predicted(experiment, profile, counted)
        epoch_s = found.result.epoch_s_median
        assert epoch_s is not None
        result = found.result.model_copy(update={"epoch_s_median": epoch_s * self.slower})
        return Predicted(result, found.program, found.machine)

    def check_testbed(self) -> None:
        self.events.append("check")

    def up(self, testbed: Path) -> None:
        self.events.append(f"up {testbed.name}")

    def down(self, testbed: Path) -> None:
        self.events.append(f"down {testbed.name}")

    def run(self, directory: Path, testbed: Path | None) -> Result:
        self._runs += 1
        if self._runs == self.fail_at:
            raise BackendError("run: a rank died")
        self.events.append(f"run {directory.name}")
        experiment = load_experiment(directory / "experiment.toml")
        assert experiment.hardware.profile is not None
        graph = type(experiment.graph)(source=f"stats:{directory / 'stats.toml'}")
        assert load_stats(directory / "stats.toml").ranks == experiment.ranks
        replayed = experiment.model_copy(update={"graph": graph})
        batches = directory / "batches.npz"
        counted = batches if batches.is_file() else None
        result = _predicted(replayed, load_profile(experiment.hardware.profile), counted).result
        assert result.epoch_s_median is not None
        took = result.epoch_s_median * self.factor * (1 + self.jitter * self._rng.uniform(-1, 1))
        return result.model_copy(update={"backend": "executor", "epoch_s_median": took})

    def canary(self) -> float:
        self.events.append("canary")
        return 0.05 * (1.2 if "run" in self.names() else 1.0)

    def tell(self, text: str) -> None:
        pass
