"""A run directory: where each file of one simulation or run lies, and how tables are written."""

import os
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from simgnn.errors import ConfigError
from simgnn.program.program import Program
from simgnn.record.trace import OPS_SCHEMA


@dataclass(frozen=True)
class RunDirectory:
    """Names of the files in ``root``."""

    root: Path

    @property
    def experiment(self) -> Path:
        """The experiment, resolved."""
        return self.root / "experiment.toml"

    @property
    def hardware(self) -> Path:
        """The hardware profile of a prediction."""
        return self.root / "hardware.toml"

    @property
    def plan(self) -> Path:
        """Program, size table, layers and resolved choices."""
        return self.root / "plan"

    @property
    def trace(self) -> Path:
        """One row an op."""
        return self.root / "trace.parquet"

    @property
    def ops(self) -> Path:
        """What an op id means."""
        return self.root / "ops.parquet"

    @property
    def traffic(self) -> Path:
        """Payload by op and rank pair."""
        return self.root / "traffic.parquet"

    @property
    def batches(self) -> Path:
        """What each mini-batch held, and how long training waited for it."""
        return self.root / "batches.parquet"

    @property
    def memory(self) -> Path:
        """What ranks hold over time, as predicted."""
        return self.root / "memory.parquet"

    @property
    def activity(self) -> Path:
        """What policies decided, of a run whose program leaves something to decide."""
        return self.root / "activity.parquet"

    @property
    def result(self) -> Path:
        """Summary."""
        return self.root / "result.json"

    @property
    def recorded(self) -> list[Path]:
        """The files that a replay of a finished run reads; the run seals them (:mod:`simgnn.seal`)."""
        return [self.experiment, self.result, self.activity, *sorted(self.plan.glob("*"))]

    @property
    def perfetto(self) -> Path:
        """Trace for ui.perfetto.dev."""
        return self.root / "trace.perfetto.json"


def write_table(table: pa.Table, path: Path) -> None:
    """Write Parquet under a temporary name, then rename."""
    temporary = path.with_name(f"{path.name}.partial-{os.getpid()}")
    pq.write_table(table, temporary, compression="zstd")
    os.replace(temporary, path)


def read_table(path: Path) -> pa.Table:
    """Read Parquet; :class:`ConfigError` when it is missing or broken."""
    try:
        return pq.read_table(path)
    except (OSError, MemoryError, pa.ArrowException) as error:
        raise ConfigError(f"cannot read {path}: {error}; is this the directory of a finished run?") from error


def ops_table(program: Program) -> pa.Table:
    """``ops.parquet`` of a program."""
    rows = [
        {
            "op_id": op_id,
            "template": template,
            "op": op.name,
            "kind": op.kind.value,
            "stream": op.stream,
            "layer": op.layer,
            "phase": op.phase,
            "category": op.category,
        }
        for op_id, (template, op) in enumerate(program.ops)
    ]
    return pa.Table.from_pylist(rows, schema=OPS_SCHEMA)
