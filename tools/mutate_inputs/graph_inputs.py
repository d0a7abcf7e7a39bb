"""Small valid graphs in every format of docs/graphs.md, and side files of features, labels, splits, ids and weights."""

import gzip
import io
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from pyarrow import parquet as pq
from scipy import sparse

from simgnn.graph.load import load_graph
from simgnn.graph.store import save_graph
from tools.mutate_inputs.inputs import GRAPH_OF_FILES, Input, in_fork, new_folder

V, E, F, C = 24, 60, 4, 3
"""Vertices, edges, features and classes."""
Array = NDArray[Any]
RNG = np.random.default_rng(7)
PAIRS: Array = RNG.integers(0, V, (E, 2))
WEIGHTS: Array = RNG.uniform(0.5, 2.0, E).round(2)
X: Array = RNG.normal(size=(V, F)).astype(np.float32).round(3)
Y: Array = np.arange(V) % C
PARTS = {"train": np.arange(0, 12), "val": np.arange(12, 18), "test": np.arange(18, 24)}
MASKS = {f"{part}_mask": np.isin(np.arange(V), ids) for part, ids in PARTS.items()}
ORDER: Array = RNG.permutation(V)
IDS: Array = RNG.permutation(V) + 100
BARE = "stand_in_features = 4\nclasses = 3\n"
"""Options of a graph without features and labels."""


def graph_inputs(root: Path) -> Iterator[Input]:
    """Make an input of every graph format."""
    rows, header = _lines(PAIRS, ","), "source,target\n"
    weighted = "source\ttarget\tweight\n" + "".join(
        f"{u}\t{v}\t{w}\n" for (u, v), w in zip(PAIRS, WEIGHTS, strict=True)
    )
    yield _of(root, "csv", "g.csv", {"g.csv": header + rows}, BARE)
    yield _of(root, "csv-names", "g.csv", {"g.csv": "".join(f"v{u},v{v}\n" for u, v in PAIRS)},
              BARE + "source_column = 1\ntarget_column = 2\n")  # fmt: skip
    yield _of(root, "tsv", "g.tsv", {"g.tsv": weighted}, BARE)
    yield _of(root, "csv-gz", "g.csv.gz", {"g.csv.gz": gzip.compress(rows.encode())}, BARE)
    table = pa.table({"src": PAIRS[:, 0], "dst": PAIRS[:, 1], "weight": WEIGHTS})
    yield _of(root, "parquet", "g.parquet", {"g.parquet": _parquet(table, {"vertices": str(V)})}, BARE)
    yield _of(root, "npy", "g.npy", {"g.npy": _saved(lambda file: np.save(file, PAIRS))}, BARE)
    with_weights = np.column_stack((PAIRS, WEIGHTS))
    yield _of(root, "npy-weights", "g.npy", {"g.npy": _saved(lambda file: np.save(file, with_weights))}, BARE)
    csr = sparse.csr_array((WEIGHTS, (PAIRS[:, 1], PAIRS[:, 0])), (V, V))
    arrays: dict[str, Any] = {"indptr": csr.indptr, "indices": csr.indices, "labels": Y, **MASKS}
    facts = '{"name": "g", "num_classes": 3, "symmetric": false}'
    dense: dict[str, Any] = {**arrays, "feat": X, "weights": csr.data}
    yield _of(root, "npz", "g.npz", {"g.npz": _saved(lambda file: np.savez(file, **dense)), "g.json": facts},
              share=2.0)  # fmt: skip
    held = sparse.csr_array(np.where(X > 0, X, 0))
    thin: dict[str, Any] = {**arrays, "feat_data": held.data, "feat_indices": held.indices, "feat_indptr": held.indptr,
            "feat_shape": np.array(held.shape)}  # fmt: skip
    yield _of(root, "npz-sparse", "g.npz", {"g.npz": _saved(lambda file: np.savez_compressed(file, **thin))}, share=2.0)
    entries = f"{V} {V} {E}\n" + "".join(f"{u + 1} {v + 1}\n" for u, v in PAIRS)
    pattern = "%%MatrixMarket matrix coordinate pattern general\n% made\n" + entries
    yield _of(root, "mtx", "g.mtx", {"g.mtx": pattern}, BARE)
    lower = sparse.coo_array(sparse.tril(csr + csr.T, -1))
    real = f"%%MatrixMarket matrix coordinate real symmetric\n{V} {V} {lower.nnz}\n" + "".join(
        f"{i + 1} {j + 1} {value:.3f}\n" for i, j, value in zip(*lower.coords, lower.data, strict=True)
    )
    yield _of(root, "mtx-gz", "g.mtx.gz", {"g.mtx.gz": gzip.compress(real.encode())}, BARE)
    yield from _framework_graphs(root)
    yield from _ogb(root)
    npz = root / "graph-npz" / "g.npz"
    folder = new_folder(root, "graph", "saved", {"e.toml": GRAPH_OF_FILES + 'source = "g"\n'})
    save_graph(load_graph(str(npz)), folder / "g")
    yield Input("graph", "saved", folder, ("simulate", "e.toml"), ("g/*",))


def _framework_graphs(root: Path) -> Iterator[Input]:
    pairs = torch.from_numpy(np.ascontiguousarray(PAIRS.T))
    masks = {name: torch.from_numpy(mask) for name, mask in MASKS.items()}
    plain = {"edge_index": pairs, "x": torch.from_numpy(X), "y": torch.from_numpy(Y), **masks}
    data = {**plain, "edge_attr": torch.from_numpy(WEIGHTS)}
    yield _of(root, "pt", "g.pt", {"g.pt": _saved(lambda file: torch.save(data, file))}, share=2.0)
    half = V // 2
    typed = {
        "author": {"num_nodes": half},
        "paper": {"x": torch.from_numpy(X), "y": torch.from_numpy(Y), **masks},
        ("author", "writes", "paper"): {"edge_index": torch.stack((pairs[0] % half, pairs[1]))},
        ("paper", "cites", "paper"): {"edge_index": pairs},
    }
    content = _saved(lambda file: torch.save(typed, file))
    yield _of(root, "pt-merged", "g.pt", {"g.pt": content}, "homogeneous = true\n")
    yield _of(root, "pt-relation", "g.pt", {"g.pt": content}, 'relation = "cites"\n')
    folder = new_folder(root, "graph", "dgl", {"e.toml": GRAPH_OF_FILES + 'source = "g.bin"\n'})

    def save_dgl() -> str:
        # slow to load; attempts must not inherit it, since the reader loads it in a process of its own
        import dgl

        graph = dgl.graph((pairs[0], pairs[1]), num_nodes=V)
        graph.ndata.update({"feat": plain["x"], "label": plain["y"], **masks})
        graph.edata["weight"] = torch.from_numpy(WEIGHTS)
        dgl.save_graphs(str(folder / "g.bin"), [graph])
        return ""

    in_fork(save_dgl)
    yield Input("graph", "dgl", folder, ("simulate", "e.toml"), ("g.bin",), share=0.5)


def _ogb(root: Path) -> Iterator[Input]:
    def packed(array: Array) -> bytes:
        return gzip.compress(_lines(array.reshape(len(array), -1), ",").encode())

    split = {f"{part.replace('val', 'valid')}.csv.gz": packed(ids) for part, ids in PARTS.items()}
    raw = {"edge.csv.gz": packed(PAIRS), "num-node-list.csv.gz": packed(np.array([V])), "node-feat.csv.gz": packed(X),
           "node-label.csv.gz": packed(Y), "edge-feat.csv.gz": packed(WEIGHTS)}  # fmt: skip
    top = "dataset/ogbn_arxiv"
    files = {**{f"{top}/raw/{name}": content for name, content in raw.items()},
             **{f"{top}/split/time/{name}": content for name, content in split.items()}}  # fmt: skip
    yield _of(root, "ogb", "ogb:ogbn-arxiv", files, 'root = "dataset"\n')
    top = "dataset/ogbn_papers100M"
    binary: dict[str, Any] = {"edge_index": PAIRS.T, "num_nodes_list": np.array([V]), "node_feat": X}
    files = {
        f"{top}/raw/data.npz": _saved(lambda file: np.savez(file, **binary)),
        f"{top}/raw/node-label.npz": _saved(lambda file: np.savez(file, node_label=Y.astype(float))),
        **{f"{top}/split/time/{name}": content for name, content in split.items()},
    }
    yield _of(root, "ogb-binary", "ogb:ogbn-papers100M", files, 'root = "dataset"\n')
    half, top = V // 2, "dataset/ogbn_mag"
    raw = {
        "num-node-dict.csv.gz": gzip.compress(f"author,paper\n{half},{V}\n".encode()),
        "relations/author___writes___paper/edge.csv.gz": packed(np.column_stack((PAIRS[:, 0] % half, PAIRS[:, 1]))),
        "relations/paper___cites___paper/edge.csv.gz": packed(PAIRS),
        "node-feat/paper/node-feat.csv.gz": packed(X),
        "node-label/paper/node-label.csv.gz": packed(Y),
    }
    files = {**{f"{top}/raw/{name}": content for name, content in raw.items()},
             **{f"{top}/split/time/paper/{name}": content for name, content in split.items()}}  # fmt: skip
    yield _of(root, "ogb-typed", "ogb:ogbn-mag", files, 'root = "dataset"\nhomogeneous = true\n')


def side_inputs(root: Path) -> Iterator[Input]:
    """Make inputs of an edge list with features, labels, splits, ids and weights in files of their own."""
    people = "id,age,posts,team,split\n" + "".join(
        f"v{k},{X[k, 0]},{k % 7},team {Y[k]},{('train', 'val', 'test')[k % 3]}\n" for k in ORDER
    )
    named = {"edges.csv": "source,target,weight\n" + "".join(
        f"v{u},v{v},{w}\n" for (u, v), w in zip(PAIRS, WEIGHTS, strict=True))}  # fmt: skip
    of_people = 'features = "people.csv"\nlabels = "people.csv"\nsplits = "people.csv"\nlabel_column = "team"\n'
    yield _of(root, "table", "edges.csv", {**named, "people.csv": people}, of_people, kind="side", share=2.0)
    plain: dict[str, Any] = {"edges.tsv": _lines(PAIRS, "\t")}
    x, y = _saved(lambda file: np.save(file, X)), _saved(lambda file: np.save(file, Y))
    parts: dict[str, str | bytes] = {
        "split/train.csv": _lines(PARTS["train"].reshape(-1, 1), ","),
        "split/val.npy": _saved(lambda file: np.save(file, PARTS["val"])),
        "split/test.npy": _saved(lambda file: np.save(file, MASKS["test_mask"])),
    }
    both = 'features = "x.npy"\nlabels = "y.npy"\n'
    yield _of(root, "arrays", "edges.tsv", {**plain, "x.npy": x, "y.npy": y, **parts}, f'{both}splits = "split"\n',
              kind="side", share=2.0)  # fmt: skip
    listed = 'splits = { train = "split/train.csv", validation = "split/val.npy", test = "split/test.npy" }\n'
    yield _of(root, "split-files", "edges.tsv", {**plain, "x.npy": x, "y.npy": y, **parts}, both + listed, kind="side",
              command=("run", "e.toml", "--prepare", "--out", "prepared"))  # fmt: skip
    vectors = pa.array(X.tolist(), pa.list_(pa.float32(), F))
    venues = pa.array([f"venue {value}" if value else None for value in Y])
    tables = {
        "cites.parquet": _parquet(
            pa.table({"citing": PAIRS[:, 0] + 100, "cited": PAIRS[:, 1] + 100, "weight": WEIGHTS})
        ),
        "papers.parquet": _parquet(pa.table({"paper": IDS, "vector": vectors, "venue": venues})),
    }
    columns = 'source_column = "citing"\ntarget_column = "cited"\nid_column = "paper"\nlabel_column = "venue"\n'
    of_papers = 'features = "papers.parquet"\nlabels = "papers.parquet"\n'
    yield _of(root, "parquet", "cites.parquet", tables, columns + of_papers, kind="side", share=2.0)
    several = "id,a,b\n" + "".join(f"{k},{k % 2},{k % 3 % 2}\n" for k in range(V))
    packed: dict[str, Any] = {"f.csv.gz": gzip.compress(_lines(X, ",").encode()), "l.csv": several,
              "s.txt": "split\n" + "".join(f"{('train', 'val', 'test')[k % 3]}\n" for k in range(V))}  # fmt: skip
    yield _of(root, "several-labels", "edges.tsv", {**plain, **packed},
              'features = "f.csv.gz"\nlabels = "l.csv"\nsplits = "s.txt"\n', kind="side",
              command=("run", "e.toml", "--prepare", "--out", "prepared"))  # fmt: skip


def _of(
    root: Path, name: str, source: str, files: Mapping[str, str | bytes], options: str = "", *, kind: str = "graph",
    share: float = 1.0, command: tuple[str, ...] = ("simulate", "e.toml"),
) -> Input:  # fmt: skip
    """Make an input of a graph's files and the experiment that names them."""
    text = f'{GRAPH_OF_FILES}source = "{source}"\n{options}'
    folder = new_folder(root, kind, name, {"e.toml": text, **files})
    return Input(kind, name, folder, command, tuple(files), share)


def _lines(array: Array, separator: str) -> str:
    return "".join(separator.join(map(str, row)) + "\n" for row in array.tolist())


def _saved(save: Callable[[io.BytesIO], object]) -> bytes:
    stream = io.BytesIO()
    save(stream)
    return stream.getvalue()


def _parquet(table: pa.Table, metadata: dict[str, str] | None = None) -> bytes:
    return _saved(lambda file: pq.write_table(table.replace_schema_metadata(metadata), file))
