"""``stats:`` files: what planning needs of a partitioned graph that nobody here can load.

A TOML file. Table ``[graph]`` has the fields of :class:`~simgnn.graph.graph.GraphFacts`; ``[partition]`` is either

- explicit: ``rows`` and ``edges``, one number a rank, and ``halo``, a list of [owner, rank, rows]; or ``arrays``, a
  companion ``.npz`` that holds them under the names of :mod:`simgnn.partition.statscode`;
- or summary numbers: ``ranks`` with ``replication_factor`` or ``halo_rows`` (rows that one rank receives, one number
  or one a rank), spread evenly and so marked in ``notes``; ``vertex_imbalance`` and ``edge_imbalance`` (largest over
  mean) load rank 0 more.

Both take ``hosts`` (host of each rank, default one host), ``[partition.tables]`` (further named arrays) and
``[partition.made_by]``: kind and options of the partition policy that made it, as in an experiment's ``[partition]``.
``[partition.counted_from]`` names by digest what it was counted from; it holds while the file's numbers do.
"""

import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgnn.errors import ConfigError
from simgnn.graph.graph import GraphFacts
from simgnn.npzfile import read_npz
from simgnn.partition.partition import digest_of
from simgnn.partition.stats import PartitionStats
from simgnn.partition.statscheck import check_base
from simgnn.partition.statscode import BASE, TABLE, stats_from_parts, stats_to_parts
from simgnn.partition.statsschema import PartitionSection, read_schema
from simgnn.partition.statsspread import spread_arrays
from simgnn.partition.statstables import check_tables
from simgnn.tomlfile import load_toml, write_toml

INLINE_NUMBERS = 4096


def load_stats(path: str | Path) -> PartitionStats:
    """Read a ``stats:`` file. Raises :class:`ConfigError` with the key of each fault."""
    path = Path(path)
    file = read_schema(path, load_toml(path))
    facts = file.graph.facts()
    section = file.partition
    notes = list(section.notes)
    if section.arrays is not None:
        arrays = _companion(path, section.arrays)
    elif section.halo is not None:
        arrays = _explicit(section)
    else:
        arrays, told = spread_arrays(section, facts, str(path))
        notes += told
    for name, values in section.tables.items():
        arrays[TABLE + name] = _inline_table(path, name, values)
    if section.hosts is not None:
        arrays["hosts"] = np.array(section.hosts, dtype=np.int64)
    ranks, counted = len(arrays["rows"]), section.counted_from
    if section.ranks not in (None, ranks):
        raise ConfigError(f"{path}: partition.ranks: got {section.ranks}, expected {ranks}, as many as numbers in rows")
    if counted is not None and "hosts" not in arrays:
        raise ConfigError(f"{path}: partition.hosts: missing, though counted_from says that the file was counted")
    arrays.setdefault("hosts", np.zeros(ranks, dtype=np.int64))
    check_base({name: arrays[name] for name in BASE}, facts, str(path))
    described = {"facts": asdict(facts), "kind": section.kind, "notes": notes, "digest": ""}
    explicit = section.arrays is not None or section.halo is not None
    stats = stats_from_parts(described, arrays)
    stats = check_tables(stats, str(path), spread=not explicit, counted=counted is not None)
    digest = _digest(section.kind, facts, arrays)
    origin = None if counted is None or counted.numbers != digest else counted.origin()
    return replace(stats, digest=digest, made_by=section.made_by, origin=origin)


def save_stats(stats: PartitionStats, path: str | Path) -> None:
    """Write a file that :func:`load_stats` reads back: inline when short, else with a companion ``.npz``."""
    path = Path(path)
    described, arrays = stats_to_parts(stats)
    partition: dict[str, Any] = {"kind": stats.kind, "notes": described["notes"]}
    tables = {name.removeprefix(TABLE): array for name, array in arrays.items() if name.startswith(TABLE)}
    inline = sum(array.size for array in arrays.values()) <= INLINE_NUMBERS and all(t.size for t in tables.values())
    if inline:
        halo = np.stack([arrays[name] for name in BASE[3:]], axis=1)
        partition |= {name: arrays[name].tolist() for name in BASE[:3]}
        partition |= {"halo": halo.tolist(), "tables": {name: table.tolist() for name, table in tables.items()}}
    else:
        companion = path.with_suffix(".npz")
        temporary = companion.with_name(f".{companion.stem}.{os.getpid()}.npz")
        try:
            contents: dict[str, Any] = dict(arrays)
            np.savez_compressed(temporary, **contents)
            os.replace(temporary, companion)
        finally:
            temporary.unlink(missing_ok=True)
        partition["arrays"] = companion.name
    if stats.made_by is not None:
        partition["made_by"] = dict(stats.made_by)
    if stats.origin is not None:
        numbers = _digest(stats.kind, stats.facts, arrays)
        partition["counted_from"] = {**asdict(stats.origin), "numbers": numbers}
    write_toml(path, {"format": 1, "graph": described["facts"], "partition": partition})


def _explicit(section: PartitionSection) -> dict[str, NDArray[Any]]:
    halo = np.array(section.halo or [], dtype=np.int64).reshape(-1, 3)
    halo = halo[np.lexsort((halo[:, 1], halo[:, 0]))]
    arrays: dict[str, NDArray[Any]] = {"rows": np.array(section.rows, dtype=np.int64)}
    arrays["edges"] = np.array(section.edges, dtype=np.int64)
    return arrays | dict(zip(BASE[3:], (halo[:, 0], halo[:, 1], halo[:, 2]), strict=True))


def _companion(path: Path, name: str) -> dict[str, NDArray[Any]]:
    file = path.parent / name
    try:
        arrays = read_npz(file)
    except ValueError as error:
        raise ConfigError(
            f"{path}: partition.arrays: '{name}' cannot be read as .npz ({error}); it lies beside the file: copy both, "
            "or make both anew with simgnn partition --stats"
        ) from error
    missing = [key for key in BASE if key not in arrays and key != "hosts"]
    unknown = [key for key in arrays if key not in BASE and not key.startswith(TABLE)]
    if missing or unknown:
        raise ConfigError(
            f"{path}: partition.arrays: '{name}' lacks {', '.join(missing) or 'nothing'} and has the unknown "
            f"{', '.join(unknown) or 'nothing'}; expected {', '.join(BASE)} and {TABLE}NAME"
        )
    for key in BASE:
        if key in arrays and (arrays[key].ndim != 1 or arrays[key].dtype.kind not in "iu"):
            raise ConfigError(f"{path}: partition.arrays: '{key}' in '{name}' must be a list of whole numbers")
    return {key: array.astype(np.int64) if key in BASE else array for key, array in arrays.items()}


def _inline_table(path: Path, name: str, values: Any) -> NDArray[Any]:
    try:
        table = np.array(values)
    except ValueError:
        table = np.array("ragged")
    if table.dtype.kind not in "iufb":
        raise ConfigError(f"{path}: partition.tables.{name}: expected numbers, in lists of equal length")
    return table


PLAIN = {"i": np.int64, "u": np.int64, "f": np.float64}


def _digest(kind: str, facts: GraphFacts, arrays: dict[str, NDArray[Any]]) -> str:
    """Of all numbers, however wide they are stored; not of the graph's name: renaming a graph changes nothing."""
    numbers = {**asdict(facts), "name": ""}
    stored = [arrays[name] for name in sorted(arrays)]
    plain = [array.astype(PLAIN.get(array.dtype.kind, array.dtype), copy=False) for array in stored]
    return digest_of([kind, repr(sorted(numbers.items())), *sorted(arrays)], plain)
