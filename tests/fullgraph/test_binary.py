"""Binary features: which are, and that their bits say what the features said."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.fullgraph.graphs import CHANNELS, CLASSES, make_graph
from tests.ops.bits import packed, zeros_and_ones

from graphbraid import SparseFeatures, nn
from graphbraid.fullgraph import Engine
from graphbraid.fullgraph.lowering.costs import cost_model
from graphbraid.fullgraph.lowering.options import CompileOptions
from graphbraid.machine.hardware import Rates
from graphbraid.ops import binary
from graphbraid.ops.binary import BinaryRows, binary_bytes, is_binary


@pytest.fixture(autouse=True)
def few_at_a_time(monkeypatch):
    """Small matrices are read in several chunks too."""
    monkeypatch.setattr(binary, "CELLS_AT_A_TIME", 700)


@given(
    shape=st.tuples(st.integers(0, 150), st.integers(0, 70)),
    density=st.sampled_from([0.0, 0.3, 1.0]),
    scaled=st.booleans(),
    sparse=st.booleans(),
    named=st.booleans(),
)
def test_bits_and_factors_are_the_features(shape, density, scaled, sparse, named):
    x = zeros_and_ones(*shape, density=density)
    draw = torch.Generator().manual_seed(shape[0])
    if scaled:
        x *= torch.randn(shape[0], 1, generator=draw)
    nodes = torch.randint(shape[0], (90,), generator=draw) if named and shape[0] else None
    features = SparseFeatures.from_dense(x) if sparse else x
    assert is_binary(features)
    rows = BinaryRows.of(features, nodes)
    expected = x if nodes is None else x[nodes]
    assert torch.equal(rows.by_row, packed((expected != 0).float()))
    assert torch.equal(rows.by_column, packed((expected != 0).float().t()))
    has_value = (expected != 0).any(1)
    value = expected.sum(1) / (expected != 0).sum(1).clamp(min=1)
    assert (rows.factors is None) == bool((value[has_value] == 1).all())
    if rows.factors is not None:
        torch.testing.assert_close(rows.factors, torch.where(has_value, value, 1))
    arrays = (rows.by_row, rows.by_column, torch.empty(len(expected)))
    assert binary_bytes(*expected.shape) == sum(array.nbytes for array in arrays)


@pytest.mark.parametrize("spoil", [2.0, -1.0, torch.nan, torch.inf])
@pytest.mark.parametrize("sparse", [False, True])
def test_one_other_number_in_the_last_row_is_seen(spoil, sparse):
    x = zeros_and_ones(100, 20)
    x[99, :3] = torch.tensor([1.0, 0.0, spoil])
    assert not is_binary(SparseFeatures.from_dense(x) if sparse else x)


def test_a_column_stored_twice_counts_as_its_sum():
    x = SparseFeatures(
        indptr=torch.tensor([0, 3]),
        indices=torch.tensor([1, 1, 4], dtype=torch.int32),
        values=torch.ones(3),
        num_cols=40,
    )
    assert not is_binary(x)
    halves = SparseFeatures(
        indptr=x.indptr, indices=x.indices, values=torch.tensor([0.5, 0.5, 1.0]), num_cols=40
    )
    assert is_binary(halves)
    assert torch.equal(BinaryRows.of(halves, None).by_row, torch.tensor([[0b10010], [0]], dtype=torch.int32))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_any_storage_is_read(dtype):
    x = (zeros_and_ones(50, 33) * 0.25).to(dtype)
    assert is_binary(x)
    rows = BinaryRows.of(x, None)
    assert rows.factors is not None
    assert rows.factors.dtype == torch.float32


def test_features_are_looked_at_only_where_bits_could_be_faster(monkeypatch):
    looks = []
    monkeypatch.setattr("graphbraid.fullgraph.lowering.costs.is_binary", lambda x: looks.append(x) or True)
    for density, expected in ((0.01, False), (0.5, True)):
        graph = make_graph(binary="ones", density=density, sparse=True)
        made = cost_model(graph, Rates(), rows=(80, 80), edges=(0,), hoist_bytes=0)
        assert made.is_binary == expected
        assert len(looks) == expected


def test_an_engine_looks_at_the_features_once(monkeypatch):
    looks = []
    monkeypatch.setattr("graphbraid.fullgraph.lowering.costs.is_binary", lambda x: looks.append(x) or True)
    graph = make_graph(binary="ones", density=0.5)
    model = nn.GCN(CHANNELS, 8, CLASSES, 2)
    engine = Engine(model, graph, graph.split("train"), CompileOptions(rates=Rates()))
    engine()
    engine.predict()
    assert len(looks) == 1
