"""Shards: features, labels and masks of the rows that each rank holds, in local order, stored on disk."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from simgnn.errors import ConfigError, GraphError
from simgnn.graph.graph import CentredRows, Features, Graph
from simgnn.partition.folder import ArtifactFolder, ArtifactWriter, cache_folder, obtain
from simgnn.partition.store import PartitionArtifact, key_of

WHAT = "shards"
DTYPES = ("float16", "float32", "float64")
MASKS = ("train_mask", "validation_mask", "test_mask")
MEAN = "mean"
"""Array of what was subtracted from dense features; sparse ones hold it rank by rank."""


@dataclass(frozen=True)
class Shard:
    """Data of the n rows that one rank computes. ``features`` [n, F_0]: dense, ``csr_array`` or
    :class:`~simgnn.graph.graph.CentredRows`; ``labels``: int64 [n] or bool [n, classes] (None: the graph has none);
    masks: bool [n]. Mirrors of a vertex-cut have features, but label 0 and no mask, since only the master of a vertex
    is trained and evaluated."""

    features: Features
    labels: NDArray[Any] | None
    train_mask: NDArray[np.bool_]
    validation_mask: NDArray[np.bool_]
    test_mask: NDArray[np.bool_]


@dataclass(frozen=True)
class ShardArtifact:
    """The shards of all ranks on disk; ``made``: whether this call made them."""

    folder: ArtifactFolder
    made: bool = False

    @classmethod
    def open(cls, path: str | Path) -> "ShardArtifact":
        """Open the folder that ``plan/plan.json`` names. Raises :class:`ConfigError` when it is incomplete."""
        return cls(ArtifactFolder.open(Path(path), WHAT))

    @property
    def path(self) -> Path:
        """Folder of the shards."""
        return self.folder.path

    def labels(self, rank: int) -> NDArray[Any]:
        """Return the labels of one rank's rows; no other array is read. Raises :class:`ConfigError` without labels."""
        name = f"rank-{rank}/labels"
        if name not in self.folder.files:
            raise ConfigError(f"{self.path} holds no labels of rank {rank}; training needs a graph with labels")
        return self.folder.verify(name).array(name)

    @property
    def feature_mean(self) -> NDArray[np.float64] | None:
        """What was subtracted from the features of all ranks, float64 [F_0]; None: nothing."""
        for name in (MEAN, f"rank-0/features_{MEAN}"):
            if name in self.folder.files:
                return self.folder.verify(name).array(name)
        return None

    def rank(self, rank: int) -> Shard:
        """Return the shard of one rank, memory-mapped, after its files are checked against their digests."""
        ranks = int(self.folder.details["ranks"])
        if not 0 <= rank < ranks:
            raise ConfigError(f"{self.path} was made for {ranks} ranks; there is no rank {rank}: prepare the run again")
        prefix = f"rank-{rank}/"
        self.folder.verify(prefix)

        def read(name: str) -> NDArray[Any]:
            return self.folder.array(prefix + name)

        features: Features
        if self.folder.details["sparse"]:
            parts = (read("features_data"), read("features_indices"), read("features_indptr"))
            width, mean = int(self.folder.details["feature_width"]), prefix + "features_mean"
            centred = mean in self.folder.files
            stored = sparse.csr_array(parts, shape=(len(parts[2]) - 1, width + centred))
            features = CentredRows(stored, self.folder.array(mean)) if centred else stored
        else:
            features = read("features")
        labels = read("labels") if prefix + "labels" in self.folder.files else None
        return Shard(features, labels, *(read(name) for name in MASKS))


def shard_artifact(graph: Graph, partition: PartitionArtifact, dtype: str, cache: Path | None = None) -> ShardArtifact:
    """Divide the graph's data into shards of ``dtype`` (float16, float32 or float64); sparse features stay sparse.

    Stored beside the partition's folder, or in ``cache``. Raises :class:`ConfigError` for another dtype,
    :class:`GraphError` without features or when a value is too large for the dtype.
    """
    if dtype not in DTYPES:
        raise ConfigError(f"train.dtype = '{dtype}': expected one of {', '.join(DTYPES)}")
    if graph.features is None:
        raise GraphError(
            f"the graph '{graph.name}' has no features; graph.stand_in_features = WIDTH makes random ones, "
            "with which accuracies mean nothing"
        )
    owner = partition.partition
    key = {"partition": partition.digest, "dtype": dtype, **({} if graph.feature_mean is None else {"centred": True})}
    name = f"{dtype}-{owner.ranks}-{key_of(key)}"
    root = cache_folder(cache) if cache is not None else partition.path.parent.parent

    def make(writer: ArtifactWriter) -> Mapping[str, Any]:
        assert graph.features is not None
        if graph.feature_mean is not None:
            writer.array(MEAN, graph.feature_mean)
        for rank in range(owner.ranks):
            local = partition.local(rank)
            _write_shard(writer, graph, local.vertices, local.masters, rank, dtype)
        return {
            "ranks": owner.ranks,
            "partition": partition.digest,
            "dtype": dtype,
            "sparse": graph.sparse_features,
            "feature_width": int(graph.features.shape[1]),
        }

    return ShardArtifact(*obtain(root / "shards" / name, WHAT, make))


def _write_shard(
    writer: ArtifactWriter, graph: Graph, held: NDArray[np.int64], masters: int, rank: int, dtype: str
) -> None:
    prefix = f"rank-{rank}/"
    features, stored = graph.features, graph.sparse_rows
    if stored is not None:
        rows: Any = stored[held]
        writer.array(prefix + "features_data", _converted(rows.data, dtype, graph.name))
        writer.array(prefix + "features_indices", rows.indices)
        writer.array(prefix + "features_indptr", rows.indptr)
    if isinstance(features, CentredRows):
        writer.array(prefix + "features_mean", features.mean)
    elif stored is None:
        writer.array(prefix + "features", _converted(np.asarray(features)[held], dtype, graph.name))
    mirrors = np.arange(len(held)) >= masters
    if graph.labels is not None:
        writer.array(prefix + "labels", _cleared(graph.labels[held], mirrors))
    for name in MASKS:
        mask = getattr(graph, name)
        kept = np.zeros(len(held), dtype=np.bool_) if mask is None else mask[held]
        writer.array(prefix + name, _cleared(kept, mirrors))


def _cleared(values: NDArray[Any], where: NDArray[np.bool_]) -> NDArray[Any]:
    values = np.array(values)
    values[where] = 0
    return values


def _converted(values: NDArray[Any], dtype: str, graph: str) -> NDArray[Any]:
    if values.dtype == dtype:
        return values
    with np.errstate(over="ignore"):
        converted = values.astype(dtype)
    if converted.dtype.itemsize < values.dtype.itemsize and not np.isfinite(converted).all():
        raise GraphError(
            f"features of '{graph}' are too large for train.dtype = '{dtype}'; choose float32, or scale them"
        )
    return converted
