"""A record that was damaged or edited after the run is rejected by its seal, one that ends early by its program."""

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from simgnn.analysis.replay.activity import read_recording
from simgnn.api.activity import check_run
from simgnn.errors import ConfigError
from simgnn.experiment.load import load_experiment
from simgnn.record.activity import read_activity
from simgnn.record.result import read_result
from simgnn.record.rundir import RunDirectory, write_table
from simgnn.seal import SEAL, seal_folder
from tests.equality.cached_runs import CACHE, TRANSFORMED, case
from tests.equality.cases import EPOCHS
from tests.equality.conftest import Bench

FILES = ("activity.parquet", "result.json", "experiment.toml", "plan/plan.json", "plan/program.json",
         "plan/columns.npz", "plan/resolved.toml")  # fmt: skip


@pytest.fixture(scope="module")
def recorded(bench: Bench) -> Path:
    return bench.run(case(*CACHE, *TRANSFORMED)).folder


@pytest.fixture
def record(recorded: Path, tmp_path: Path) -> Path:
    """A copy of a run, to be damaged."""
    return shutil.copytree(recorded, tmp_path / "record", ignore=shutil.ignore_patterns("rendezvous*", "trace"))


def both(record: Path) -> None:
    """Read the record in the two ways in which a simulation does."""
    check_run(load_experiment(record / "experiment.toml"), record)
    read_recording(record)


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_changed_after_the_run_is_named(record: Path, name: str) -> None:
    both(record)
    path, draw = record / name, np.random.default_rng(0)
    whole = path.read_bytes()
    experiment = load_experiment(record / "experiment.toml")
    byte = int(draw.integers(len(whole)))
    for damaged in (b"", whole[: len(whole) // 2], whole[:byte] + bytes([whole[byte] ^ 1]) + whole[byte + 1 :]):
        path.write_bytes(damaged)
        for read in (lambda: read_recording(record), lambda: check_run(experiment, record)):
            with pytest.raises(ConfigError, match=f"{name}.*changed") as raised:
                read()
            assert raised.value.exit_status == 2
    path.unlink()
    with pytest.raises(ConfigError):
        read_recording(record)


def test_a_file_of_another_run_is_rejected(bench: Bench, record: Path) -> None:
    other = bench.run(case(*TRANSFORMED)).folder
    shutil.copy(other / "result.json", record / "result.json")
    with pytest.raises(ConfigError, match=r"result\.json"):
        check_run(load_experiment(record / "experiment.toml"), record)


def test_a_record_of_an_earlier_version_has_no_seal_and_is_read(record: Path) -> None:
    (record / SEAL).unlink()
    both(record)


def test_a_seal_that_cannot_be_read_is_rejected(record: Path) -> None:
    (record / SEAL).write_text("{}")
    with pytest.raises(ConfigError, match=SEAL):
        read_recording(record)


@pytest.mark.parametrize(
    ("epochs", "message"), [(EPOCHS - 1, f"ends with epoch {EPOCHS - 2}, expected epoch {EPOCHS - 1}"), (0, "is empty")]
)
def test_a_record_that_ends_too_early_is_rejected(record: Path, epochs: int, message: str) -> None:
    """Although its seal is whole: the run itself wrote no more."""
    path = RunDirectory(record).activity
    table = read_activity(path)
    write_table(table.filter(pa.array(table["epoch"].to_numpy() < epochs)), path)
    seal_folder(record, RunDirectory(record).recorded)
    with pytest.raises(ConfigError, match=message):
        read_recording(record)


@pytest.mark.parametrize("setting", ["train.epochs=60", "cluster.ranks_per_host=4", "hardware.profile=cpu-25gbe-4"])
def test_another_experiment_gets_the_accuracy_of_the_record(record: Path, setting: str) -> None:
    """What is simulated may run longer, on other ranks and other hardware."""
    found = check_run(load_experiment(record / "experiment.toml", [setting]), record)
    assert list(found) == read_result(RunDirectory(record).result).accuracy != []
