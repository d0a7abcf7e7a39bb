"""ogbn_arxiv as the benchmarks use it: real graph, labels and split; stand-in features (its own could not be had)."""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import reverse_cuthill_mckee

from simgnn.graph.csr import CSR

CLASSES = 40


@dataclass(frozen=True)
class Task:
    """A graph without self loops, features [V, 128], labels [V], ids of training vertices."""

    csr: CSR
    features: torch.Tensor
    labels: torch.Tensor
    train: torch.Tensor

    def permuted(self, order: NDArray[np.int64]) -> "Task":
        """The same task with vertex order[k] at place k."""
        matrix = scipy_adjacency(self.csr)[order][:, order].tocsr()
        matrix.sort_indices()
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        picked = torch.from_numpy(order.astype(np.int64))
        return Task(
            CSR(matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32), self.csr.columns),
            self.features[picked],
            self.labels[picked],
            torch.from_numpy(np.sort(place[self.train.numpy()])),
        )

    def reordered(self) -> "Task":
        """In reverse Cuthill-McKee order, which a rank gives its own rows by default."""
        return self.permuted(reverse_cuthill_mckee(scipy_adjacency(self.csr), symmetric_mode=True))


def scipy_adjacency(csr: CSR) -> sparse.csr_matrix:
    """The graph as a SciPy matrix of ones."""
    ones = np.ones(csr.edges, np.float32)
    return sparse.csr_matrix((ones, csr.indices, csr.indptr), (csr.rows, csr.columns))


def load(folder: Path | None = None) -> Task:
    """Read the graph; features are standard normal, float32, seed 0."""
    default = Path(__file__).resolve().parents[3] / "shared" / "data"
    path = (folder or Path(os.environ.get("SIMGNN_DATA", default))) / "ogbn_arxiv.npz"
    if not path.is_file():
        raise SystemExit(f"{path} not found: set SIMGNN_DATA to the folder that holds ogbn_arxiv.npz")
    with np.load(path, allow_pickle=False) as data:
        csr = CSR(data["indptr"].astype(np.int64), data["indices"].astype(np.int32), len(data["indptr"]) - 1)
        features = np.random.default_rng(0).standard_normal((csr.rows, 128), dtype=np.float32)
        return Task(
            csr,
            torch.from_numpy(features),
            torch.from_numpy(data["labels"].astype(np.int64)),
            torch.from_numpy(np.flatnonzero(data["train_mask"])),
        )
