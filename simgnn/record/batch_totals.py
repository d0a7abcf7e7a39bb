"""What tables of mini-batches amount to: sums over a run, and where two of them differ."""

from typing import Any

import pyarrow as pa

from simgnn.errors import ConfigError
from simgnn.record.batches import BATCHES_SCHEMA
from simgnn.record.result import InputRows

KEYS = ("rank", "epoch", "step")
HELD = tuple(name for name in BATCHES_SCHEMA.names if name not in (*KEYS, "staged", "wait_s", "loss_sum"))
"""Columns that a prediction and a run share to the last row: what a batch held, and whence."""


def batches_that_differ(first: pa.Table, second: pa.Table) -> int:
    """How many batches held other rows in one table than in the other, or took them from other places; one that a table
    lacks, and a count that was not told, differ from any. Raises :class:`ConfigError` for tables of other columns."""
    one, two = (_held(table) for table in (first, second))
    both = one.keys() & two.keys()
    return len(one.keys() ^ two.keys()) + sum(None in one[key] or one[key] != two[key] for key in both)


def _held(table: pa.Table) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """What each batch held, by rank, epoch and step."""
    if table.schema.names != BATCHES_SCHEMA.names:
        raise ConfigError(
            f"batches.parquet: got the columns {', '.join(table.schema.names)}, expected "
            f"{', '.join(BATCHES_SCHEMA.names)}: it was written by another version; simulate or run again"
        )
    keys, counts = (zip(*(table[name].to_pylist() for name in names), strict=True) for names in (KEYS, HELD))
    return dict(zip(keys, counts, strict=True))


def input_rows(table: pa.Table) -> InputRows | None:
    """Sums over all batches of a table (:data:`BATCHES_SCHEMA`); None where not all were told."""
    names = {"local": "rows_local", "hit": "rows_hit", "pulled": "rows_pulled", "cached": "rows_cached"}
    if any(table[name].null_count for name in names.values()):
        return None
    return InputRows(**{field: int(table[name].to_numpy().sum()) for field, name in names.items()})
