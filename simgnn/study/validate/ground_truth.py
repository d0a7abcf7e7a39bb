"""Stores ground truth: measured runs, frozen predictions, and everything that is needed to predict again.

A folder of one validation::

    suite.toml            the suite as it was read; its cases are a pure function of it
    frozen.json           digests of suite, profiles, statistics and predictions, taken before the first run
    profile.toml          the calibration; .canary.json: seconds of the reference work, until all is frozen
    profiles/             TOPOLOGY-P2.toml: profile of each topology and rank count; TOPOLOGY-P2.testbed.toml
    stats/DIGEST.toml     statistics of each partition (numbers of rows and edges; no graph)
    batches/CASE.npz      sizes of a case's mini-batches, where it has some
    predictions.parquet   one row a case and variant
    runs.parquet          one row a case and repeat, a digest of all rows, and library versions
    bound.toml            written by hand for shipped runs: the worst score that CI accepts
    work/                 prepared run directories, sealed (:mod:`simgnn.seal`), and those of runs

The same folder without its run directories is what ``--keep`` writes and what CI scores the simulator against.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from simgnn.errors import ConfigError
from simgnn.outside import outside_data
from simgnn.record.result import Result
from simgnn.record.rundir import read_table, write_table
from simgnn.seal import json_digest
from simgnn.study.cases import Case
from simgnn.study.validate.suite import Topology

AS_CALIBRATED = "as calibrated"
BATCHES = "batches"
DIGEST, VERSIONS = b"sha256", b"versions"
"""Keys of the digest and the versions in the metadata of ``runs.parquet``."""
EARLIER_VERSIONS = "runs.json"
"""File in which earlier versions of simgnn stored the library versions of runs."""
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
    """Times of a median steady epoch: length, and means over ranks of computing, waiting and transfer; also the peak
    memory of the fullest rank, if known."""

    epoch_s: float
    compute_s: float
    wait_s: float
    transfer_s: float
    memory_bytes: int | None

    @classmethod
    def of(cls, result: Result) -> "Times":
        """Extract the times from a result of the simulator or the executor; both use the same fields and formulas."""
        ranks = result.per_rank
        if result.epoch_s_median is None or not ranks:
            raise ConfigError(f"the result of '{result.name}' ({result.status}) has no epoch times: {result.message}")
        return cls(
            epoch_s=result.epoch_s_median,
            compute_s=sum(rank.compute_s for rank in ranks) / len(ranks),
            wait_s=sum(rank.wait_s for rank in ranks) / len(ranks),
            transfer_s=sum(rank.comm_total_s for rank in ranks) / len(ranks),
            memory_bytes=max(result.peak_memory_bytes or [], default=None),
        )


@dataclass(frozen=True)
class Measured:
    """One run of a case. ``canary_s``: seconds of the reference work just before the run."""

    case: Case
    repeat: int
    times: Times
    program_digest: str
    canary_s: float


@dataclass(frozen=True)
class Prediction:
    """The prediction of a case with one variant of its profile; ``low_s``, ``high_s``: 90 % interval, if there is one;
    ``features``: columns of the regression."""

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


class TruthFolder:
    """Paths of the files of a validation (listed above)."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.suite = root / "suite.toml"
        self.frozen = root / "frozen.json"
        self.profile = root / "profile.toml"
        self.calibrating = root / "profile.toml.partial"  # the profile until its suite is written
        self.reference = root / ".canary.json"
        self.predictions = root / "predictions.parquet"
        self.runs = root / "runs.parquet"
        self.bound = root / "bound.toml"
        self.stats = root / "stats"
        self.stats_index = self.stats / "index.toml"  # which case has which statistics
        self.work = root / "work"

    def profile_of(self, topology: Topology, ranks: int) -> Path:
        """Return the profile of a topology, which is the calibration itself where no testbed is used."""
        return self.profile if topology.plain else self.root / "profiles" / f"{topology.name}-P{ranks}.toml"

    def testbed_of(self, topology: Topology, ranks: int) -> Path:
        """Return the testbed file of a topology; no profile can have its name."""
        return self.root / "profiles" / f"{topology.name}-P{ranks}.testbed.toml"

    def predicted_from(self) -> list[Path]:
        """List all files that predictions are made from: suite, profiles, statistics and batch sizes."""
        found = [path for folder in ("profiles", "stats", BATCHES) for path in sorted((self.root / folder).glob("*"))]
        return [self.suite, self.profile, *(path for path in found if not path.name.startswith("."))]

    def batches_of(self, case: Case) -> Path:
        """Return the file with the sizes of a case's mini-batches."""
        return self.root / BATCHES / f"{case.name}.npz"

    def prepared(self, case: Case) -> Path:
        """Return the prepared run directory that each run of a case copies."""
        return self.work / case.name

    def run_of(self, case: Case, repeat: int) -> Path:
        """Return the run directory of a repeat. Names of levels have no tilde, so no two cases share one."""
        return self.work / f"{case.name}~{repeat}"


def write_predictions(predictions: Sequence[Prediction], path: Path) -> None:
    """Write predictions as Parquet, completely or not at all."""
    write_table(pa.Table.from_pylist([as_row(row) for row in predictions], schema=PREDICTIONS_SCHEMA), path)


def write_runs(runs: Sequence[Measured], versions: Sequence[Mapping[str, str]], path: Path) -> None:
    """Write all runs so far as Parquet. A digest of them and every set of library ``versions`` that was used are
    metadata of the file, so that an interruption cannot separate them."""
    rows = [as_row(run) for run in runs]
    metadata = {DIGEST: json_digest(rows), VERSIONS: json.dumps(list(versions))}
    write_table(pa.Table.from_pylist(rows, schema=RUNS_SCHEMA.with_metadata(metadata)), path)


RESTART = "start over in a new folder"


def read_runs(folder: TruthFolder) -> tuple[list[Measured], list[dict[str, str]]]:
    """Read the runs of a folder and the library versions that they used. Raises :class:`ConfigError` if the runs
    changed after they were written. Earlier versions wrote no digest, and library versions to ``runs.json``."""
    if not folder.runs.is_file():
        return [], []
    runs, metadata = _read(folder.runs, RUNS_SCHEMA, Measured)
    if DIGEST not in metadata:
        earlier = folder.root / EARLIER_VERSIONS
        if not earlier.is_file():
            return runs, []
        with outside_data(earlier, "JSON file", remedy=RESTART, error=ConfigError):
            return runs, list(json.loads(earlier.read_text())["versions"])
    if metadata[DIGEST].decode("utf-8", "replace") != json_digest([as_row(run) for run in runs]):
        raise ConfigError(f"{folder.runs}: the runs changed after they were measured; {RESTART}")
    with outside_data(folder.runs, "table of runs", remedy=RESTART, error=ConfigError):
        return runs, list(json.loads(metadata[VERSIONS]))


def read_predictions(path: Path) -> list[Prediction]:
    return _read(path, PREDICTIONS_SCHEMA, Prediction)[0]


def as_row(row: Measured | Prediction) -> dict[str, Any]:
    """Return the columns of a row as Parquet stores them."""
    table = asdict(row)
    return {**table.pop("case"), **table.pop("times"), **table}


def _read(path: Path, schema: pa.Schema, kind: type[Row]) -> tuple[list[Row], Mapping[bytes, bytes]]:
    table = read_table(path)
    if not table.schema.equals(schema):
        raise ConfigError(
            f"{path}: got columns {table.schema.names}, expected {schema.names}; another version of simgnn wrote it"
        )
    rows = []
    with outside_data(path, "table of runs", remedy=RESTART, error=ConfigError):
        for entry in table.to_pylist():
            case = Case(**{field.name: entry.pop(field.name) for field in fields(Case)})
            times = Times(**{field.name: entry.pop(field.name) for field in fields(Times)})
            if "features" in entry:
                entry["features"] = tuple(entry["features"])
            rows.append(kind(case=case, times=times, **entry))
    return rows, table.schema.metadata or {}
