"""Any one number of a record that is changed contradicts another: it is refused, never replayed."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pyarrow as pa
import pytest

from simgnn.analysis.check_agreement import check_agreement
from simgnn.analysis.check_record import check_record
from simgnn.analysis.replay import read_recording
from simgnn.errors import ConfigError, SimgnnError
from simgnn.program.program import Program
from simgnn.program.sizes import IntArray
from simgnn.record.activity import ACTIVITY_SCHEMA, read_activity
from simgnn.record.rundir import RunDirectory, write_table
from tests.equality.block_runs import FIRST, block_case
from tests.equality.cached_runs import CACHE, EIGHT_BITS, TRANSFORMED, Runs, case
from tests.equality.cases import Case
from tests.equality.conftest import Bench

GAP = ("freshness.kind=skip-broadcast", "freshness.rule=variation-gap", "freshness.bound_change=0.2")
DRAWN = 40
"""Numbers of a record that are changed, one after the other."""


@pytest.fixture(scope="module")
def runs(bench: Bench) -> Runs:
    return Runs(bench)


def on_hosts() -> Case:
    extra = ("communication.exchange=host-aggregated", "model.hoist=never", *CACHE, *EIGHT_BITS)
    return Case("communities", "gcn", "ebv", 4, "float64-adam", extra, hosts=2)


CASES = {
    "halo": case(*CACHE, *TRANSFORMED),
    "mirrors": Case("communities", "gcn", "ebv", 3, extra=("model.hoist=never", *CACHE)),
    "hosts": on_hosts(),
    "blocks": block_case("gcn", 3, FIRST, *GAP),
}


def checked(folder: Path, program: Program, decisions: Mapping[str, IntArray]) -> None:
    """As :func:`read_recording` looks at them."""
    check_record(folder, program, decisions)
    check_agreement(folder, program, decisions, multilabel=False)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("by", [-1, 1, 2**62, -(2**62)])
def test_no_number_stands_alone(runs: Runs, name: str, by: int) -> None:
    folder = runs.of(CASES[name]).finished.folder
    recording, draw = read_recording(folder), np.random.default_rng(abs(by))
    for one in draw.choice(sorted(recording.decisions), DRAWN):
        changed = {key: values.copy() for key, values in recording.decisions.items()}
        values = changed[str(one)]
        places = np.argwhere(values >= 0)
        place = tuple(places[draw.integers(len(places))])
        if values.ndim == 4 and place[0] == place[1]:
            continue  # a rank is no peer of its own
        values[place] += by
        with pytest.raises(ConfigError, match=r"--activity: the record in .* is damaged or incomplete: decision"):
            checked(folder, recording.program, changed)


def test_a_count_by_another_spelling_of_its_number_is_refused(runs: Runs) -> None:
    """Who replays it asks for "-2": "-02" would stand there and not be used."""
    folder = runs.of(CASES["mirrors"]).finished.folder
    recording = read_recording(folder)
    name = next(name for name in sorted(recording.decisions) if "/replicas-" in name)
    stem, _, number = name.rpartition("-")
    spelt = f"{stem}-0{number}"
    decisions = {(spelt if key == name else key): values for key, values in recording.decisions.items()}
    with pytest.raises(ConfigError, match=rf"decision '{spelt}' is recorded, expected none of this name"):
        checked(folder, recording.program, decisions)


def _with(table: pa.Table, **changed: Any) -> pa.Table:
    """The table with other numbers in its first row."""
    rows = table.to_pylist()
    return pa.Table.from_pylist([{**rows[0], **changed}, *rows[1:]], schema=ACTIVITY_SCHEMA)


def _without_last_epoch(table: pa.Table) -> pa.Table:
    epochs = table["epoch"].to_numpy()
    return table.filter(pa.array(epochs < epochs.max()))


TABLES: dict[str, tuple[Callable[[pa.Table], pa.Table], str]] = {
    "the last epoch is missing": (_without_last_epoch, "ends with epoch 18, expected epoch 19"),
    "an epoch out of all bounds": (lambda table: _with(table, epoch=2**30), r"epoch 1073741824.*epochs below 20"),
    "a negative epoch": (lambda table: _with(table, epoch=-1), "epoch -1"),
    "a rank that there is not": (lambda table: _with(table, rank=2**30), r"rank 1073741824.*ranks below 2"),
    "another name": (lambda table: _with(table, name="row"), "damaged"),
    "no rows": (lambda table: table.slice(0, 0), "is empty"),
    "half of the rows": (lambda table: table.slice(0, len(table) // 2), "damaged|ends with epoch"),
}


@pytest.fixture(scope="module")
def recorded(runs: Runs) -> Path:
    return runs.of(CASES["halo"]).finished.folder


@pytest.mark.parametrize("fault", TABLES)
def test_tables_that_are_not_whole_are_refused(recorded: Path, tmp_path: Path, fault: str) -> None:
    damage, message = TABLES[fault]
    folder = _copied(recorded, tmp_path)
    write_table(damage(read_activity(RunDirectory(recorded).activity)), RunDirectory(folder).activity)
    with pytest.raises(ConfigError, match=message) as told:
        read_recording(folder)
    assert str(folder) in str(told.value)


def test_files_that_are_cut_off_or_of_another_run_are_refused(runs: Runs, recorded: Path, tmp_path: Path) -> None:
    for name in ("activity.parquet", "result.json", "plan/plan.json", "plan/program.json", "plan/columns.npz"):
        whole = (recorded / name).read_bytes()
        half = len(whole) // 2
        # of an archive the last byte of its first array: headers have bytes that say nothing, as of dates
        byte = ZipFile(recorded / name).infolist()[1].header_offset - 1 if name.endswith(".npz") else half
        flipped = [] if name == "activity.parquet" else [whole[:byte] + bytes([whole[byte] ^ 255]) + whole[byte + 1 :]]
        for damaged in (b"", whole[:half], *flipped):
            folder = _copied(recorded, tmp_path)
            (folder / name).write_bytes(damaged)
            with pytest.raises(SimgnnError) as told:
                read_recording(folder)
            assert told.value.exit_status == 2
    other = runs.of(CASES["mirrors"]).finished.folder
    for name in ("result.json", "plan/plan.json"):
        folder = _copied(recorded, tmp_path)
        shutil.copy(other / name, folder / name)
        with pytest.raises(ConfigError, match=r"are not of one run|cannot be read"):
            read_recording(folder)


def _copied(recorded: Path, tmp_path: Path) -> Path:
    """What a replay reads of a run, anew."""
    folder = tmp_path / "record"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "plan").mkdir(parents=True)
    for name in ("activity.parquet", "result.json", "plan/plan.json", "plan/program.json", "plan/columns.npz",
                 "plan/resolved.toml", "experiment.toml"):  # fmt: skip
        shutil.copy(recorded / name, folder / name)
    return folder
