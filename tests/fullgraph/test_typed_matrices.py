"""Models that take a sparse matrix for each relation equal PyG, on the whole graph and in batches."""

import copy
from functools import partial

import pytest
import torch
from tests.beside_pyg import pyg
from tests.extras import NO_TORCH_SPARSE
from tests.fullgraph import typed_cases
from tests.fullgraph.typed_cases import COUNTS, LOOPED, MATRICES, OnMatrices, hetero, of, untidy
from tests.modules import module_of
from torch_geometric import loader as pyg_loader
from torch_geometric.transforms import ToSparseTensor

import graphbraid
from graphbraid.errors import DataError
from graphbraid.graph.interop.pyg import entries_of_any
from graphbraid.loader import NeighborLoader

pytestmark = [
    pytest.mark.filterwarnings("ignore:There exist node types"),
    pytest.mark.filterwarnings("ignore:Sparse"),
    pytest.mark.filterwarnings("ignore:Converting sparse tensor to CSR"),
    pytest.mark.filterwarnings("ignore:Using 'NeighborSampler' without"),
    pytest.mark.filterwarnings("ignore::graphbraid.errors.RunsAsWrittenWarning"),
]
LAYOUTS = {"csr": torch.sparse_csr, "coo": torch.sparse_coo, "torch_sparse": None}
LOOSE, CLOSE = {"rtol": 2e-4, "atol": 2e-5}, {"rtol": 1e-8, "atol": 1e-9}
SEEDS = torch.tensor([3, 0, 12, 7, 9])


def plain_data(*, weighted=False):
    data = untidy(only_sources=False).to_pyg()
    draw = torch.Generator().manual_seed(5)
    for store in data.edge_stores if weighted else ():
        store.edge_weight = torch.rand(store.edge_index.shape[1], generator=draw) + 0.1
    return data


def as_matrices(data, kind="csr"):
    if kind == "torch_sparse":
        pytest.importorskip("torch_sparse", reason=NO_TORCH_SPARSE)
    return ToSparseTensor(layout=LAYOUTS[kind])(copy.copy(data))


def valued(matrix, change):
    """Return a matrix of PyTorch with changed values."""
    if matrix.layout == torch.sparse_coo:
        return change(matrix.coalesce())
    parts = matrix.crow_indices(), matrix.col_indices(), change(matrix.values())
    return torch.sparse_csr_tensor(*parts, matrix.shape)


def in_double(data):
    for store in data.node_stores:
        store.x = store.x.double()
    for store in data.edge_stores:
        if isinstance(store.adj_t, torch.Tensor):
            store.adj_t = valued(store.adj_t, torch.Tensor.double)
        elif store.adj_t.has_value():
            store.adj_t = store.adj_t.set_value(store.adj_t.storage.value().double(), "coo")
    return data


def ready(make):
    """A model whose parameters have been made by a first run."""
    return typed_cases.ready(make, untidy(only_sources=False))


def call_of(data):
    return data.x_dict, data.adj_t_dict


def compiled(model, data, *, whole):
    """Return an engine, and a call of it on the whole graph or on the data's own dicts."""
    if whole:
        engine = graphbraid.compile(model, data, node_type="a", nodes=torch.arange(COUNTS["a"]))
        return engine, engine
    engine = graphbraid.compile(model)
    return engine, lambda: engine(*call_of(data))


def assert_trains_alike(run, model, run_twin, twin, steps=10, optim=torch.optim.Adam, **close):
    """Compare outputs, gradients, buffers and steps of an optimizer."""
    seen = []
    for call, one in ((run, model), (run_twin, twin)):
        optimizer, found = optim(one.parameters(), lr=0.01), []
        for _ in range(steps):
            optimizer.zero_grad()
            out = call()
            out.sin().sum().backward()
            grads = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in one.parameters()]
            found.append((out.detach().clone(), grads))
            optimizer.step()
        buffers = [buffer.clone() for buffer in one.buffers()]
        seen.append((found, [p.detach().clone() for p in one.parameters()], buffers))
    torch.testing.assert_close(*seen, **close)


@pytest.mark.parametrize("kind", ["csr", "torch_sparse"])
@pytest.mark.parametrize("name", MATRICES)
def test_the_whole_graph_equals_pyg(name, kind):
    data, model = as_matrices(plain_data(), kind), ready(MATRICES[name])
    twin = copy.deepcopy(model)
    engine, run = compiled(model, data, whole=True)
    loops = kind == "csr" and "mixed" in name  # PyG adds self-loops to such a matrix that has some already
    assert ("PyG treats self-loops" in engine.explain()) == loops
    assert ("uncompiled" in engine.explain()) == loops
    # In float32, Adam makes whole steps of gradients that are nothing but rounding.
    assert_trains_alike(
        run, model, lambda: twin(*call_of(data))["a"], twin, steps=2, optim=torch.optim.SGD, **LOOSE
    )


def batches_of(data):
    with NeighborLoader(data, [2, 2], ("a", SEEDS), batch_size=3, seed=1) as loader:
        return [*loader]


def dense_of(size, rows, columns, values):
    """Return the sums of entries; torch-sparse's own ``to_dense`` keeps one of several of an edge."""
    values = torch.ones(len(rows)) if values is None else values
    return torch.zeros(size).index_put_((rows, columns), values, accumulate=True)


@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize("weighted", [False, True])
def test_batches_of_matrices_have_the_edges_of_those_of_lists(kind, weighted):
    lists = plain_data(weighted=weighted)
    matrices = as_matrices(lists, kind)
    for store in lists.edge_stores:  # in the order of the matrix
        dst, src, value = entries_of_any(matrices[store._key].adj_t)
        store.edge_index, store.edge_weight = (
            torch.stack((src, dst)),
            torch.ones(len(src)) if value is None else value,
        )
    for ours, theirs in zip(*map(batches_of, (matrices, lists)), strict=True):
        for edge_type in lists.edge_types:
            size = tuple(theirs[end].num_nodes for end in (edge_type[-1], edge_type[0]))
            edges, weight = theirs[edge_type].edge_index, theirs[edge_type].edge_weight
            torch.testing.assert_close(
                dense_of(size, *entries_of_any(ours[edge_type].adj_t)),
                dense_of(size, edges[1], edges[0], weight),
            )
            assert "edge_index" not in ours[edge_type]


def test_edges_that_are_held_twice_are_refused():
    data = as_matrices(plain_data())
    data[LOOPED].edge_index = plain_data()[LOOPED].edge_index
    with pytest.raises(DataError, match="has both of edge_index and adj_t; give it one of them"):
        batches_of(data)


@pytest.mark.parametrize("kind", ["csr", "torch_sparse"])
@pytest.mark.parametrize("name", MATRICES)
def test_batches_equal_pyg(name, kind):
    model = ready(MATRICES[name]).double()
    twin, batches = copy.deepcopy(model), batches_of(in_double(as_matrices(plain_data(), kind)))
    engine = graphbraid.compile(model)
    assert_trains_alike(
        lambda: torch.cat([engine(batch) for batch in batches]),
        model,
        lambda: torch.cat([twin(one.x_dict, one.adj_t_dict)["a"][: one["a"].batch_size] for one in batches]),
        twin,
        **CLOSE,
    )
    assert (engine.why is None) == (kind != "csr" or "mixed" not in name), engine.explain()
    assert not engine.breaks


@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize("whole", [False, True])
def test_weights_in_matrices_equal_pyg(kind, whole):
    data, model = as_matrices(plain_data(weighted=True), kind), ready(MATRICES["GraphConv on adj_t"])
    twin = copy.deepcopy(model)
    if not whole:
        model, twin, data = last_of(model).double(), twin.double(), in_double(data)
    engine, run = compiled(model, data, whole=whole)
    close, optim = (LOOSE, torch.optim.SGD) if whole else (CLOSE, torch.optim.Adam)
    run_twin = partial(last_of(twin), *call_of(data))
    assert_trains_alike(run, model, run_twin, twin, steps=2, optim=optim, **close)
    repeated = kind == "coo"  # entries that PyG's products may add up
    assert ("PyG treats self-loops" in engine.explain()) == repeated


def last_of(model):
    """A model's outputs of one type."""
    return module_of(lambda self, x_dict, adj_t_dict: self.model(x_dict, adj_t_dict)["a"], model=model)


def changed(data, change, edge_type=LOOPED):
    """Return the data with another matrix of one relation."""
    data = copy.copy(data)
    data[edge_type].adj_t = change(data[edge_type].adj_t)
    return data


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda matrix: matrix.to_dense(), "not a sparse matrix in layout"),
        (lambda matrix: valued(matrix, lambda one: one.clone().requires_grad_()), "require gradients"),
        (lambda matrix: matrix.to_sparse_coo(), "several kinds"),
        (lambda matrix: valued(matrix, torch.Tensor.double), "torch.float64"),
    ],
)
def test_matrices_that_have_no_form_run_as_written(change, reason):
    data = changed(as_matrices(plain_data(weighted=True)), change)
    engine = graphbraid.compile(last_of(ready(MATRICES["GraphConv on adj_t"])))
    outputs = []
    for call in (engine, engine.model):
        try:
            outputs.append(call(*call_of(data)))
        except (RuntimeError, ValueError) as error:  # PyG's own, of dense matrices and other dtypes
            outputs.append(str(error))
    if isinstance(outputs[1], torch.Tensor):
        torch.testing.assert_close(*outputs)
    else:
        assert outputs[0] == outputs[1]
    assert reason in engine.explain()


def test_matrices_of_another_size_run_as_written():
    data = as_matrices(plain_data())
    engine = graphbraid.compile(last_of(ready(MATRICES["GraphConv on adj_t"])))
    x_dict = data.x_dict | {"b": torch.cat((data["b"].x, data["b"].x[:1]))}
    with pytest.raises((RuntimeError, IndexError)):
        engine(x_dict, data.adj_t_dict)
    assert "it has 14 rows and 9 columns, and there are 14 and 10 nodes" in engine.explain()


def writes_first(self, x_dict, adj_t_dict):
    """Write over the values of a matrix before the layers read it."""
    self.write(adj_t_dict[LOOPED])
    return self.model(x_dict, adj_t_dict)["a"]


@pytest.mark.parametrize(
    ("kind", "write"),
    [
        ("csr", lambda matrix: matrix.values().mul_(2)),
        ("csr", lambda matrix: matrix.mul_(2)),
        ("coo", lambda matrix: matrix._values().mul_(2)),
        ("torch_sparse", lambda matrix: matrix.storage._value.mul_(2)),
        ("torch_sparse", lambda matrix: matrix.set_value_(matrix.storage.value() * 2, "coo")),
        ("torch_sparse", lambda matrix: matrix.fill_value_(2.0)),
    ],
)
@pytest.mark.parametrize("whole", [False, True])
def test_forwards_that_write_over_a_matrix_run_as_written(kind, write, whole):
    ours, theirs = (as_matrices(plain_data(weighted=True), kind) for _ in range(2))
    model = module_of(writes_first, model=ready(MATRICES["GraphConv on adj_t"]), write=write)
    engine, run = compiled(model, ours, whole=whole)
    for _ in range(2):
        torch.testing.assert_close(run(), model(*call_of(theirs)), **LOOSE)
    assert "uncompiled" in engine.explain()


@pytest.mark.parametrize("kind", ["csr", "torch_sparse"])
@pytest.mark.parametrize("whole", [False, True])
def test_weights_that_are_written_over_count_from_then_on(kind, whole):
    data, model = as_matrices(plain_data(weighted=True), kind), last_of(ready(MATRICES["GraphConv on adj_t"]))
    engine, run = compiled(model, data, whole=whole)
    for _ in range(3):
        torch.testing.assert_close(run(), model(*call_of(data)), **LOOSE)
        assert engine.why is None, engine.explain()
        matrix = data[LOOPED].adj_t
        (matrix.values() if kind == "csr" else matrix.storage._value).mul_(1.5)
        if kind == "torch_sparse":
            matrix.set_value_(matrix.storage.value() + 1, "coo")


def test_a_matrix_with_other_edges_than_the_list_beside_it_runs_as_written():
    data, other = plain_data(), as_matrices(untidy(7, only_sources=False).to_pyg())
    for edge_type in data.edge_types:
        data[edge_type].adj_t = other[edge_type].adj_t
    model = ready(MATRICES["SAGEConv on adj_t"])
    engine, run = compiled(model, data, whole=True)
    torch.testing.assert_close(run(), model(*call_of(data))["a"], **LOOSE)
    assert "other edges or weights than edge_index" in engine.explain()


def test_batches_of_pygs_loader_equal_pyg():
    pytest.importorskip("torch_sparse", reason=NO_TORCH_SPARSE)
    data, model = plain_data(), ready(MATRICES["to_hetero SAGEConv on adj_t"]).double()
    options = {"num_neighbors": [2, 2], "batch_size": 5, "input_nodes": ("a", SEEDS)}
    engine = graphbraid.compile(model, strict=True)
    for given in ({"data": data, "transform": ToSparseTensor()}, {"data": ToSparseTensor()(copy.copy(data))}):
        for batch in pyg_loader.NeighborLoader(**given, **options):
            expected = model(*call_of(in_double(batch)))["a"][: batch["a"].batch_size]
            torch.testing.assert_close(engine(batch), expected, **CLOSE)


@pytest.mark.parametrize("whole", [False, True])
def test_a_maximum_over_rows_of_any_order_has_pygs_gradients(whole):
    data = as_matrices(plain_data())
    matrix = data[LOOPED].adj_t
    rows = matrix.to_sparse_coo().indices()[0]
    order = (rows * 1000 - matrix.col_indices()).argsort()  # columns fall in each row
    data[LOOPED].adj_t = torch.sparse_csr_tensor(
        matrix.crow_indices(), matrix.col_indices()[order], matrix.values(), matrix.shape
    )
    data["a"].x = data["a"].x.round().clamp(-1, 1)
    layer = hetero(of(pyg.SAGEConv, aggr="max"), widths=(3,))
    model = last_of(OnMatrices(ready(layer)))
    grads = []
    engine, run = compiled(model, data, whole=whole)
    for call in (lambda: model(*call_of(data)), run):
        model.zero_grad()
        call().sin().sum().backward()
        grads.append([parameter.grad for parameter in model.parameters()])
    assert ("rows are not sorted" in engine.explain()) == whole
    torch.testing.assert_close(*grads, **LOOSE)
