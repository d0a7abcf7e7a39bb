"""Ground truth: what was measured, what was predicted before, and all that predicting anew needs. Small files.

A folder of one validation::

    suite.toml            the suite as it was read; its cases are a pure function of it
    frozen.json           digests of suite, profiles, statistics and predictions, taken before the first run
    profile.toml          the calibration; .canary.json: the reference work beside it, until all is frozen
    profiles/             TOPOLOGY-P2.toml: the same for each topology and rank count, as TOPOLOGY-P2.testbed.toml
                          declares it
    stats/DIGEST.toml     statistics of each partition (numbers of rows and edges; no graph)
    batches/CASE.npz      sizes of a case's mini-batches, where it has some
    predictions.parquet   one row a case and variant
    runs.parquet          one row a case and repeat, with a digest of all and the versions that they ran with
    bound.toml            written by hand where the runs are kept: the worst score that CI accepts
    work/                 what each case starts from, sealed (:mod:`simgnn.seal`), and run directories

The same folder without its run directories is what ``--keep`` writes and what CI scores the simulator against.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from simgnn.errors import ConfigError
from simgnn.record.result import Result
from simgnn.record.rundir import read_table, write_table
from simgnn.seal import json_digest
from simgnn.study.cases import Case

AS_CALIBRATED = "as calibrated"
BATCHES = "batches"
DIGEST, VERSIONS = b"sha256", b"versions"
"""Keys in the metadata of ``runs.parquet``."""
EARLIER_VERSIONS = "runs.json"
"""Where earlier versions of simgnn kept the library versions of runs."""
_CASE = [("graph", pa.string()), ("partition", pa.string()), ("ranks", pa.int32()), ("topology", pa.string()),
         ("experiment", pa.string())]  # fmt: skip
_TIMES = [("epoch_s", pa.float64()), ("compute_s", pa.float64()), ("wait_s", pa.float64()),
          ("transfer_s", pa.float64()), ("memory_bytes", pa.int64())]  # fmt: skip
RUNS_SCHEMA = pa.schema(
    [*_CASE, ("repeat", pa.int32()), *_TIMES, ("program_digest", pa.string()), ("canary_s", pa.float64())]
)
PREDICTIONS_SCHEMA = pa.schema(
    [*_CASE, ("variant", pa.string()), *_TIMES, ("low_s", pa.float64()), ("high_s", pa.float64()),
     ("extrapolated", pa.int32()), ("roofline_s", pa.float64()), ("features", pa.list_(pa.float64())),
     ("program_digest", pa.string()), ("profile_digest", pa.string())]
)  # fmt: skip
Row = TypeVar("Row", "Measured", "Prediction")


@dataclass(frozen=True)
class Times:
    """A median steady epoch: its length; mean over ranks of computing, waiting and transfer; the fullest rank's peak
    memory (None: not told)."""

    epoch_s: float
    compute_s: float
    wait_s: float
    transfer_s: float
    memory_bytes: int | None

    @classmethod
    def of(cls, result: Result) -> "Times":
        """From a result of either backend: both have the same fields, by the same formulas."""
        if result.epoch_s_median is None or not result.per_rank:
            raise ConfigError(
                f"the result of '{result.name}' (status '{result.status}') has no epoch: {result.message}"
            )
        ranks = len(result.per_rank)
        return cls(
            epoch_s=result.epoch_s_median,
            compute_s=sum(rank.compute_s for rank in result.per_rank) / ranks,
            wait_s=sum(rank.wait_s for rank in result.per_rank) / ranks,
            transfer_s=sum(rank.comm_total_s for rank in result.per_rank) / ranks,
            memory_bytes=max(result.peak_memory_bytes) if result.peak_memory_bytes else None,
        )


@dataclass(frozen=True)
class Measured:
    """One run of a case. ``canary_s``: seconds of the reference work, timed just before."""

    case: Case
    repeat: int
    times: Times
    program_digest: str
    canary_s: float


@dataclass(frozen=True)
class Prediction:
    """One case on one variant of its profile. ``features``: columns of the regression; ``low_s``, ``high_s``: the 90 %
    interval (None: the simulator gave none)."""

    case: Case
    variant: str
    times: Times
    low_s: float | None
    high_s: float | None
    extrapolated: int
    roofline_s: float
    features: tuple[float, ...]
    program_digest: str
    profile_digest: str


@dataclass(frozen=True)
class TruthFolder:
    """Where each file of a validation lies."""

    root: Path

    @property
    def suite(self) -> Path:
        """The suite as it was read."""
        return self.root / "suite.toml"

    @property
    def frozen(self) -> Path:
        """What may not change any more."""
        return self.root / "frozen.json"

    @property
    def profile(self) -> Path:
        """The calibration."""
        return self.root / "profile.toml"

    @property
    def calibrating(self) -> Path:
        """The calibration, until the suite that it is for is written."""
        return self.root / "profile.toml.partial"

    @property
    def reference(self) -> Path:
        """The reference work beside the calibration, until all is frozen."""
        return self.root / ".canary.json"

    @property
    def predictions(self) -> Path:
        """Predictions made before the first run."""
        return self.root / "predictions.parquet"

    @property
    def runs(self) -> Path:
        """What was measured."""
        return self.root / "runs.parquet"

    @property
    def bound(self) -> Path:
        """The worst score that is accepted against these runs."""
        return self.root / "bound.toml"

    @property
    def stats(self) -> Path:
        """Statistics of partitions."""
        return self.root / "stats"

    @property
    def stats_index(self) -> Path:
        """Which case has which statistics."""
        return self.root / "stats" / "index.toml"

    def profile_of(self, topology: str, ranks: int, plain: bool) -> Path:
        """The profile of a topology: the calibration itself where the machine is used as it is."""
        return self.profile if plain else self.root / "profiles" / f"{topology}-P{ranks}.toml"

    def profiles(self) -> list[Path]:
        """Every profile that there is, sorted."""
        return [path for path in (self.profile, *sorted((self.root / "profiles").glob("*.toml"))) if path.is_file()]

    def statistics(self) -> list[Path]:
        """Every file of statistics of partitions, companions and the index too, and of sizes of batches; sorted."""
        there = [*sorted(self.stats.glob("*")), *sorted((self.root / BATCHES).glob("*"))]
        return [path for path in there if path.is_file() and not path.name.startswith(".")]

    def batches_of(self, case: Case) -> Path:
        """Sizes of a case's mini-batches."""
        return self.root / BATCHES / f"{case.name}.npz"

    @property
    def work(self) -> Path:
        """Prepared run directories and runs."""
        return self.root / "work"

    def prepared(self, case: Case) -> Path:
        """What each run of a case starts from."""
        return self.work / case.name

    def run_of(self, case: Case, repeat: int) -> Path:
        """The run directory of a repeat. No level's name holds a tilde, so it is no other case's."""
        return self.work / f"{case.name}~{repeat}"


def write_rows(rows: "Sequence[Measured] | Sequence[Prediction]", schema: pa.Schema, path: Path) -> None:
    """Write rows as Parquet, whole or not at all."""
    write_table(pa.Table.from_pylist([as_row(row) for row in rows], schema=schema), path)


def write_runs(runs: "Sequence[Measured]", versions: Sequence[Mapping[str, str]], path: Path) -> None:
    """Write all runs so far, a digest of them, and every set of library ``versions`` that some of them ran with.

    Digest and versions are metadata of the Parquet file, so that an interruption cannot tear them apart.
    """
    rows = [as_row(run) for run in runs]
    told = {DIGEST: json_digest(rows), VERSIONS: json.dumps(list(versions))}
    write_table(pa.Table.from_pylist(rows, schema=RUNS_SCHEMA.with_metadata(told)), path)


def read_runs(folder: TruthFolder) -> "tuple[list[Measured], list[dict[str, str]]]":
    """The runs of a folder (none where there is no file yet) and the library versions that they were made with.

    Raises :class:`ConfigError` where the runs are not those that were written. Earlier versions kept no digest in the
    file, and the versions in ``runs.json``.
    """
    path = folder.runs
    if not path.is_file():
        return [], []
    runs, metadata = _read(path, RUNS_SCHEMA, Measured)
    if DIGEST not in metadata:
        told = folder.root / EARLIER_VERSIONS
        return runs, list(json.loads(told.read_text())["versions"]) if told.is_file() else []
    if metadata[DIGEST].decode() != json_digest([as_row(run) for run in runs]):
        raise ConfigError(f"{path}: the runs changed after they were measured; start over in a new folder")
    return runs, list(json.loads(metadata[VERSIONS]))


def read_predictions(path: Path) -> "list[Prediction]":
    """The predictions of a folder."""
    return _read(path, PREDICTIONS_SCHEMA, Prediction)[0]


def as_row(row: "Measured | Prediction") -> dict[str, Any]:
    """The columns of a row, as Parquet stores them."""
    table = asdict(row)
    return {**table.pop("case"), **table.pop("times"), **table}


def _read(path: Path, schema: pa.Schema, kind: type[Row]) -> tuple[list[Row], Mapping[bytes, bytes]]:
    """Rows of a Parquet file and the metadata of its schema."""
    table = read_table(path)
    if not table.schema.equals(schema):
        raise ConfigError(f"{path}: got columns {table.schema.names}, expected {schema.names}: made by another version")
    rows = []
    for entry in table.to_pylist():
        case = Case(**{field.name: entry.pop(field.name) for field in fields(Case)})
        times = Times(**{field.name: entry.pop(field.name) for field in fields(Times)})
        if "features" in entry:
            entry["features"] = tuple(entry["features"])
        rows.append(kind(case=case, times=times, **entry))
    return rows, table.schema.metadata or {}
