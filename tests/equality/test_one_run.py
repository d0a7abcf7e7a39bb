"""A record whose files are of two runs is refused, also where only its accuracy is told."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from simgnn.cli.activity import check_run
from simgnn.errors import ConfigError
from simgnn.experiment.load import load_experiment
from simgnn.record.result import read_result
from simgnn.record.rundir import RunDirectory
from simgnn.tomlfile import load_toml, write_toml
from tests.equality.cached_runs import TRANSFORMED, case
from tests.equality.conftest import Bench


@pytest.fixture(scope="module")
def recorded(bench: Bench) -> Path:
    """A run that decides nothing."""
    return bench.run(case(*TRANSFORMED)).folder


@pytest.fixture
def record(recorded: Path, tmp_path: Path) -> Path:
    """A copy, to be damaged."""
    return shutil.copytree(recorded, tmp_path / "record", ignore=shutil.ignore_patterns("rendezvous*", "trace"))


def told(record: Path, *settings: str) -> Any:
    """The accuracy that is told of the record's own experiment, under ``settings``."""
    return check_run(load_experiment(record / "experiment.toml", settings), record)


@pytest.mark.parametrize(
    ("key", "value"), [("program_digest", "0" * 64), ("ranks", 3), ("epochs", 21), ("seed", 7)]
)  # fmt: skip
def test_a_result_of_another_run_is_refused(record: Path, key: str, value: Any) -> None:
    path = RunDirectory(record).result
    assert told(record) == tuple(read_result(path).accuracy or ()) != ()
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(ConfigError, match=rf"are not of one run: result\.json tells {key} = .*, plan\.json .*copy it"):
        told(record)


@pytest.mark.parametrize(
    ("section", "key", "value", "named"),
    [
        ("", "seed", 7, "seed"),
        ("train", "learning_rate", 0.5, ""),
        ("train", "epochs", 21, ""),
        ("model", "kind", "sage", ""),
        ("model", "layers", 3, "model.hidden"),
        ("model", "hidden", 8, ""),
        ("model", "dropout", 0.5, ""),
        ("model", "activation", "elu", ""),
        ("freshness", "kind", "adaptive-vertex", ""),
        ("codec", "kind", "linear", ""),
        ("cluster", "ranks_per_host", 3, "cluster.ranks"),
        ("cluster", "hosts", 2, "cluster.hosts"),
    ],
)
def test_an_experiment_of_another_run_is_refused(record: Path, section: str, key: str, value: Any, named: str) -> None:
    """Else it would pass as the one that reached this accuracy."""
    path = RunDirectory(record).experiment
    table = load_toml(path)
    (table[section] if section else table)[key] = value
    write_toml(path, table)
    name = named or f"{section}.{key}"
    with pytest.raises(ConfigError, match=rf"are not of one run: experiment\.toml tells {name} = .*, plan\.json .*"):
        told(record)


def test_a_plan_of_another_run_is_refused(record: Path) -> None:
    path = record / "plan" / "plan.json"
    table = json.loads(path.read_text())
    path.write_text(json.dumps({**table, "train": {**table["train"], "learning_rate": 0.5}}))
    with pytest.raises(ConfigError, match=r"tells train\.learning_rate = 0\.01, plan\.json 0\.5"):
        told(record)


@pytest.mark.parametrize("setting", ["train.epochs=60", "cluster.ranks_per_host=4", "hardware.profile=cpu-25gbe-4"])
def test_another_experiment_is_told_what_the_record_reached(record: Path, setting: str) -> None:
    """What is simulated may run longer, on other ranks and other hardware: only the record must be of one run."""
    assert told(record, setting) == told(record)
