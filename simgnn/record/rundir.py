"""The run directory: names of the files of a simulation or run, and columns of its tables.

The simulator and the executor write the same trace, one row for each op. ``compare`` joins two traces on (rank, epoch,
step, op_id).
"""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from simgnn.errors import ConfigError
from simgnn.memory import check_memory
from simgnn.outside import outside_data
from simgnn.program.program import Program

INT32, INT64, FLOAT, TEXT = pa.int32(), pa.int64(), pa.float64(), pa.string()
TRACE_SCHEMA = pa.schema(
    [
        ("rank", INT32),
        ("epoch", INT32),
        ("step", INT32),  # negative: of the evaluation after the epoch, the last of whose steps is -1
        ("op_id", INT32),  # Program.op_ids
        ("issued_s", FLOAT),  # the stream reached the op and its inputs were ready
        ("started_s", FLOAT),  # work began; of a collective: the latest issue of its group
        ("ended_s", FLOAT),
        ("bytes_sent", INT64),  # payload of exchange, fetch and peer_read that left this rank
        ("collective_bytes", INT64),  # payload handed to broadcast, allreduce, allgather
        ("control_bytes", INT64),  # masks, counts, flags
        ("messages", INT32),  # peers with a non-empty payload
    ]
)
"""Columns of the trace. Seconds count from the start of the first training turn, on one clock for all ranks."""
COLUMNS_OF_OPS = (("op_id", INT32), ("template", TEXT), ("op", TEXT), ("kind", TEXT), ("stream", TEXT))
OPS_SCHEMA = pa.schema([*COLUMNS_OF_OPS, ("layer", INT32), ("phase", TEXT), ("category", TEXT)])
"""Columns of ``ops.parquet``, which describes the op of each op_id."""
TRAFFIC_SCHEMA = pa.schema(
    [("op_id", INT32), ("source", INT32), ("target", INT32), ("messages", INT64), ("bytes", INT64)]
)
"""Columns of ``traffic.parquet``: payload of pairwise ops by rank pair, summed over the turns of the run."""
MEMORY_SCHEMA = pa.schema([("rank", INT32), ("time_s", FLOAT), ("device_bytes", INT64), ("host_bytes", INT64)])
"""Columns of ``memory.parquet`` of a prediction: bytes on a rank's device and in host memory after each change."""


class RunDirectory:
    """Paths of the files in the run directory ``root``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.experiment = root / "experiment.toml"  # resolved
        self.hardware = root / "hardware.toml"  # the profile that a prediction was made with
        self.plan = root / "plan"  # program, size table, layers and resolved choices
        self.trace = root / "trace.parquet"
        self.ops = root / "ops.parquet"
        self.traffic = root / "traffic.parquet"
        self.batches = root / "batches.parquet"  # what each mini-batch held, and how long training waited for it
        self.memory = root / "memory.parquet"
        self.activity = root / "activity.parquet"  # what policies decided while the run trained
        self.losses = root / "losses.csv"  # of a run: loss and accuracies of each epoch, written while it trains
        self.tensorboard = root / "tensorboard"  # of a run with --log tensorboard: the same, as event files
        self.model = root / "model"  # the trained weights, and the layers that they belong to
        self.result = root / "result.json"
        self.testbed = root / "testbed.toml"  # of a run inside a testbed: its declaration
        self.perfetto = root / "trace.perfetto.json"  # for ui.perfetto.dev

    def check_outside_testbeds(self) -> None:
        """Raise :class:`ConfigError` for a run that was trained inside a testbed, where its ``--resume`` belongs."""
        if self.testbed.is_file():
            raise ConfigError(
                f"--resume: got {self.root}, which was trained inside a testbed ({self.testbed.name}). Its result has "
                f"one median time of all epochs, so go on inside: {self.resumes_in_testbed()} (to more epochs than "
                "before: first simgnn run EXPERIMENT --epochs N --resume --prepare --out DIR)"
            )

    def resumes_in_testbed(self) -> str:
        """Return the command that resumes a run inside the testbed that it was trained in."""
        return f"simgnn testbed run {self.testbed} {self.root} --resume"

    @property
    def recorded(self) -> list[Path]:
        """Files that a replay of a finished run reads. The run seals them (:mod:`simgnn.seal`)."""
        return [self.experiment, self.result, self.activity, *sorted(self.plan.glob("*"))]


def write_table(table: pa.Table, path: Path) -> None:
    """Write a Parquet file atomically: under a temporary name, then renamed."""
    temporary = path.with_name(f"{path.name}.partial-{os.getpid()}")
    try:
        pq.write_table(table, temporary, compression="zstd")
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_table(path: Path, schema: pa.Schema | None = None) -> pa.Table:
    """Read a Parquet file, with ``schema`` only its columns, of its types. Raises :class:`ConfigError` when the file is
    missing or broken, lacks a column, or has empty cells or numbers that are not finite in one."""
    remedy = "is this the directory of a finished run? Simulate or run again"
    with outside_data(path, "Parquet file", remedy=remedy, error=ConfigError):
        with pq.ParquetFile(path) as file:
            groups = (file.metadata.row_group(number) for number in range(file.metadata.num_row_groups))
            held = sum(group.total_byte_size for group in groups)
            check_memory(2.0 * held, f"{path}: reading it", "use a machine with more memory", ConfigError)
            table = file.read()
        table.validate(full=True)
        if schema is None:
            return table
        lacking = [name for name in schema.names if table.column_names.count(name) != 1]
        if lacking:
            raise ConfigError(
                f"{path}: expected one column {', '.join(lacking)}; got {', '.join(table.column_names) or 'none'}: "
                f"another version of simgnn wrote it, or it is damaged; {remedy}"
            )
        table = table.select(schema.names).cast(schema)
        for name, column in zip(schema.names, table.columns, strict=True):
            finite = not pa.types.is_floating(column.type) or pc.all(pc.is_finite(column)).as_py() is not False
            if column.null_count or not finite:
                raise ConfigError(f"{path}: column '{name}' has cells that are empty or not finite; {remedy}")
        return table


def ops_table(program: Program) -> pa.Table:
    """Build the table ``ops.parquet`` of a program."""
    rows = [
        (op_id, template, op.name, op.kind.value, op.stream, op.layer, op.phase, op.category)
        for op_id, (template, op) in enumerate(program.ops)
    ]
    return pa.Table.from_pylist([dict(zip(OPS_SCHEMA.names, row, strict=True)) for row in rows], schema=OPS_SCHEMA)
