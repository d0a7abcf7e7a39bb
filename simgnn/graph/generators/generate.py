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

Recipe = Communities | RMat

CHUNK_EDGES = 1 << 20
MEMORY_EDGES = 10_000_000  # above, load_graph streams to the cache

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


def generate(recipe: Recipe, *, symmetrise: bool = True, threads: int | None = None) -> Graph:
    """Generate the graph in memory. Equal recipes give equal arrays, bit by bit, for any number of threads."""
    stream = recipe.prepare()
    layout = Keys.of(recipe.vertices, symmetrise, 1)
    pairs, chunks = _pairs(recipe, stream), _chunks(recipe.edges, CHUNK_EDGES)
    splits = list(in_order(lambda chunk: layout.split(pairs(chunk)), chunks, threads))
    loops = sum(dropped for dropped, _, _ in splits)
    keys = np.concatenate([np.empty(0, np.int64), *(keys for _, _, keys in splits)])
    del splits
    indptr, indices = layout.rows(0, keys)
    csr = CSR(indptr, indices, recipe.vertices)
    features = None
    if recipe.feature_width:
        features = np.concatenate(list(in_order(stream.features, _chunks(recipe.vertices, FEATURE_ROWS), threads)))
    masks: dict[str, Any] = {} if stream.labels is None else {**split_masks(recipe.vertices, recipe.seed)}
    stated = _stated(recipe, symmetrise or is_symmetric(csr), loops, csr.edges)
    return Graph(csr=csr, features=features, labels=stream.labels, **masks, **stated)


def generate_to_disk(recipe: Recipe, path: Path, *, symmetrise: bool = True, threads: int | None = None) -> Graph:
    """Stream the graph to the folder ``path`` and open it memory-mapped. Memory: a few chunks and buckets (about 0.5
    GiB) plus some 50 bytes a vertex. ``path`` is written whole or not at all; it must not exist. Needs 8 bytes of disk
    a stored edge besides the graph's own while it runs."""
    stream = recipe.prepare()
    with new_folder(path) as folder:
        pairs, chunks = _pairs(recipe, stream), _chunks(recipe.edges, CHUNK_EDGES)
        edges, loops = sort_to_disk(folder, recipe.vertices, recipe.edges, symmetrise, pairs, chunks, threads)
        if recipe.feature_width:
            # written, not mapped: dirty pages of a map would count as resident memory
            with (folder / "features.npy").open("wb") as file:
                file.write(npy_header(np.dtype(np.float32), (recipe.vertices, recipe.feature_width)))
                for rows in in_order(stream.features, _chunks(recipe.vertices, FEATURE_ROWS), threads):
                    file.write(rows.data)
        if stream.labels is not None:
            np.save(folder / "labels.npy", stream.labels)
            for name, mask in split_masks(recipe.vertices, recipe.seed).items():
                np.save(folder / f"{name}.npy", mask)
        write_facts(folder, **_stated(recipe, symmetrise or stored_symmetric(folder), loops, edges))
    return open_graph(path)


def generated(recipe: Recipe, *, symmetrise: bool = True, cache: Path | None = None) -> Graph:
    """Generate a graph: in memory below ``MEMORY_EDGES`` edges; else through ``cache`` (default: the cache folder)."""
    if recipe.edges <= MEMORY_EDGES:
        return generate(recipe, symmetrise=symmetrise)
    told = f"1 {type(recipe).__name__} {sorted(asdict(recipe).items())} {symmetrise}"
    path = graph_cache(cache) / f"{recipe.name}-{hashlib.sha256(told.encode()).hexdigest()[:16]}"
    return open_graph(path) if path.exists() else generate_to_disk(recipe, path, symmetrise=symmetrise)


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
