"""Sparse rows (input features) times a weight matrix, and its weight gradient. Sparse rows are torch CSR tensors."""

import warnings
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse

from executor.kernels.edges.spmm import spmm
from executor.kernels.launch import COMPILED_DTYPES, array, balanced_rows, default_threads


class SparseRows:
    """A constant sparse matrix X [n, F] with its transpose, both made once, for X @ W and Xᵀ @ g.

    With a ``mean`` m [F] the rows are X - s m, and the matrix [n, F + 1] is X with s as its last column
    (:class:`simgnn.graph.graph.CentredRows`): (X - s m) W is one product with W and -m W below it, and the weights'
    gradient is Xᵀ g - mᵀ (sᵀ g). Nothing as large as dense rows is made.
    """

    def __init__(self, matrix: torch.Tensor, mean: torch.Tensor | None = None) -> None:
        assert matrix.layout == torch.sparse_csr, "sparse rows are CSR tensors"
        assert mean is None or matrix.shape[1] == len(mean) + 1, "a column beside the features' tells of their mean"
        self.matrix, self.mean = matrix.detach(), mean
        if self._compiled:
            _ = self._transposed  # now: made at the first backward it would raise the peak after the first epoch

    @property
    def _compiled(self) -> bool:
        return self.matrix.device.type == "cpu" and self.matrix.dtype in COMPILED_DTYPES

    @cached_property
    def scipy(self) -> sparse.csr_array:
        """The same values for SciPy, on the CPU."""
        return to_scipy(self.matrix)

    @cached_property
    def _transposed(self) -> sparse.csr_array:
        turned = self.scipy.T.tocsr()
        turned.sort_indices()
        return turned

    @cached_property
    def _torch_transposed(self) -> torch.Tensor:
        return from_scipy(self._transposed, self.matrix.dtype).to(self.matrix.device)

    @cached_property
    def _bounds(self) -> dict[tuple[bool, int], Any]:
        return {}

    def times(self, weight: torch.Tensor) -> torch.Tensor:
        """X @ weight, [n, outer]; no autograd."""
        if self.mean is not None:
            weight = torch.cat((weight, -(self.mean @ weight)[None]))
        return self._product(weight, False)

    def transposed_times(self, gradient: torch.Tensor) -> torch.Tensor:
        """Xᵀ @ gradient, [F, outer]; no autograd."""
        product = self._product(gradient, True)
        return product if self.mean is None else product[:-1].addr_(self.mean, product[-1], alpha=-1)

    def _product(self, dense: torch.Tensor, turned: bool) -> torch.Tensor:
        if not self._compiled:
            return torch.mm(self._torch_transposed if turned else self.matrix, dense)
        matrix = self._transposed if turned else self.scipy
        threads = default_threads()
        if (turned, threads) not in self._bounds:
            self._bounds[turned, threads] = balanced_rows(matrix.indptr.astype(np.int64), threads)
        out = dense.new_empty((matrix.shape[0], dense.shape[1]))
        spmm(
            matrix.indptr, matrix.indices, array(dense.contiguous()), array(out), self._bounds[turned, threads],
            values=matrix.data,
        )  # fmt: skip
        return out


def diagonal(values: NDArray[Any], rows: int, columns: int) -> Any:
    """Return a SciPy matrix [rows, columns] with ``values`` on its diagonal, which scales rows or columns."""
    return sparse.dia_array((values[None], np.zeros(1, dtype=np.int64)), shape=(rows, columns))


def to_scipy(matrix: torch.Tensor) -> sparse.csr_array:
    """Convert a torch CSR tensor to a SciPy CSR matrix; on the CPU they share their arrays."""
    parts = (matrix.values(), matrix.col_indices(), matrix.crow_indices())
    values, columns, pointers = (part.detach().cpu().numpy() for part in parts)
    return sparse.csr_array((values, columns, pointers), shape=(matrix.shape[0], matrix.shape[1]))


def from_scipy(matrix: Any, dtype: torch.dtype = torch.float32, copy: bool = True) -> torch.Tensor:
    """Convert a SciPy CSR matrix to a torch CSR tensor with int32 ids where they fit, and values of ``dtype``. Without
    ``copy`` they share those arrays that have these types already."""
    if not matrix.has_canonical_format:
        matrix = matrix.copy()
        matrix.sum_duplicates()
    fits = max(matrix.shape[1], matrix.nnz) < 2**31
    index = np.int32 if fits else np.int64
    taken = np.array if copy else np.asarray
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(
            torch.from_numpy(taken(matrix.indptr, dtype=index)),
            torch.from_numpy(taken(matrix.indices, dtype=index)),
            torch.from_numpy(taken(matrix.data)).to(dtype),
            size=matrix.shape,
            check_invariants=True,
        )
