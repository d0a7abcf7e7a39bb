"""``stats:`` files: statistics of a partitioned graph, with which runs are simulated without the graph.

A TOML file. Table ``[graph]`` has the fields of :class:`~simgnn.graph.graph.GraphFacts`; ``[partition]`` is either

- explicit: ``rows`` and ``edges``, one number for each rank, and ``halo``, a list of [owner, rank, rows]; or
  ``arrays``, the name of an ``.npz`` file beside it that holds these arrays under the names of :func:`stats_to_parts`;
- or summary numbers: ``ranks`` with ``replication_factor`` or ``halo_rows`` (rows that a rank receives, one number for
  all ranks or one for each). They are spread evenly, and ``notes`` record that; ``vertex_imbalance`` and
  ``edge_imbalance`` (largest over mean) put more load on rank 0.

Both forms accept ``hosts`` (host of each rank, default one host), ``[partition.tables]`` (further named arrays),
``[partition.chunks]`` (rows that chunks move, as totals) and ``[partition.made_by]``: kind and options of the
partitioner. A file that was counted from a graph has
``[partition.counted_from]``: digests of its sources, and digests of its own content, which are checked on reading.
Several partitions of a graph are a list of such tables, ``[[partition]]``. docs/statistics.md describes every key.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgnn.errors import ConfigError
from simgnn.graph.graph import MASKS, GraphFacts
from simgnn.npzfile import read_npz
from simgnn.partition.chunks import tables as chunk_tables
from simgnn.partition.chunks.spread import SPREAD, ChunkTotals
from simgnn.partition.folder import write_npz
from simgnn.partition.partition import digest_of
from simgnn.partition.statistics.partition_stats import (
    BASE,
    TABLE,
    Origin,
    PartitionStats,
    dropped_edges,
    stats_from_parts,
    stats_to_parts,
)
from simgnn.partition.statistics.schema import PartitionSection, check_base, check_tables, raise_faults, read_schema
from simgnn.program.sizes import IntArray, Route
from simgnn.seal import json_digest
from simgnn.tomlfile import load_toml, without_none, write_toml

INLINE_NUMBERS = 4096


def load_stats(path: str | Path) -> PartitionStats:
    """Read a ``stats:`` file that holds one partition. Raises :class:`ConfigError` with the key of each fault."""
    found = load_partitions(path)
    if len(found) > 1:
        raise ConfigError(f"{path}: partition: got {len(found)} partitions, expected one")
    return found[0]


def load_partitions(path: str | Path) -> tuple[PartitionStats, ...]:
    """Read all partitions of a ``stats:`` file. Raises :class:`ConfigError` with the key of each fault."""
    path = Path(path)
    table = load_toml(path)
    graph, sections = read_schema(path, table)
    if not isinstance(table["partition"], list):
        return (_read(path, graph.facts(), sections[0], table["partition"], str(path)),)
    told = enumerate(zip(sections, table["partition"], strict=True), start=1)
    return tuple(
        _read(path, graph.facts(), section, raw, f"{path} (partition {place} of {len(sections)})")
        for place, (section, raw) in told
    )


def _read(
    path: Path, facts: GraphFacts, section: PartitionSection, raw: Mapping[str, Any], label: str
) -> PartitionStats:
    """Read a partition. ``raw``: its table as written; ``label``: what messages call it."""
    notes = list(section.notes)
    if section.arrays is not None:
        arrays = _companion(path, section.arrays)
    elif section.halo is not None:
        arrays = _explicit(section)
    else:
        arrays, spread = spread_arrays(section, facts, label)
        notes += spread
    for name, values in section.tables.items():
        arrays[TABLE + name] = _inline_table(path, name, values)
    if section.hosts is not None:
        arrays["hosts"] = np.array(section.hosts, dtype=np.int64)
    ranks = len(arrays["rows"])
    if section.ranks not in (None, ranks):
        raise ConfigError(f"{label}: partition.ranks: got {section.ranks}, expected {ranks}, the length of rows")
    arrays.setdefault("hosts", np.zeros(ranks, dtype=np.int64))
    digest, counted = _digest(section.kind, facts, arrays), section.counted_from
    if counted is not None:
        labels = _labels(raw.get("notes", []), raw.get("made_by"))
        for key, kept, found, what in (
            ("numbers", counted.numbers, digest, "the numbers of this file"),
            ("labels", counted.labels, labels, "the notes or made_by"),
        ):
            if kept is not None and kept != found:
                raise ConfigError(
                    f"{label}: partition.counted_from.{key}: {what} changed after they were counted; make the file "
                    "anew with simgnn partition --stats, or, if you meant to change it, remove "
                    "[partition.counted_from]: it then counts as written by hand"
                )
    tables = {name.removeprefix(TABLE): array for name, array in arrays.items() if name.startswith(TABLE)}
    check_base({name: arrays[name] for name in BASE}, facts, label, dropped_edges(tables))
    described = {"facts": asdict(facts), "kind": section.kind, "notes": notes, "digest": digest}
    stats = check_tables(stats_from_parts(described, arrays), label)
    if section.chunks is not None:
        if counted is not None:
            raise ConfigError(
                f"{label}: partition.chunks: got totals in a file that was counted from a graph, expected its tables: "
                "make the file anew with partition.kind = 'metis-chunks' (simgnn partition --stats), or remove "
                "[partition.counted_from]"
            )
        stats = with_chunks(stats, section.chunks, label)
    origin = None if counted is None else Origin(counted.graph, counted.cut, counted.partition)
    return replace(stats, made_by=section.made_by, origin=origin)


def with_chunks(stats: PartitionStats, totals: ChunkTotals, label: str) -> PartitionStats:
    """Add the tables of chunks that follow from ``totals``, and a note. Raises :class:`ConfigError` for totals that
    contradict the partition, or tables that are there already."""
    if chunk_tables.batches_in(stats.tables) is not None:
        raise ConfigError(f"{label}: partition.chunks: got totals beside tables of chunks; keep one of them")
    raise_faults(
        label,
        ((f"chunks.{key}", problem) for key, problem in totals.faults(stats.facts.vertices, stats.rows, stats.halo)),
    )
    found = totals.tables(stats.facts.vertices, stats.rows, stats.edges, stats.halo)
    note = SPREAD.format(chunks=totals.chunks, read=f"{int(found[chunk_tables.REMOTE][:, 3].sum()):,}")
    digest = digest_of([stats.digest, json_digest(totals.model_dump())], [])
    return check_tables(
        replace(stats, tables={**stats.tables, **found}, notes=(*stats.notes, note), digest=digest), label
    )


def save_stats(stats: PartitionStats, path: str | Path) -> None:
    """Write statistics to a ``stats:`` file: few numbers inline, many in an ``.npz`` file beside it."""
    save_partitions([stats], path)


def save_partitions(partitions: Sequence[PartitionStats], path: str | Path) -> None:
    """Write partitions of one graph to a ``stats:`` file: few numbers inline, many in an ``.npz`` file for each
    partition, beside it."""
    path = Path(path)
    places = [""] if len(partitions) == 1 else [f"-{place}" for place in range(1, len(partitions) + 1)]
    names = [f"{path.stem}{place}.npz" for place in places]
    sections = [_section(stats, path.with_name(name)) for stats, name in zip(partitions, names, strict=True)]
    table = sections[0] if len(sections) == 1 else sections
    write_toml(path, {"format": 1, "graph": asdict(partitions[0].facts), "partition": table})


def _section(stats: PartitionStats, companion: Path) -> dict[str, Any]:
    """Return a partition as a table; many numbers are written to the file ``companion``."""
    described, arrays = stats_to_parts(stats)
    partition: dict[str, Any] = {"kind": stats.kind, "notes": described["notes"]}
    tables = {name.removeprefix(TABLE): array for name, array in arrays.items() if name.startswith(TABLE)}
    inline = sum(array.size for array in arrays.values()) <= INLINE_NUMBERS and all(t.size for t in tables.values())
    if inline:
        halo = np.stack([arrays[name] for name in BASE[3:]], axis=1)
        partition |= {name: arrays[name].tolist() for name in BASE[:3]}
        partition |= {"halo": halo.tolist(), "tables": {name: table.tolist() for name, table in tables.items()}}
    else:
        write_npz(companion, arrays)
        partition["arrays"] = companion.name
    if stats.made_by is not None:
        partition["made_by"] = dict(stats.made_by)
    if stats.origin is not None:
        numbers = _digest(stats.kind, stats.facts, arrays)
        labels = _labels(described["notes"], partition.get("made_by"))
        partition["counted_from"] = {**asdict(stats.origin), "numbers": numbers, "labels": labels}
    return partition


def _labels(notes: Sequence[str], made_by: Any) -> str:
    """Compute the digest of a partition's words, as a TOML file holds them."""
    return json_digest(without_none({"notes": list(notes), "made_by": made_by}))


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
            f"{path}: partition.arrays: '{name}' cannot be read as .npz ({error}). It belongs beside this file: "
            "copy both, or make both anew with simgnn partition --stats"
        ) from error
    missing = [key for key in BASE if key not in arrays and key != "hosts"]
    unknown = [key for key in arrays if key not in BASE and not key.startswith(TABLE)]
    if missing or unknown:
        raise ConfigError(
            f"{path}: partition.arrays: '{name}' lacks {', '.join(missing) or 'nothing'}; unknown arrays: "
            f"{', '.join(unknown) or 'none'}; expected the arrays {', '.join(BASE)} and {TABLE}NAME"
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
    """Compute the digest of all numbers, independent of their storage width and of the graph's name."""
    numbers = {**asdict(facts), "name": ""}
    if not facts.weighted:
        del numbers["weighted"]  # files made before there were weights keep their digest
    stored = [arrays[name] for name in sorted(arrays)]
    plain = [array.astype(PLAIN.get(array.dtype.kind, array.dtype), copy=False) for array in stored]
    return digest_of([kind, repr(sorted(numbers.items())), *sorted(arrays)], plain)


def spread_arrays(
    section: PartitionSection, facts: GraphFacts, path: str
) -> tuple[dict[str, NDArray[Any]], tuple[str, ...]]:
    """Spread the totals of ``section`` and ``facts`` over ranks, and note which numbers are spread evenly. Rank 0 gets
    the stated imbalance times the mean of rows and edges, and the others share the rest; masks are in proportion to
    rows. Halo rows of a rank come from all other ranks equally."""
    assert section.ranks is not None
    ranks = section.ranks
    rows = _loaded(facts.vertices, ranks, section.vertex_imbalance, f"{path}: partition.vertex_imbalance")
    edges = _loaded(facts.edges, ranks, section.edge_imbalance, f"{path}: partition.edge_imbalance")
    received = _received(section, facts.vertices, path)
    matrix = np.zeros((ranks, ranks), dtype=np.int64)
    for rank in range(ranks):
        if ranks > 1:
            # start each rank's remainder behind itself, so that no owner serves more than others
            peers = (rank + 1 + np.arange(ranks - 1)) % ranks
            matrix[peers, rank] = even(int(received[rank]), ranks - 1)
    halo = Route.from_matrix(matrix)
    arrays: dict[str, NDArray[Any]] = {"rows": rows, "edges": edges}
    arrays |= {"halo/source": halo.source, "halo/target": halo.target, "halo/rows": halo.rows}
    for name in MASKS:
        arrays[f"{TABLE}{name}_rows"] = _in_proportion(getattr(facts, f"{name}_vertices"), rows)
    # as if neighbours were chosen at random: a stated halo does not give the cut by owner
    arrays[f"{TABLE}block_edges"] = np.stack([_in_proportion(int(count), rows) for count in edges])
    if facts.feature_nonzeros is not None:
        arrays[f"{TABLE}feature_nonzeros"] = _in_proportion(facts.feature_nonzeros, rows)
        per_row = facts.feature_nonzeros / facts.vertices
        arrays[f"{TABLE}halo_feature_nonzeros"] = np.round(matrix * per_row).astype(np.int64)
    return arrays, (
        "rows, edges, halo rows and masks are spread evenly from summary numbers, not counted from a graph",
    )


def even(total: int, parts: int) -> IntArray:
    """Divide ``total`` into ``parts`` integer shares that differ by one at most, int64 [parts]."""
    size, larger = divmod(total, parts)
    return np.array([size + (part < larger) for part in range(parts)], dtype=np.int64)


def _loaded(total: int, ranks: int, imbalance: float, key: str) -> IntArray:
    if ranks == 1:
        return np.array([total], dtype=np.int64)
    first = round(imbalance * total / ranks)
    if first > total:
        raise ConfigError(f"{key}: got {imbalance}, expected at most {ranks}, the number of ranks")
    first = max(first, -(-total // ranks))
    return np.concatenate((np.array([first], dtype=np.int64), even(total - first, ranks - 1)))


def _received(section: PartitionSection, vertices: int, path: str) -> IntArray:
    assert section.ranks is not None
    if section.replication_factor is not None:
        if section.replication_factor > section.ranks:
            raise ConfigError(
                f"{path}: partition.replication_factor: got {section.replication_factor}, expected at most "
                f"{section.ranks}, the number of ranks"
            )
        return even(round((section.replication_factor - 1.0) * vertices), section.ranks)
    stated = section.halo_rows if section.halo_rows is not None else 0
    received = [stated] * section.ranks if isinstance(stated, int) else list(stated)
    if len(received) != section.ranks:
        raise ConfigError(
            f"{path}: partition.halo_rows: got {len(received)} numbers, expected 1 or {section.ranks}, one per rank"
        )
    return np.array(received, dtype=np.int64)


def _in_proportion(total: int, weights: IntArray) -> IntArray:
    # whole shares whose running sums are the rounded running sums, so that they add up
    ends = np.cumsum(weights)
    marks = np.array([total * int(end) // max(1, int(ends[-1])) for end in ends], dtype=np.int64)
    return np.diff(marks, prepend=0)
