"""Node-property data sets of the Open Graph Benchmark, in the layout of the ogb package (Hu et al., 2020)."""

import gzip
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import csv

from simgnn.errors import GraphError
from simgnn.graph.build import assemble_edges
from simgnn.graph.complete import Found, complete_graph
from simgnn.graph.graph import Graph
from simgnn.graph.readers.npz import load_arrays
from simgnn.graph.readers.text_table import LONGEST_LINE
from simgnn.graph.typed_graph import ONE_TYPE, Relation, TypeChoice, TypedGraph
from simgnn.graph.weights import TAKEN, WeightChoice
from simgnn.memory import check_memory
from simgnn.outside import outside_data
from simgnn.progress import SILENT, Progress

OFFICIAL_SPLITS = {
    "ogbn-arxiv": "time",
    "ogbn-mag": "time",
    "ogbn-papers100M": "time",
    "ogbn-products": "sales_ranking",
    "ogbn-proteins": "species",
}
RELATIONS = "relations"
"""Folder of a data set with several types of vertices."""
BLOCK_BYTES = 1 << 23
"""Bytes of unpacked text that are read at once."""
PARTS = {"train_mask": "train", "validation_mask": "valid", "test_mask": "test"}


def read_ogb(
    name: str,
    roots: Sequence[Path],
    *,
    symmetrise: bool = True,
    weights: WeightChoice = TAKEN,
    types: TypeChoice = ONE_TYPE,
    progress: Progress = SILENT,
) -> Graph:
    """Read the data set ``name`` ("ogbn-arxiv") from ``root/ogbn_arxiv``, the first of ``roots`` that has it.

    Text form: ``raw/edge.csv.gz`` (source,target), ``raw/num-node-list.csv.gz``, optional ``raw/node-feat.csv.gz``,
    ``raw/node-label.csv.gz``, ``raw/edge-feat.csv.gz``. Binary form (papers100M): ``raw/data.npz`` with ``edge_index``,
    ``num_nodes_list``, ``node_feat``, ``edge_feat``, and ``raw/node-label.npz``. Edge features of one column are
    weights; of several columns they are left out and noted. Split: ``split/<scheme>/{train,valid,test}.csv.gz`` of
    vertex ids. Several types (ogbn-mag): see :func:`_typed`. Labels that are missing (NaN) become -1; several label
    columns make a multi-label graph. Raises :class:`GraphError`.
    """
    folder = _folder(name, roots)
    with outside_data(folder, "data set of OGB", remedy="fetch it again", folder=True):
        if (folder / "raw" / RELATIONS).is_dir():
            typed = _typed(name, folder, weights, progress)
            with progress.waiting(f"sorting edges of {name}"):
                return typed.chosen(types, symmetrise)
        types.check_one_type(str(folder))
        return _read(name, folder, symmetrise, weights, progress)


def _typed(name: str, folder: Path, weights: WeightChoice, progress: Progress) -> TypedGraph:
    """Read a data set with several types: ``raw/num-node-dict.csv.gz`` (a header of types, then their sizes),
    ``raw/relations/SOURCE___NAME___TARGET/edge.csv.gz``, and by type ``raw/node-feat/TYPE/node-feat.csv.gz``,
    ``raw/node-label/TYPE/node-label.csv.gz`` and ``split/SCHEME/TYPE/{train,valid,test}.csv.gz``."""
    raw = folder / "raw"
    sizes = raw / "num-node-dict.csv.gz"
    with outside_data(sizes, "table of numbers", remedy="fetch it again"), gzip.open(sizes, "rt") as stream:
        kinds = stream.readline(LONGEST_LINE).strip().split(",")
        counts = dict(zip(kinds, map(int, stream.readline(LONGEST_LINE).strip().split(",")), strict=True))
    relations, notes, fields = {}, [], {}
    for path in sorted((raw / RELATIONS).iterdir()):
        parts = path.name.split("___")
        if len(parts) != 3 or parts[0] not in counts or parts[2] not in counts:
            raise GraphError(f"{path}: expected a relation SOURCE___NAME___TARGET between types of {', '.join(counts)}")
        pairs = _pairs(path / "edge.csv.gz", progress)
        given = _optional(path / "edge-feat.csv.gz", np.float64, progress) if weights.used else None
        values, more = weights.single_column(given, "edge features")
        relations[parts[0], parts[1], parts[2]] = Relation(pairs[0], pairs[1], values)
        notes += more
    for kind, vertices in counts.items():
        features = _optional(raw / "node-feat" / kind / "node-feat.csv.gz", np.float32, progress)
        labels = _optional(raw / "node-label" / kind / "node-label.csv.gz", np.float64, progress)
        masks = {} if labels is None else _split(name, folder, vertices, kind)
        fields[kind] = {"features": features, "labels": labels, **masks}
    return TypedGraph(name, str(folder), counts, relations, fields, tuple(notes))


def _read(name: str, folder: Path, symmetrise: bool, weights: WeightChoice, progress: Progress) -> Graph:
    raw = folder / "raw"
    labels: Any
    if (raw / "data.npz").is_file():
        arrays = load_arrays(raw / "data.npz", progress)
        for key in ("edge_index", "num_nodes_list"):
            if key not in arrays:
                raise GraphError(f"{raw / 'data.npz'}: no array '{key}'; got {', '.join(sorted(arrays))}")
        pairs, features, of_edges = arrays["edge_index"], arrays.get("node_feat"), arrays.get("edge_feat")
        if pairs.ndim != 2 or pairs.shape[0] != 2:
            raise GraphError(f"{raw / 'data.npz'}: edge_index must have shape [2, edges]; got {list(pairs.shape)}")
        counts = np.ravel(arrays["num_nodes_list"])
        label_file = raw / "node-label.npz"
        held = load_arrays(label_file, progress) if label_file.is_file() else {}
        labels = held.get("node_label")
        if held and labels is None:
            raise GraphError(f"{label_file}: no array 'node_label'; got {', '.join(sorted(held))}")
    else:
        pairs = _pairs(raw / "edge.csv.gz", progress)
        counts = _table(raw / "num-node-list.csv.gz", np.int64)[:, 0]
        features = _optional(raw / "node-feat.csv.gz", np.float32, progress)
        labels = _optional(raw / "node-label.csv.gz", np.float64, progress)
        of_edges = _optional(raw / "edge-feat.csv.gz", np.float64, progress) if weights.used else None
    if len(counts) != 1:
        raise GraphError(f"{raw}: expected one graph; got {len(counts)}: node-property data sets have one")
    vertices = int(counts[0])
    values, notes = weights.single_column(of_edges, "edge features")
    with progress.waiting(f"sorting edges of {name}"):
        edges = assemble_edges(pairs[0], pairs[1], vertices, symmetrise, weights=values, key=str(raw))
    masks: dict[str, Any] = {} if labels is None else _split(name, folder, vertices)
    return complete_graph(Found(name, str(folder), edges, features=features, labels=labels, notes=notes, **masks))


def _pairs(path: Path, progress: Progress) -> NDArray[Any]:
    pairs = _table(path, np.int64, progress).T
    if len(pairs) != 2 and pairs.size:
        raise GraphError(f"{path}: expected two columns; got {len(pairs)}")
    return pairs if len(pairs) == 2 else np.empty((2, 0), np.int64)


def _folder(name: str, roots: Sequence[Path]) -> Path:
    stem = name.replace("-", "_")
    tried = [root / variant for root in roots for variant in (stem, f"{stem}_pyg", f"{stem}_dgl")]
    for folder in tried:
        if (folder / "raw").is_dir():
            return folder
    places = ", ".join(str(path.resolve()) for path in tried)
    raise GraphError(
        f"graph.source: no OGB data set '{name}'; looked for a folder 'raw' in {places}: fetch it with the ogb package "
        "and state its folder as graph.root"
    )


def _split(name: str, folder: Path, vertices: int, kind: str = "") -> dict[str, NDArray[np.bool_]]:
    top = folder / "split"
    schemes = sorted(path.name for path in top.iterdir() if path.is_dir()) if top.is_dir() else []
    if not schemes:
        return {}
    scheme = schemes[0] if len(schemes) == 1 else OFFICIAL_SPLITS.get(name)
    if scheme not in schemes:
        raise GraphError(f"{top}: several splits ({', '.join(schemes)}) and none is the official one: keep one of them")
    if not (top / scheme / kind).is_dir():
        return {}
    masks = {}
    for field, part in PARTS.items():
        path = top / scheme / kind / f"{part}.csv.gz"
        ids = _table(path, np.int64)
        ids = ids[:, 0] if ids.size else np.empty(0, np.int64)
        if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= vertices):
            raise GraphError(
                f"{path}: vertex ids must lie in 0..{vertices - 1}; got {int(ids.min())}..{int(ids.max())}"
            )
        masks[field] = np.zeros(vertices, np.bool_)
        masks[field][ids] = True
    return masks


def _optional(path: Path, dtype: Any, progress: Progress) -> NDArray[Any] | None:
    return _table(path, dtype, progress) if path.is_file() else None


def _table(path: Path, dtype: Any, progress: Progress = SILENT) -> NDArray[Any]:
    if not path.is_file():
        raise GraphError(f"{path} is missing; an OGB folder has it: fetch the data set again")
    with outside_data(path, "table of numbers", remedy="is it cut off? fetch it again"), ExitStack() as stack:
        with gzip.open(path) as stream:
            width = stream.readline(LONGEST_LINE).count(b",") + 1
            if stream.tell() == 0:
                return np.empty((0, 1), dtype)
        # the types are stated, as a first block of "0" would make a column of features integers
        names = [str(k) for k in range(width)]
        kinds = dict.fromkeys(names, pa.from_numpy_dtype(np.dtype(dtype)))
        packed = stack.enter_context(path.open("rb", buffering=0))
        reading = progress.counting(f"reading {path.name}", path.stat().st_size, share=True, patient=True)
        counter = stack.enter_context(reading)
        reader = csv.open_csv(
            pa.CompressedInputStream(pa.PythonFile(packed, mode="r"), "gzip"),
            read_options=csv.ReadOptions(column_names=names, block_size=BLOCK_BYTES),
            convert_options=csv.ConvertOptions(column_types=kinds, null_values=["nan", "NaN", ""]),
        )
        batches, held = [], 0
        for batch in reader:
            held += batch.nbytes
            check_memory(held, f"{path}: reading it", "use a machine with more memory")
            batches.append(batch)
            counter.at(packed.tell())
        table = pa.Table.from_batches(batches, reader.schema)
    out = np.empty((table.num_rows, width), dtype)
    for k, column in enumerate(table.columns):
        if column.null_count and np.dtype(dtype).kind == "i":
            raise GraphError(f"{path}: column {k} has empty values, expected whole numbers")
        out[:, k] = column.to_numpy()
    return out
