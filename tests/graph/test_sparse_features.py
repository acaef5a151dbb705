"""SparseFeatures against their dense form."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.graph.cases import reference_kernels

from graphbraid.errors import DataError
from graphbraid.graph.sparse_features import SparseFeatures


def random_dense(num_rows: int, num_cols: int, *, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    dense = torch.rand(num_rows, num_cols, generator=generator)
    return dense * (torch.rand(num_rows, num_cols, generator=generator) < 0.2)


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 100))
def test_dense_round_trip(num_rows, num_cols, seed):
    dense = random_dense(num_rows, num_cols, seed=seed)
    sparse = SparseFeatures.from_dense(dense)
    assert sparse.shape == (num_rows, num_cols)
    assert sparse.nnz == int((dense != 0).sum())
    assert torch.equal(sparse.to_dense(), dense)
    with reference_kernels():
        assert torch.equal(sparse.to_dense(), dense)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("ids", [[], [3, 3, 0, 499], list(range(500))])
def test_rows_are_taken_in_order_and_repeated(ids, dtype):
    dense = random_dense(500, 37).to(dtype)
    dense[3] = 0  # an empty row
    rows = SparseFeatures.from_dense(dense).rows(torch.tensor(ids, dtype=torch.int32))
    assert rows.dtype == dtype
    assert torch.equal(rows.to_dense(), dense[ids])


def test_to_changes_the_values_alone():
    sparse = SparseFeatures.from_dense(random_dense(5, 4))
    half = sparse.to(torch.bfloat16)
    assert half.dtype == torch.bfloat16
    assert half.indices is sparse.indices
    assert half.nbytes == sparse.nbytes - 2 * sparse.nnz


def test_a_column_stored_twice_is_added_up():
    doubled = SparseFeatures(
        indptr=torch.tensor([0, 2]),
        indices=torch.tensor([1, 1], dtype=torch.int32),
        values=torch.tensor([1.0, 2.0]),
        num_cols=3,
    )
    assert doubled.to_dense().tolist() == [[0, 3, 0]]
    with reference_kernels():
        assert doubled.to_dense().tolist() == [[0, 3, 0]]


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "lil"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8, bool])
def test_scipy_round_trip(form, dtype):
    matrix = (
        sp.random(20, 30, density=0.2, random_state=1, format="csr").astype(bool).astype(dtype).asformat(form)
    )
    sparse = SparseFeatures.from_scipy(matrix)
    assert sparse.dtype == torch.float32
    assert np.array_equal(sparse.to_dense().numpy(), matrix.toarray().astype(np.float32))
    assert np.array_equal(sparse.to_scipy().toarray(), matrix.toarray())


def test_scipy_values_are_shared_both_ways():
    matrix = sp.random(20, 30, density=0.2, random_state=1, format="csr", dtype=np.float32)
    sparse = SparseFeatures.from_scipy(matrix)
    assert sparse.values.numpy().ctypes.data == matrix.data.ctypes.data
    assert sparse.to_scipy().data.ctypes.data == matrix.data.ctypes.data
    assert SparseFeatures.from_scipy(matrix).to(torch.float16).to_scipy().dtype == np.float32


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"indptr": torch.tensor([0, 3])}, "it runs from 0 to 3"),
        ({"indices": torch.zeros(2, dtype=torch.int64)}, "must be int32; got torch.int64"),
        ({"values": torch.zeros(2, dtype=torch.float64)}, "float32, float16 or bfloat16; got torch.float64"),
        ({"values": torch.zeros(3)}, "2 columns but values of shape (3,)"),
    ],
)
def test_misfitting_arrays_are_named(fields, message):
    good = {
        "indptr": torch.tensor([0, 2]),
        "indices": torch.zeros(2, dtype=torch.int32),
        "values": torch.ones(2),
    }
    with pytest.raises(DataError) as error:
        SparseFeatures(**{**good, **fields}, num_cols=3)
    assert message in str(error.value)


def test_bad_rows_and_matrices_are_named():
    sparse = SparseFeatures.from_dense(torch.eye(3))
    with pytest.raises(DataError, match=r"row ids must be node ids in \[0, 3\); position 1 holds 3"):
        sparse.rows(torch.tensor([0, 3]))
    with pytest.raises(DataError, match="must be 2-d; got shape"):
        SparseFeatures.from_dense(torch.ones(3))
    with pytest.raises(DataError, match="must be real numbers; the matrix holds complex128"):
        SparseFeatures.from_scipy(sp.csr_matrix(np.eye(2) * 1j))
