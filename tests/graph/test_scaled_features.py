"""ScaledFeatures: how near rows of int8 are to the floats they were made of, and what is refused."""

import pickle

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.graph.cases import reference_kernels

from graphbraid import Graph, ScaledFeatures
from graphbraid.errors import DataError
from graphbraid.features import reorder
from graphbraid.graph.scaled_features import STEPS
from graphbraid.graph.sparse_features import SparseFeatures
from graphbraid.ops import gather_rows

LARGEST = torch.finfo(torch.float32).max
TINY = torch.finfo(torch.float32).tiny


def assert_near(x, found):
    """Each number is at most half its row's scale away, exactly."""
    away = (found.to_dense().double() - x.double()).abs()
    assert bool((away <= found.scale.double().unsqueeze(1) / 2).all())
    assert bool(found.to_dense().isfinite().all())


@given(
    x=st.lists(
        st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=3, max_size=3),
        max_size=6,
    )
)
def test_numbers_are_within_half_a_step_of_what_they_were(x):
    x = torch.tensor(x, dtype=torch.float32).reshape(-1, 3)
    assert_near(x, ScaledFeatures.from_dense(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [1e-45, 1e-30, 1.0, 1e4])
def test_rows_of_any_size_are_near(dtype, size):
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(300, 37, generator=draw).mul(size).to(dtype)
    found = ScaledFeatures.from_dense(x)
    assert_near(x, found)
    most = x.abs().amax(1).double()
    full = most > STEPS * TINY  # below, a scale would not be a normal number
    assert bool((found.scale.double()[full] * STEPS <= most[full] * (1 + 2**-15)).all()), "no step is wasted"


@pytest.mark.parametrize(
    "row",
    [
        [0.0, -0.0],
        [LARGEST, -LARGEST],
        [LARGEST, LARGEST / 254],
        [TINY, TINY / 2],
        [2.0**-149, 0.0],
        [127.0, -1.0],
        [127.5, 0.5],
        [1.0, 1 / 254],  # as far from a multiple as can be
    ],
    ids=str,
)
def test_rows_at_the_ends_of_float32(row):
    x = torch.tensor([row])
    found = ScaledFeatures.from_dense(x)
    assert_near(x, found)
    if row == [0.0, -0.0]:
        assert float(found.scale) == 0.0
        assert found.to_dense().tolist() == [[0.0, 0.0]]
    if row == [127.0, -1.0]:
        assert found.to_dense().tolist() == [row]


def test_products_of_scales_and_numbers_are_exact():
    """It does not matter, then, which kernel widens a row."""
    found = ScaledFeatures.from_dense(torch.randn(200, 9, generator=torch.Generator().manual_seed(1)))
    exact = found.values.double() * found.scale.double().unsqueeze(1)
    assert torch.equal(found.to_dense().double(), exact)
    ids = torch.randint(0, 200, (50,))
    assert torch.equal(gather_rows(found.values, ids, scale=found.scale).double(), exact[ids])
    assert torch.equal(found.rows(ids).double(), exact[ids])


def test_many_rows_are_rounded_in_parts(monkeypatch):
    x = torch.randn(50, 7, generator=torch.Generator().manual_seed(2))
    whole = ScaledFeatures.from_dense(x)
    monkeypatch.setattr("graphbraid.graph.scaled_features._CHUNK", 20)  # two rows
    parts = ScaledFeatures.from_dense(x)
    assert torch.equal(parts.values, whole.values)
    assert torch.equal(parts.scale, whole.scale)


def test_it_says_what_it_is_and_survives_pickling():
    found = ScaledFeatures.from_dense(torch.ones(5, 8))
    assert (found.shape, found.dtype, found.nbytes) == ((5, 8), torch.float32, 5 * 8 + 5 * 4)
    again = pickle.loads(pickle.dumps(found))
    assert torch.equal(again.to_dense(), found.to_dense())
    assert ScaledFeatures.from_dense(torch.ones(3, 0)).to_dense().shape == (3, 0)
    assert ScaledFeatures.from_dense(torch.ones(0, 3)).shape == (0, 3)


def graph_of(x):
    return Graph.from_edge_index([[0, 1, 2], [1, 2, 0]], 3, x=x, y=[0, 1, 0], splits={"train": [0]})


def test_a_graph_holds_them():
    x = torch.tensor([[1.0, 2.0], [0.0, 0.0], [3.0, -4.0]])
    scaled = ScaledFeatures.from_dense(x)
    graph = graph_of(scaled).validate()
    assert "2 int8 features" in repr(graph)
    assert graph.nbytes == graph_of(x).nbytes - x.nbytes + scaled.nbytes
    assert torch.equal(graph.dense_x(), scaled.to_dense())
    assert torch.equal(graph.replace(y=None).x.values, scaled.values)


def test_reordering_there_and_back_restores_every_bit():
    x = torch.randn(9, 5, generator=torch.Generator().manual_seed(3))
    graph = Graph.from_edge_index(torch.randint(9, (2, 20)), 9, x=ScaledFeatures.from_dense(x))
    moved = reorder(graph, torch.randperm(9))
    assert torch.equal(moved.graph.dense_x(), graph.dense_x()[moved.order.long()])
    back = reorder(moved.graph, moved.inverse).graph
    assert torch.equal(back.x.values, graph.x.values)
    assert torch.equal(back.x.scale, graph.x.scale)


@pytest.mark.parametrize(
    ("values", "scale", "said"),
    [
        (torch.zeros(3, 2), torch.zeros(3), "dense 2-d int8 tensor; got torch.float32"),
        (torch.zeros(3, dtype=torch.int8), torch.zeros(3), "dense 2-d int8 tensor"),
        (torch.zeros(3, 2, dtype=torch.int8), torch.zeros(2), r"one for each of 3 rows; got .*\(2,\)"),
        (torch.zeros(3, 2, dtype=torch.int8), torch.zeros(3, 1), "one for each of 3 rows"),
        (torch.zeros(3, 2, dtype=torch.int8), torch.zeros(3).double(), "scale must be float32"),
        (torch.zeros(3, 2, dtype=torch.int8), torch.tensor([1, torch.nan, 1]), r"scale\[1\] is nan"),
        (torch.zeros(3, 2, dtype=torch.int8), torch.tensor([1, 1, torch.inf]), r"scale\[2\] is inf"),
        (torch.zeros(3, 2, dtype=torch.int8), torch.tensor([-1.0, 1, 1]), r"scale\[0\] is -1"),
        (torch.zeros(2, 3, dtype=torch.int8).T, torch.zeros(3), "must be contiguous"),
        (None, torch.zeros(3), "int8 features"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(values, scale, said):
    with pytest.raises(DataError, match=said):
        ScaledFeatures(values=values, scale=scale)


@pytest.mark.parametrize(
    ("x", "said"),
    [
        (torch.tensor([[1.0, 2.0], [3.0, torch.nan]]), r"x\[1, 1\] is nan"),
        (torch.tensor([[1.0, 2.0], [-torch.inf, 0.0]]), r"x\[1, 0\] is -inf"),
        (torch.zeros(2, 2, dtype=torch.int64), "float32, float16 or bfloat16 tensor; got torch.int64"),
        (torch.zeros(2), "2-d"),
    ],
)
def test_what_cannot_be_rounded_is_refused(x, said):
    with pytest.raises(DataError, match=said):
        ScaledFeatures.from_dense(x)


def test_rows_of_int8_without_scales_are_no_features():
    with pytest.raises(DataError, match=r"Rows of int8 need a scale each: ScaledFeatures"):
        graph_of(torch.zeros(3, 2)).replace(x=torch.zeros(3, 2, dtype=torch.int8))
    with pytest.raises(DataError, match="x has 2 rows, but the graph has 3 nodes"):
        graph_of(ScaledFeatures.from_dense(torch.zeros(2, 2)))
    with pytest.raises(DataError, match="row ids"):
        ScaledFeatures.from_dense(torch.zeros(2, 2)).rows(torch.tensor([2]))


def test_features_by_type_may_be_scaled():
    x = ScaledFeatures.from_dense(torch.tensor([[1.0, -2.0], [0.5, 0.0]]))
    graph = Graph.from_relations({("a", "to", "a"): [[0], [1]]}, x={"a": x})
    assert graph.nodes_of("a").x is x
    with pytest.raises(DataError, match="must be node ids in"):
        Graph.from_relations({("a", "to", "a"): [[0], [2]]}, x={"a": x})


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
