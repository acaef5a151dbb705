"""Models that take edges as a sparse matrix equal PyG, on the whole graph, in batches, in own layers."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.beside_pyg import Data, pyg
from tests.extras import NO_TORCH_SPARSE
from torch import nn
from torch_geometric.transforms import ToSparseTensor
from torch_geometric.utils import spmm

import graphbraid
from graphbraid.loader import NeighborLoader

pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning"),
    pytest.mark.filterwarnings("ignore:Sparse CS. tensor support:UserWarning"),
    pytest.mark.filterwarnings("ignore:Converting sparse tensor to CSR:UserWarning"),
    pytest.mark.filterwarnings("ignore::graphbraid.errors.RunsAsWrittenWarning"),
]
NODES, WIDTH = 40, 6
CLOSE = {"rtol": 1e-9, "atol": 1e-11}
KINDS = ["csr", pytest.param("coo", marks=pytest.mark.slow), "torch_sparse"]


@pytest.fixture
def in_double():
    """Ones that PyG makes itself have the default dtype."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def edges_of(seed=0, *, simple=True):
    draw = torch.Generator().manual_seed(seed)
    edges = torch.randint(NODES, (2, 4 * NODES), generator=draw)
    return torch.unique(edges[:, edges[0] != edges[1]], dim=1) if simple else edges


def matrix_of(kind, edges, weight=None, dtype=torch.float64, nodes=NODES):
    """Return a matrix with a row for each destination."""
    dst, src = edges.flip(0)
    order = (dst * nodes + src).argsort(stable=True)
    dst, src = dst[order], src[order]
    if kind == "torch_sparse":
        sparse = pytest.importorskip("torch_sparse", reason=NO_TORCH_SPARSE)
        value = None if weight is None else weight[order]
        return sparse.SparseTensor(row=dst, col=src, value=value, sparse_sizes=(nodes, nodes))
    values = torch.ones(len(order), dtype=dtype) if weight is None else weight[order]
    if kind == "coo":
        return torch.sparse_coo_tensor(torch.stack((dst, src)), values, (nodes, nodes)).coalesce()
    indptr = torch.cat((torch.zeros(1), torch.bincount(dst, minlength=nodes).cumsum(0))).long()
    return torch.sparse_csr_tensor(indptr, src, values, (nodes, nodes))


def rows(dtype=torch.float64, nodes=NODES):
    return torch.randn(nodes, WIDTH, generator=torch.Generator().manual_seed(2), dtype=dtype)


def check_equal(model, call, twin_call, **close):
    """Compare outputs and gradients of a model and a copy that PyTorch runs."""
    twin = copy.deepcopy(model)
    ours, theirs = call(model), twin_call(twin)
    torch.testing.assert_close(ours, theirs, **(close or CLOSE))
    for out in (ours, theirs):
        out.sin().sum().backward()
    for parameter, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, other.grad, **(close or CLOSE))


class Two(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.first, self.second = make(), make()

    def forward(self, x, adj_t):
        return self.second(self.first(x, adj_t).relu(), adj_t)


class Fused(pyg.MessagePassing):
    """A layer of one's own with a product in the place of messages."""

    def __init__(self, product, aggr="mean"):
        super().__init__(aggr=aggr)
        self.lin, self.product = nn.Linear(WIDTH, WIDTH), product

    def forward(self, x, adj_t):
        return self.propagate(adj_t, x=self.lin(x)) + x

    def message(self, x_j):
        return x_j

    def message_and_aggregate(self, adj_t, x):
        return self.product(adj_t, x, self.aggr)


class Weighted(pyg.MessagePassing):
    """A layer of one's own whose messages get the values of the matrix as edge weights."""

    def __init__(self):
        super().__init__(aggr="sum")
        self.lin = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, adj_t):
        return self.propagate(adj_t, x=self.lin(x), edge_weight=None)

    def message(self, x_j, x_i, edge_weight):
        message = x_i.sigmoid() * x_j.tanh()
        return message if edge_weight is None else message * edge_weight.view(-1, 1)


class Plain(nn.Module):
    """A product without a layer."""

    def __init__(self, product):
        super().__init__()
        self.lin, self.product = nn.Linear(WIDTH, WIDTH), product

    def forward(self, x, adj_t):
        return self.product(adj_t, self.lin(x))


LAYERS = {
    "GCN": lambda: pyg.GCNConv(WIDTH, WIDTH),
    "GCN as it is": lambda: pyg.GCNConv(WIDTH, WIDTH, normalize=False),
    "SAGE": lambda: pyg.SAGEConv(WIDTH, WIDTH),
    "SAGE max": lambda: pyg.SAGEConv(WIDTH, WIDTH, aggr="max"),
    "GIN": lambda: pyg.GINConv(nn.Linear(WIDTH, WIDTH)),
    "GAT": lambda: pyg.GATConv(WIDTH, WIDTH // 2, heads=2),
    "GEN": lambda: pyg.GENConv(WIDTH, WIDTH),
    "Transformer": lambda: pyg.TransformerConv(WIDTH, WIDTH // 2, heads=2),
    "LE": lambda: pyg.LEConv(WIDTH, WIDTH),
    "ClusterGCN": lambda: pyg.ClusterGCNConv(WIDTH, WIDTH, diag_lambda=0.3),
    "EG": lambda: pyg.EGConv(WIDTH, WIDTH, num_heads=2, num_bases=2, add_self_loops=False),
    "own mean": lambda: Fused(lambda adj_t, x, aggr: spmm(adj_t, x, reduce=aggr)),
    "own sum": lambda: Fused(lambda adj_t, x, aggr: spmm(adj_t, x, reduce=aggr), "sum"),
    "own max": lambda: Fused(lambda adj_t, x, aggr: spmm(adj_t, x, reduce=aggr), "max"),
    "own @": lambda: Fused(lambda adj_t, x, _: adj_t @ x),
    "own messages": Weighted,
    "plain @": lambda: Plain(lambda adj_t, x: adj_t @ x),
    "plain mean": lambda: Plain(lambda adj_t, x: spmm(adj_t, x, reduce="mean")),
}
LEFT_ALONE = {("SAGE", True), ("SAGE max", True), ("GIN", True), ("GAT", True), ("own max", True)}
"""Layers that run as written on a matrix with weights, which their readers or kernels do not take."""
WITH_BREAKS = {"EG"}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.usefixtures("in_double")
def test_a_batch_with_a_matrix_equals_pyg(name, kind, weighted):
    edges = edges_of()
    weight = torch.rand(edges.shape[1], dtype=torch.float64) + 0.1 if weighted else None
    matrix, x, model = matrix_of(kind, edges, weight), rows(), Two(LAYERS[name]).double()
    engine = graphbraid.compile(model)
    check_equal(model, lambda _: engine(x, matrix), lambda twin: twin(x, matrix))
    is_lowered = engine.why is None and not engine.breaks
    leaves = (name, weighted) in LEFT_ALONE and not (name.startswith("SAGE") and kind == "unweighted")
    assert is_lowered == (not leaves and name not in WITH_BREAKS), engine.explain()


@pytest.mark.parametrize("kind", ["csr", "torch_sparse"])
@pytest.mark.parametrize(
    "name", ["GEN", "Transformer", "LE", "ClusterGCN", "own mean", "own messages", "plain @"]
)
def test_the_whole_graph_with_a_matrix_equals_pyg(name, kind):
    torch.manual_seed(0)
    matrix, x = matrix_of(kind, edges_of(), dtype=torch.float32), rows(torch.float32)
    data = Data(x=x, adj_t=matrix, train_mask=torch.ones(NODES, dtype=torch.bool))
    model = Two(LAYERS[name])
    engine = graphbraid.compile(model, data)
    check_equal(model, lambda _: engine(), lambda twin: twin(x, matrix), rtol=2e-4, atol=2e-5)
    assert "uncompiled" not in engine.explain()
    assert not engine.breaks


@pytest.mark.parametrize("name", ["GCN", "SAGE", "own mean", "ClusterGCN"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.usefixtures("in_double")
def test_loaders_give_matrices_and_batches_are_trimmed(name, weighted, whole):
    edges = edges_of()
    weight = torch.rand(edges.shape[1], dtype=torch.float64) if weighted else None
    data = Data(x=rows(), edge_index=edges, edge_weight=weight, num_nodes=NODES)
    transform = ToSparseTensor(layout=torch.sparse_csr)
    if whole:
        data = Data(x=data.x, adj_t=matrix_of("csr", edges, weight))
    loader = NeighborLoader(
        data,
        [3, 2],
        batch_size=4,
        input_nodes=torch.arange(8),
        seed=0,
        transform=None if whole else transform,
    )
    model = Two(LAYERS[name]).double()
    engine = graphbraid.compile(model)
    for batch in loader:
        check_equal(
            model, lambda _, b=batch: engine(b), lambda twin, b=batch: twin(b.x, b.adj_t)[: b.batch_size]
        )
        model.zero_grad()
        if (name, weighted) not in LEFT_ALONE:
            assert engine.why is None
            assert f"level 2: {batch.batch_size} rows" in engine.explain(batch)
    loader.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["GCN", "GAT", "SAGE", "ClusterGCN", "own mean", "own messages"])
@pytest.mark.usefixtures("in_double")
def test_loops_and_repeated_edges_of_a_matrix_count_as_in_pyg(name, kind):
    matrix, x, model = matrix_of(kind, edges_of(simple=False)), rows(), Two(LAYERS[name]).double()
    engine = graphbraid.compile(model)
    check_equal(model, lambda _: engine(x, matrix), lambda twin: twin(x, matrix))
    replaces = kind == "torch_sparse"  # by self-loops of weight 1, as in a list
    assert name not in ("GCN", "GAT") or (engine.why is None) == replaces


def test_weights_that_are_written_over_count_from_then_on():
    edges, x = edges_of(), rows()
    matrix = matrix_of("csr", edges, torch.ones(edges.shape[1], dtype=torch.float64) / 3)
    model = Two(LAYERS["plain @"]).double()
    engine = graphbraid.compile(model, strict=True)
    engine(x, matrix)
    matrix.values().mul_(2)
    torch.testing.assert_close(engine(x, matrix), model(x, matrix), **CLOSE)


def test_data_whose_matrix_has_other_edges_than_its_list_run_as_written():
    x, matrix = rows(torch.float32), matrix_of("csr", edges_of(1), dtype=torch.float32)
    data = Data(x=x, edge_index=edges_of(), adj_t=matrix, train_mask=torch.ones(NODES, dtype=torch.bool))
    model = Two(LAYERS["SAGE"])
    engine = graphbraid.compile(model, data)
    torch.testing.assert_close(engine(), model(x, matrix))
    assert "other edges or weights than edge_index" in engine.explain()


def _scaled_in_place(adj_t, x):
    adj_t.values().mul_(2)
    return adj_t @ x


@pytest.mark.parametrize(
    "product",
    [
        lambda adj_t, x: adj_t.t() @ x,
        lambda adj_t, x: spmm(adj_t, x, reduce="min"),
        lambda adj_t, x: adj_t @ (adj_t @ adj_t) @ x,
        _scaled_in_place,
    ],
)
def test_products_that_are_no_sum_over_edges_run_as_written(product):
    edges, x = edges_of(), rows()
    weight = torch.rand(edges.shape[1], dtype=torch.float64)
    ours, theirs = (matrix_of("csr", edges, weight) for _ in range(2))
    model = Plain(product).double()
    engine = graphbraid.compile(model)
    check_equal(model, lambda _: engine(x, ours), lambda twin: twin(x, theirs))
    assert engine.why is not None or engine.breaks
    torch.testing.assert_close(ours.values(), theirs.values())


def test_a_matrix_of_another_size_or_with_learned_values_runs_as_written():
    edges, x = edges_of(), rows()
    weight = torch.rand(edges.shape[1], dtype=torch.float64, requires_grad=True)
    model = Two(LAYERS["plain @"]).double()
    engine = graphbraid.compile(model)
    matrix = matrix_of("csr", edges, weight)
    torch.testing.assert_close(engine(x, matrix), model(x, matrix), **CLOSE)
    assert "adj_t" in engine.explain()
    with pytest.raises(RuntimeError):
        engine(rows(nodes=NODES + 1), matrix)
    assert "40 rows and 40 columns, and there are 41 nodes" in engine.explain()
    with pytest.raises(RuntimeError):
        engine(x, matrix_of("csr", edges, torch.full((edges.shape[1],), 2)))
    assert "torch.int64" in engine.explain()


@given(seed=st.integers(0, 1000), reduce=st.sampled_from(["sum", "mean"]), weighted=st.booleans())
def test_products_equal_a_dense_one_on_any_graph(seed, reduce, weighted):
    edges, x = edges_of(seed, simple=False), rows()
    weight = torch.rand(edges.shape[1], dtype=torch.float64) if weighted else None
    engine = graphbraid.compile(Plain(lambda adj_t, x: spmm(adj_t, x, reduce=reduce)).double(), strict=True)
    dense = torch.zeros(NODES, NODES, dtype=torch.float64)
    values = torch.ones(edges.shape[1], dtype=torch.float64) if weight is None else weight
    dense.index_put_((edges[1], edges[0]), values, accumulate=True)
    if reduce == "mean":
        dense /= torch.bincount(edges[1], minlength=NODES).clamp(min=1).view(-1, 1)
    expected = dense @ engine.model.lin(x)
    torch.testing.assert_close(engine(x, matrix_of("csr", edges, weight)), expected, **CLOSE)


def shared(layout, edges, weight):
    """Return a matrix in the memory of its weights, whose order is that of the edges by row or column."""
    dst, src = edges.flip(0)
    if layout == "coo":
        return torch.sparse_coo_tensor(edges.flip(0), weight, (NODES, NODES), is_coalesced=True)
    outer, inner = (dst, src) if layout == "csr" else (src, dst)
    order = outer.argsort(stable=True)
    ends = torch.cat((torch.zeros(1), torch.bincount(outer, minlength=NODES).cumsum(0))).long()
    make = torch.sparse_csr_tensor if layout == "csr" else torch.sparse_csc_tensor
    return make(ends, inner[order], weight, (NODES, NODES))


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("layout", ["csr", "csc", "coo"])
def test_writes_to_the_tensor_that_a_matrix_is_made_of_count(layout, whole):
    edges, x = edges_of(), rows(torch.float32)
    edges = edges[:, (edges[1] * NODES + edges[0]).argsort()]
    weight = torch.rand(edges.shape[1])
    matrix = shared(layout, edges, weight)
    data = Data(x=x, adj_t=matrix, train_mask=torch.ones(NODES, dtype=torch.bool))
    model = Two(LAYERS["plain @"])
    engine = graphbraid.compile(model, data) if whole else graphbraid.compile(model)
    for _ in range(2):
        check_equal(
            model,
            lambda _: engine() if whole else engine(x, matrix),
            lambda twin: twin(x, matrix),
            rtol=2e-4,
            atol=2e-5,
        )
        assert engine.why is None, engine.explain()
        model.zero_grad()
        weight.mul_(1.5)


@pytest.mark.parametrize("kind", KINDS)
def test_values_that_learn_get_gradients(kind):
    edges, x = edges_of(), rows()
    weight = torch.rand(edges.shape[1], dtype=torch.float64, requires_grad=True)
    model = Two(LAYERS["plain @"]).double()
    engine = graphbraid.compile(model)
    grads = []
    for call in (engine, model):
        call(x, matrix_of(kind, edges, weight)).sin().sum().backward()
        grads.append(weight.grad)
        weight.grad = None
    torch.testing.assert_close(*grads, **CLOSE)
    assert "require gradients" in engine.explain()


@pytest.mark.parametrize("in_columns", [False, True])
def test_values_by_place_in_a_matrix_of_any_order_run_as_written(in_columns):
    def by_place(adj_t, x):
        values = adj_t.values() * torch.arange(adj_t.values().numel())
        return torch.sparse_csr_tensor(adj_t.crow_indices(), adj_t.col_indices(), values, adj_t.shape) @ x

    edges, x = edges_of(), rows()
    order = (edges[0] if in_columns else -edges[0]).argsort(stable=True)
    edges = edges[:, order]
    model = Plain(by_place).double()
    engine = graphbraid.compile(model)
    matrix = shared("csr", edges, torch.rand(edges.shape[1], dtype=torch.float64))
    check_equal(model, lambda _: engine(x, matrix), lambda twin: twin(x, matrix))
    assert "order" in engine.explain()


class BySize(Plain):
    """A model that compares the size of a parameter, or of entries, with that of its matrix."""

    def forward(self, x, adj_t):
        size = self.product(self, x, adj_t)
        return adj_t @ self.lin(x) if size else self.lin(x) - adj_t @ x


@pytest.mark.parametrize("kind", ["coo", "torch_sparse"])
@pytest.mark.parametrize(
    "asks",
    [
        lambda model, x, _: model.lin.weight.size(0) == x.size(0),
        lambda model, _, adj_t: model.lin.weight.size(0) == adj_t.size(0),
        lambda _, x, adj_t: x.mean(0).size(0) == adj_t.size(0),
        lambda _, x, adj_t: adj_t.is_coalesced() and adj_t.size(0) == adj_t.size(1) == x.size(0),
    ],
)
def test_forwards_that_ask_for_sizes_equal_pyg(asks, kind):
    matrix = matrix_of(kind, torch.cat((edges_of(), edges_of()[:, :9]), 1))
    x, model = rows(), BySize(asks).double()
    engine = graphbraid.compile(model)
    check_equal(model, lambda _: engine(x, matrix), lambda twin: twin(x, matrix))


@pytest.mark.parametrize(
    ("layout", "make", "kind"),
    [
        ("csc", Weighted, ValueError),
        ("coo", Weighted, RuntimeError),
        ("csc", lambda: pyg.GATConv(WIDTH, WIDTH, add_self_loops=False), ValueError),
        ("coo", lambda: pyg.GATv2Conv(WIDTH, WIDTH, add_self_loops=False), RuntimeError),
        ("csc", lambda: pyg.GCNConv(WIDTH, WIDTH), NotImplementedError),
        ("csc", lambda: pyg.APPNP(2, 0.1), NotImplementedError),
        ("csc", lambda: pyg.SGConv(WIDTH, WIDTH), NotImplementedError),
        ("csc", lambda: pyg.TAGConv(WIDTH, WIDTH), NotImplementedError),
    ],
)
def test_layers_fail_as_in_pyg_on_matrices_without_an_edge_list(layout, make, kind):
    edges, x = edges_of(), rows()
    model = pyg.Sequential("x, adj_t", [(make(), "x, adj_t -> x")]).double()
    matrix = shared("csc", edges, torch.ones(edges.shape[1], dtype=torch.float64))
    if layout == "coo":
        matrix = torch.sparse_coo_tensor(edges.flip(0), matrix.values(), (NODES, NODES))
    engine = graphbraid.compile(model)
    raised = []
    for call in (engine, model):
        with pytest.raises(kind) as error:
            call(x, matrix)
        raised.append((error.type, str(error.value)))
    assert raised[0] == raised[1]
    assert "no edge list of a matrix in layout CSC" in engine.explain()


@pytest.mark.usefixtures("in_double")
def test_a_batch_is_explained_in_inference_mode():
    matrix, x, model = matrix_of("csr", edges_of()), rows(), Two(LAYERS["GCN"]).double()
    engine = graphbraid.compile(model)
    with torch.inference_mode():
        assert "aggregate" in engine.explain(x, matrix)
        torch.testing.assert_close(engine(x, matrix), model(x, matrix), **CLOSE)
