"""SparseFeatures: node features in CSR, for inputs such as bags of words that are mostly zero."""

from __future__ import annotations

import warnings
from dataclasses import InitVar, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphbraid import native
from graphbraid.arguments import as_count, as_flag, check_tensor, shown
from graphbraid.errors import DataError
from graphbraid.graph.csc import indptr_of, indptr_of_rows, ranges
from graphbraid.graph.scans import Versioned, check_columns, check_csc, check_ids, unchanged


def as_shared(array: np.ndarray) -> Tensor:
    """Return a tensor that shares an array's memory, which may be read-only: nothing here writes to it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


def read_only(values: Tensor) -> np.ndarray:
    """Return an array that shares a tensor's memory and cannot be written to.

    A write through NumPy would change indices of kernels after their check, and torch would not notice.
    """
    array = values.numpy()
    array.flags.writeable = False
    return array


def keep_shared(matrix: Any, *parts: Tensor | None) -> None:
    """Make arrays of a ``scipy.sparse`` matrix read-only if one of the tensors shares their memory."""
    shared = {one.data_ptr() for one in parts if one is not None and one.numel()}
    for array in (matrix.indptr, matrix.indices, matrix.data):
        if array.ctypes.data in shared:
            array.flags.writeable = False


FEATURE_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@unchanged("indptr", "indices")
@dataclass(frozen=True, kw_only=True, eq=False, slots=True, weakref_slot=True)
class SparseFeatures(Versioned):
    """Feature rows in CSR: the non-zeros of row ``v`` are ``values[indptr[v]:indptr[v + 1]]``.

    A column stored twice in a row counts as the sum of both. The arrays that kernels read by index are
    scanned once, in parallel, when an instance is made; :func:`.validate.validate_features` also checks the
    values.

    Raises:
        DataError: names the array that does not fit, or the first value that is wrong and where it stands.
    """

    indptr: Tensor
    """``(num_rows + 1,)`` int64."""
    indices: Tensor
    """``(nnz,)`` int32, column of each value."""
    values: Tensor
    """``(nnz,)`` float32, float16 or bfloat16."""
    num_cols: int
    """Number of columns, including those without stored values."""
    trusted: InitVar[bool] = False
    """Skip the checks. Only for arrays known to be valid: kernels index with them and do not check again."""

    def __post_init__(self, trusted: bool) -> None:
        if as_flag(trusted, "trusted"):
            return
        most = torch.iinfo(torch.int32).max
        object.__setattr__(self, "num_cols", as_count(self.num_cols, "num_cols", most=most, error=DataError))
        check_csc(self.indptr, self.indices, num_src=self.num_cols)
        if self.indices.dtype != torch.int32:
            raise DataError(f"columns of sparse features must be int32; got {self.indices.dtype}")
        if check_tensor(self.values, "feature values").dtype not in FEATURE_DTYPES:
            raise DataError(f"feature values must be float32, float16 or bfloat16; got {self.values.dtype}")
        if self.values.shape != self.indices.shape:
            raise DataError(f"{self.indices.numel()} columns but values of shape {tuple(self.values.shape)}")
        check_columns(self.indptr, self.indices, self.num_cols, "the sparse features")

    @property
    def shape(self) -> tuple[int, int]:
        """``(num_rows, num_cols)``."""
        return self.indptr.numel() - 1, self.num_cols

    @property
    def nnz(self) -> int:
        """Number of stored values."""
        return self.indices.numel()

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the values."""
        return self.values.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the three arrays."""
        return sum(t.numel() * t.element_size() for t in (self.indptr, self.indices, self.values))

    def rows(self, ids: Tensor) -> SparseFeatures:
        """Return the rows named by ``ids``, in that order and as often as they are named (a copy).

        Args:
            ids: ``(num_ids,)`` int32 or int64 row numbers in ``[0, num_rows)``.

        Raises:
            DataError: names the first id that is out of range.
        """
        check_ids(ids, self.shape[0], "row ids")
        ids = ids.long()
        starts = self.indptr[ids]
        counts = self.indptr[ids + 1] - starts
        positions = ranges(starts, counts)
        return SparseFeatures(
            indptr=indptr_of(counts),
            indices=self.indices[positions],
            values=self.values[positions],
            num_cols=self.num_cols,
            trusted=True,
        )

    def to_dense(self) -> Tensor:
        """Return a dense ``(num_rows, num_cols)`` tensor of the values' dtype (a copy)."""
        num_rows, num_cols = self.shape
        dense = self.values.new_zeros(num_rows, num_cols)
        kernels = native.kernels() if self.values.device.type == "cpu" else None
        if kernels is not None and self.dtype == torch.float32:
            kernels.csr_to_dense(self.indptr, self.indices, self.values.detach(), dense)
            return dense
        row = torch.repeat_interleave(torch.arange(num_rows, device=self.indptr.device), self.indptr.diff())
        return dense.index_put_((row, self.indices.long()), self.values, accumulate=True)

    def to(self, dtype: torch.dtype) -> SparseFeatures:
        """Return the same rows with values of another dtype; copies the values only, and only if needed."""
        if not isinstance(dtype, torch.dtype) or dtype not in FEATURE_DTYPES:
            raise DataError(f"feature values must be float32, float16 or bfloat16; got {shown(dtype)}")
        return SparseFeatures(
            indptr=self.indptr,
            indices=self.indices,
            values=self.values.to(dtype),
            num_cols=self.num_cols,
            trusted=True,
        )

    @classmethod
    def from_dense(cls, dense: Tensor) -> SparseFeatures:
        """Make sparse features from the non-zeros of a ``(num_rows, num_cols)`` tensor (a copy)."""
        if check_tensor(dense, "dense features").dtype not in FEATURE_DTYPES:
            raise DataError(f"dense features must be float32, float16 or bfloat16; got {dense.dtype}")
        if dense.ndim != 2:
            raise DataError(f"dense features must be 2-d; got shape {tuple(dense.shape)}")
        row, column = dense.nonzero(as_tuple=True)
        return cls(
            indptr=indptr_of_rows(row, dense.shape[0]),
            indices=column.int(),
            values=dense[row, column],
            num_cols=dense.shape[1],
            trusted=True,
        )

    @classmethod
    def from_scipy(cls, matrix: Any) -> SparseFeatures:
        """Make sparse features from the rows of any ``scipy.sparse`` matrix.

        The float32 values and int32 columns of a CSR matrix are shared, not copied; other formats and dtypes
        are converted (float64 and integers to float32). What is shared becomes read-only, also for the
        matrix: kernels read by it.

        Raises:
            DataError: the values are complex or objects, there are more columns than int32 can count, or the
                arrays are inconsistent.
        """
        if not hasattr(matrix, "tocsr") or isinstance(matrix, type):
            raise DataError(f"matrix must be a scipy.sparse matrix; got {shown(matrix)}")
        csr = matrix.tocsr()
        if csr.shape[1] > np.iinfo(np.int32).max:
            raise DataError(f"features may have at most 2^31 - 1 columns; the matrix has {csr.shape[1]}")
        if csr.dtype.kind not in "fiub":
            raise DataError(f"features must be real numbers; the matrix holds {csr.dtype}")
        kept = csr.dtype if csr.dtype in (np.float32, np.float16) else np.float32
        made = cls(
            indptr=as_shared(csr.indptr.astype(np.int64, copy=False)),
            indices=as_shared(csr.indices.astype(np.int32, copy=False)),
            values=as_shared(csr.data.astype(kept, copy=False)),
            num_cols=int(csr.shape[1]),
        )
        keep_shared(csr, made.indptr, made.indices, made.values)
        return made

    def to_scipy(self) -> Any:
        """Return a ``scipy.sparse.csr_matrix``; float32 values are shared, 16-bit ones copied to float32.

        The arrays are read-only: ``copy()`` makes a matrix that can be changed.
        """
        from scipy.sparse import csr_matrix

        values = self.values.detach().to("cpu", torch.float32)
        return csr_matrix(
            (read_only(values), read_only(self.indices.cpu()), read_only(self.indptr.cpu())), shape=self.shape
        )
