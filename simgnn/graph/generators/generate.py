"""Generates graphs in memory, or streamed to disk; both ways give the same arrays."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgnn.errors import GraphError
from simgnn.graph.build import is_symmetric
from simgnn.graph.csr import CSR
from simgnn.graph.generators.recipes import FEATURE_ROWS, Communities, RMat, Stream
from simgnn.graph.graph import Graph
from simgnn.graph.hashing import permutation_slice, stream_key
from simgnn.graph.store import (
    Keys,
    graph_cache,
    new_folder,
    npy_header,
    open_graph,
    sort_to_disk,
    stored_symmetric,
    write_facts,
)
from simgnn.graph.thread_pool import in_order
from simgnn.memory import check_memory
from simgnn.progress import SILENT, Progress

Recipe = Communities | RMat

CHUNK_EDGES = 1 << 20
MEMORY_EDGES = 10_000_000  # above, load_graph streams to the cache

VERTEX_BYTES, DISK_BYTES = 50, 2**29

KINDS: dict[str, type[Communities] | type[RMat]] = {"communities": Communities, "rmat": RMat}
TRAIN, VALIDATION = 0.6, 0.2


def recipe_of(kind: str, options: Mapping[str, Any], seed: int) -> Recipe:
    """Return the recipe ``kind`` with ``vertices``, ``edges``, ``classes``, ``multilabel``, ``feature_width`` from
    ``options``. With ``vertices`` alone, ``edges`` keeps the default number of edges per vertex. Raises
    :class:`GraphError`."""
    if kind not in KINDS:
        raise GraphError(f"graph.source: no generator '{kind}'; known: {', '.join(f'synthetic:{k}' for k in KINDS)}")
    recipe = KINDS[kind](seed=seed)
    given = dict(options)
    if "vertices" in given and "edges" not in given:
        given["edges"] = max(1, round(recipe.edges * given["vertices"] / recipe.vertices))
    recipe = replace(recipe, **given)
    if recipe.vertices < 2:
        raise GraphError(f"graph.vertices must be 2 or more; got {recipe.vertices}")
    if kind == "communities" and recipe.classes > recipe.vertices:
        raise GraphError(f"graph.classes must not exceed graph.vertices ({recipe.vertices}); got {recipe.classes}")
    return recipe


def generate(
    recipe: Recipe, *, symmetrise: bool = True, threads: int | None = None, progress: Progress = SILENT
) -> Graph:
    """Generate the graph in memory. Equal recipes give equal arrays, bit by bit, for any number of threads."""
    stream = recipe.prepare()
    layout = Keys.of(recipe.vertices, symmetrise, 1)
    pairs, chunks = _pairs(recipe, stream), _chunks(recipe.edges, CHUNK_EDGES)
    splits = []
    with progress.counting("generating edges", recipe.edges, patient=True) as counter:
        for split in in_order(lambda chunk: layout.split(pairs(chunk)), chunks, threads):
            splits.append(split)
            counter.at(min(len(splits) * CHUNK_EDGES, recipe.edges))
    loops = sum(dropped for dropped, _, _ in splits)
    keys = np.concatenate([np.empty(0, np.int64), *(keys for _, _, keys in splits)])
    del splits
    indptr, indices = layout.rows(0, keys)
    csr = CSR(indptr, indices, recipe.vertices)
    features = None
    if recipe.feature_width:
        features = np.empty((recipe.vertices, recipe.feature_width), np.float32)
        with progress.counting("generating features", recipe.vertices, patient=True) as counter:
            for number, rows in enumerate(in_order(stream.features, _chunks(recipe.vertices, FEATURE_ROWS), threads)):
                features[number * FEATURE_ROWS : number * FEATURE_ROWS + len(rows)] = rows
                counter.at(number * FEATURE_ROWS + len(rows))
    masks: dict[str, Any] = {} if stream.labels is None else {**split_masks(recipe.vertices, recipe.seed)}
    stated = _stated(recipe, symmetrise or is_symmetric(csr), loops, csr.edges)
    return Graph(csr=csr, features=features, labels=stream.labels, **masks, **stated)


def generate_to_disk(
    recipe: Recipe, path: Path, *, symmetrise: bool = True, threads: int | None = None, progress: Progress = SILENT
) -> Graph:
    """Stream the graph to the folder ``path`` and open it memory-mapped. Memory: a few chunks and buckets (about 0.5
    GiB) plus some 50 bytes a vertex. ``path`` is written whole or not at all; it must not exist. Needs 8 bytes of disk
    a stored edge besides the graph's own while it runs."""
    stream = recipe.prepare()
    with new_folder(path) as folder:
        pairs, chunks = _pairs(recipe, stream), _chunks(recipe.edges, CHUNK_EDGES)
        edges, loops = sort_to_disk(folder, recipe.vertices, recipe.edges, symmetrise, pairs, chunks, threads, progress)
        if recipe.feature_width:
            # written, not mapped: dirty pages of a map would count as resident memory
            with (
                (folder / "features.npy").open("wb") as file,
                progress.counting("generating features", recipe.vertices, patient=True) as counter,
            ):
                file.write(npy_header(np.dtype(np.float32), (recipe.vertices, recipe.feature_width)))
                written = 0
                for rows in in_order(stream.features, _chunks(recipe.vertices, FEATURE_ROWS), threads):
                    file.write(rows.data)
                    counter.at(written := written + len(rows))
        if stream.labels is not None:
            np.save(folder / "labels.npy", stream.labels)
            for name, mask in split_masks(recipe.vertices, recipe.seed).items():
                np.save(folder / f"{name}.npy", mask)
        write_facts(folder, **_stated(recipe, symmetrise or stored_symmetric(folder), loops, edges))
    return open_graph(path)


def generated(
    recipe: Recipe, *, symmetrise: bool = True, cache: Path | None = None, progress: Progress = SILENT
) -> Graph:
    """Generate a graph: in memory below ``MEMORY_EDGES`` edges; else through ``cache`` (default: the cache folder).
    Raises :class:`GraphError` where that takes more memory than there is."""
    in_memory = recipe.edges <= MEMORY_EDGES
    told = f"1 {type(recipe).__name__} {sorted(asdict(recipe).items())} {symmetrise}"
    path = graph_cache(cache) / f"{recipe.name}-{hashlib.sha256(told.encode()).hexdigest()[:16]}"
    if not in_memory and path.exists():
        return open_graph(path)
    check_memory(
        _needed_bytes(recipe, symmetrise, in_memory),
        f"graph.vertices, graph.edges: generating {recipe.vertices:,} vertices and {recipe.edges:,} edges",
        "state smaller numbers, or a smaller graph.feature_width",
    )
    if in_memory:
        return generate(recipe, symmetrise=symmetrise, progress=progress)
    return generate_to_disk(recipe, path, symmetrise=symmetrise, progress=progress)


def _needed_bytes(recipe: Recipe, symmetrise: bool, in_memory: bool) -> int:
    """Return the memory that generating takes: VERTEX_BYTES a vertex for its label and place, and the chunks and
    buckets of the disk, or the keys of all edges, which are joined, sorted and reduced, and the features."""
    labels = recipe.vertices * (recipe.classes if recipe.multilabel else 1)
    base = VERTEX_BYTES * recipe.vertices + labels
    if not in_memory:
        return base + DISK_BYTES
    return base + 4 * 8 * recipe.edges * (1 + symmetrise) + 4 * recipe.vertices * recipe.feature_width


def split_masks(vertices: int, seed: int) -> dict[str, NDArray[np.bool_]]:
    """Seeded, disjoint masks bool [V]: 60 % train, 20 % validation, the rest test."""
    place = permutation_slice(0, vertices, vertices, stream_key(seed, "masks"))
    train, validation = round(TRAIN * vertices), round((TRAIN + VALIDATION) * vertices)
    return {
        "train_mask": place < train,
        "validation_mask": (place >= train) & (place < validation),
        "test_mask": place >= validation,
    }


def _pairs(recipe: Recipe, stream: Stream) -> Callable[[int], NDArray[np.int64]]:
    return lambda chunk: stream.edges(chunk * CHUNK_EDGES, min(CHUNK_EDGES, recipe.edges - chunk * CHUNK_EDGES))


def _chunks(total: int, size: int) -> int:
    return -(-total // size)


def _stated(recipe: Recipe, symmetric: bool, loops: int, stored: int) -> dict[str, Any]:
    what = "features and labels" if recipe.feature_width and recipe.classes else "graph"
    note = f"generated, {what} synthetic: {recipe.edges:,} edges drawn, {loops:,} self loops, {stored:,} stored"
    return {
        "name": recipe.name,
        "classes": recipe.classes,
        "multilabel": recipe.multilabel and recipe.classes > 0,
        "symmetric": symmetric,
        "synthetic_features": recipe.feature_width > 0,
        "synthetic_labels": recipe.classes > 0,
        "notes": (note,),
    }
