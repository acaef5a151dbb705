"""Each layer against PyTorch Geometric's of the same name and parameters: values and all gradients."""

import itertools

import pytest
import torch
from tests.beside_pyg import pyg
from tests.nn.cases import edge_index, graph_with_weights, without_stored_loops
from tests.ops.graphs import (
    assert_same_bits_with_any_threads,
    skewed,
    skip_where_torch_multiplies,
    square,
    values,
    without_edges,
)
from torch import nn

from graphbraid import Trainer
from graphbraid.errors import ConfigError, DataError
from graphbraid.graph import Graph
from graphbraid.graph.csc import Csc, coo_to_csc
from graphbraid.graph.sparse_features import SparseFeatures
from graphbraid.loader import NeighborLoader
from graphbraid.nn import GCN, GATConv, GATv2Conv, GCNConv, GINConv, SAGEConv, gcn

LAYERS = {
    "gcn": (GCNConv, pyg.GCNConv, {}),
    "gcn without bias": (GCNConv, pyg.GCNConv, {"bias": False}),
    "gcn without loops": (GCNConv, pyg.GCNConv, {"add_self_loops": False}),
    "gcn plain sum": (GCNConv, pyg.GCNConv, {"normalize": False}),
    "sage": (SAGEConv, pyg.SAGEConv, {}),
    "sage sum": (SAGEConv, pyg.SAGEConv, {"aggr": "sum", "bias": False}),
    "sage max": (SAGEConv, pyg.SAGEConv, {"aggr": "max"}),
    "sage without root": (SAGEConv, pyg.SAGEConv, {"root_weight": False}),
    "sage normalised": (SAGEConv, pyg.SAGEConv, {"normalize": True}),
    "sage projected": (SAGEConv, pyg.SAGEConv, {"project": True}),
    "sage projected max": (SAGEConv, pyg.SAGEConv, {"project": True, "aggr": "max"}),
    "gat": (GATConv, pyg.GATConv, {}),
    "gat heads": (GATConv, pyg.GATConv, {"heads": 3, "negative_slope": 0.1}),
    "gat mean": (GATConv, pyg.GATConv, {"heads": 3, "concat": False, "residual": True}),
    "gat without loops": (GATConv, pyg.GATConv, {"add_self_loops": False, "bias": False}),
    "gatv2": (GATv2Conv, pyg.GATv2Conv, {}),
    "gatv2 heads": (GATv2Conv, pyg.GATv2Conv, {"heads": 3, "negative_slope": 0.1}),
    "gatv2 mean": (GATv2Conv, pyg.GATv2Conv, {"heads": 3, "concat": False, "residual": True}),
    "gatv2 shared": (GATv2Conv, pyg.GATv2Conv, {"heads": 2, "share_weights": True, "bias": False}),
    "gatv2 without loops": (GATv2Conv, pyg.GATv2Conv, {"add_self_loops": False}),
}


def pair(name, in_channels, out_channels):
    """Our layer and PyG's with the same parameters, in float64 so that only real differences show."""
    ours, theirs, options = LAYERS[name]
    torch.manual_seed(0)
    layer = ours(in_channels, out_channels, **options).double()
    twin = theirs(in_channels, out_channels, **options).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))  # biases start at 0
    twin.load_state_dict(layer.state_dict())
    return layer, twin


def assert_equal_with_gradients(layer, out, x, twin, expected, x_twin):
    torch.testing.assert_close(out, expected)
    grad = values(*out.shape, dtype=torch.float64, seed=11)
    out.backward(grad)
    expected.backward(grad)
    torch.testing.assert_close(x.grad, x_twin.grad)
    theirs = dict(twin.named_parameters())
    for name, parameter in layer.named_parameters():
        torch.testing.assert_close(parameter.grad, theirs[name].grad, msg=lambda m, name=name: f"{name}: {m}")


def two_inputs(*shape):
    return values(*shape, dtype=torch.float64, grad=True), values(*shape, dtype=torch.float64, grad=True)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("widths", [(4, 9), (9, 4)])
def test_layer_equals_pyg_on_a_graph_with_self_loops(name, widths):
    csc = square()
    layer, twin = pair(name, *widths)
    x, x_twin = two_inputs(50, widths[0])
    assert_equal_with_gradients(layer, layer(x, csc), x, twin, twin(x_twin, edge_index(csc)), x_twin)


@pytest.mark.parametrize("name", [name for name in LAYERS if "gcn" not in name])
def test_layer_equals_pyg_on_a_block(name):
    csc = skewed()
    layer, twin = pair(name, 5, 7)
    x, x_twin = two_inputs(60, 5)
    expected = twin((x_twin, x_twin[:40]), edge_index(csc))
    assert_equal_with_gradients(layer, layer(x, csc), x, twin, expected, x_twin)


@pytest.mark.parametrize("name", ["gcn", "gcn without loops"])
def test_gcn_on_a_block_equals_pyg_on_its_edges_among_all_sources(name):
    csc = skewed()
    layer, twin = pair(name, 5, 7)
    x, x_twin = two_inputs(60, 5)
    assert_equal_with_gradients(layer, layer(x, csc), x, twin, twin(x_twin, edge_index(csc))[:40], x_twin)


@pytest.mark.parametrize("name", ["gcn", "gcn without loops", "gcn plain sum"])
def test_gcn_with_edge_weights_equals_pyg(name):
    csc = graph_with_weights()
    layer, twin = pair(name, 5, 7)
    x, x_twin = two_inputs(50, 5)
    out = layer(x, csc)
    expected = twin(x_twin, edge_index(csc), csc.weight.double())
    torch.testing.assert_close(out, expected)
    grad = values(*out.shape, dtype=torch.float64, seed=11)
    a, b = torch.autograd.grad(out, x, grad)[0], torch.autograd.grad(expected, x_twin, grad)[0]
    torch.testing.assert_close(a, b)


@pytest.mark.parametrize("weighted", [False, True])
def test_gcn_improved_equals_pyg_given_explicit_weights(weighted):
    csc = graph_with_weights()
    weight = csc.weight
    if not weighted:  # PyG ignores `improved` without weights, against its documentation
        csc.weight = None
        csc = without_stored_loops(csc)
        weight = torch.ones(csc.num_edges)
    layer, twin = GCNConv(5, 7, improved=True), pyg.GCNConv(5, 7, improved=True)
    twin.load_state_dict(layer.state_dict())
    x = values(50, 5)
    torch.testing.assert_close(layer(x, csc), twin(x, edge_index(csc), weight), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("weighted", [False, True])
def test_gcn_on_a_block_of_all_neighbours_with_the_graphs_degrees_equals_the_graphs_rows(weighted):
    csc = graph_with_weights()
    if weighted:
        csc = without_stored_loops(csc)
        degree = torch.zeros(50).index_add(0, csc.destinations().long(), csc.weight)
    else:
        csc.weight = None
        degree = without_stored_loops(csc).degrees().float()
    layer, x = GCNConv(5, 7), values(50, 5)
    first = slice(0, int(csc.indptr[20]))
    block = Csc(csc.indptr[:21], csc.indices[first], 50, csc.weight[first] if weighted else None, degree)
    torch.testing.assert_close(layer(x, block), layer(x, csc)[:20], rtol=1e-5, atol=1e-5)


def test_gcn_with_the_graphs_degrees_is_unbiased_over_sampled_neighbours():
    """Each set of neighbours is drawn equally often: the mean over all is the expectation, exactly."""
    degree, fanout = 6, 2
    full = Csc(
        torch.tensor([0, degree, *[degree] * degree]), torch.arange(1, degree + 1, dtype=torch.int32), 7
    )
    layer, x = GCNConv(3, 2, bias=False), values(7, 3)
    rows = []
    for drawn in itertools.combinations(range(1, degree + 1), fanout):
        block = Csc(torch.tensor([0, fanout]), torch.tensor(drawn, dtype=torch.int32), 7)
        block.src_degree = full.degrees().float()
        rows.append(layer(x, block)[0])
    assert len(rows) == 15
    torch.testing.assert_close(torch.stack(rows).mean(0), layer(x, full)[0])


@pytest.mark.parametrize("add_self_loops", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_gcn_on_all_neighbours_equals_the_graph_with_weights_below_0_and_repeated_loops(
    add_self_loops, weighted
):
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(0, 40, (2, 150), generator=generator)
    edges = (
        edges[:, edges[0] != edges[1]]
        if weighted
        else torch.cat([edges, edges[:, :20], edges[:1, :20].repeat(2, 2)], 1)
    )
    weight = torch.randint(-2, 3, (edges.shape[1],), generator=generator).float() if weighted else None
    x = torch.randn(40, 5, generator=generator)
    graph = Graph.from_edge_index(edges, 40, x=x, edge_weight=weight)
    layer = GCNConv(5, 7, add_self_loops=add_self_loops)
    expected = layer(x, graph.csc)
    assert not weighted or expected.isnan().any() != expected.isnan().all()  # of degrees below 0
    for batch in NeighborLoader(graph, [-1], batch_size=16, src_degree=True):
        [block] = batch.blocks
        found = layer(batch.x, block)
        torch.testing.assert_close(found, expected[batch.input_id], equal_nan=True)


def test_draws_do_not_estimate_degrees_of_weights_below_0_nor_several_loops_with_weights():
    edges = torch.tensor([[0, 1, 2, 2], [1, 2, 2, 2]])
    negative = Graph.from_edge_index(
        edges[:, :2], 3, x=torch.ones(3, 2), edge_weight=torch.tensor([1.0, -1.0])
    )
    with pytest.raises(ConfigError, match="a weight is below 0"):
        NeighborLoader(negative, [1], src_degree=True)
    NeighborLoader(negative, [1]).close()
    loops = Graph.from_edge_index(
        edges,
        3,
        x=torch.ones(3, 2),
        y=torch.arange(3),
        splits={"train": torch.arange(3)},
        edge_weight=torch.ones(4),
    )
    model = GCN(2, 4, 3, 1)
    Trainer(model, loops, fanouts=(-1,), epochs=1).fit()
    for conv in model.modules():
        conv.add_self_loops = False
    with pytest.raises(DataError, match="node 2 has several self-loops with weights"):
        Trainer(model, loops, fanouts=(-1,), epochs=1).fit()
    Trainer(model, loops, mode="full", epochs=1).fit()


def test_gin_refuses_an_eps_beyond_float32():
    with pytest.raises(ConfigError, match="eps"):
        GINConv(nn.Linear(5, 8), eps=-1e308)


@pytest.mark.parametrize("train_eps", [False, True])
def test_gin_equals_pyg(train_eps):
    csc = square()
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 7)).double()
    layer = GINConv(network, eps=0.3, train_eps=train_eps).double()
    twin = pyg.GINConv(
        nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 7)), eps=0.3, train_eps=train_eps
    ).double()
    twin.load_state_dict(layer.state_dict())
    x, x_twin = two_inputs(50, 5)
    assert_equal_with_gradients(layer, layer(x, csc), x, twin, twin(x_twin, edge_index(csc)), x_twin)


@pytest.mark.parametrize("name", LAYERS)
def test_layers_start_as_pyg_starts_them(name):
    ours, theirs, options = LAYERS[name]
    layer, twin = ours(400, 300, **options), theirs(400, 300, **options)
    starts = dict(twin.named_parameters())
    assert {n: p.shape for n, p in layer.named_parameters()} == {n: p.shape for n, p in starts.items()}
    for parameter_name, parameter in layer.named_parameters():
        bound, wanted = parameter.abs().max(), starts[parameter_name].abs().max()
        torch.testing.assert_close(bound, wanted, rtol=0.02, atol=0.0)
    torch.manual_seed(1)
    layer.reset_parameters()
    weight = next(p for p in layer.parameters() if p.ndim > 1).clone()
    torch.manual_seed(1)
    layer.reset_parameters()
    assert torch.equal(next(p for p in layer.parameters() if p.ndim > 1), weight)


@pytest.mark.parametrize("name", LAYERS)
def test_sparse_and_dense_features_give_the_same_layer(name):
    csc = square()
    ours, _, options = LAYERS[name]
    layer = ours(30, 7, **options)
    dense = values(50, 30) * (values(50, 30, seed=3) > 0.8)
    x = SparseFeatures.from_dense(dense)
    torch.testing.assert_close(layer(x, csc), layer(dense, csc), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize(("num_dst", "num_src"), [(0, 0), (0, 4), (3, 4)])
def test_layers_take_graphs_without_edges(name, num_dst, num_src):
    ours, _, options = LAYERS[name]
    layer = ours(5, 7, **options)
    x = values(num_src, 5, grad=True)
    out = layer(x, without_edges(num_dst, num_src))
    assert out.shape[0] == num_dst
    assert out.isfinite().all()
    out.sum().backward()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("name", ["gcn", "sage", "sage max", "gat heads", "gatv2 heads"])
def test_bits_do_not_depend_on_the_number_of_threads(name):
    skip_where_torch_multiplies()
    csc = skewed(800, 1000, seed=2)
    ours, _, options = LAYERS[name]
    layer = ours(16, 8, **options)
    x = values(1000, 16, grad=True)

    def run():
        out = layer(x, csc)
        return [out.detach(), *torch.autograd.grad(out.square().sum(), [x, *layer.parameters()])]

    assert_same_bits_with_any_threads(run)


def test_attention_dropout_acts_in_training_only():
    csc, x = square(), values(50, 5)
    layer = GATConv(5, 7, heads=2, dropout=0.5)
    torch.manual_seed(0)
    first, second = layer(x, csc), layer(x, csc)
    assert not torch.equal(first, second)
    layer.eval()
    assert torch.equal(layer(x, csc), layer(x, csc))


def test_wrong_input_and_options_are_named():
    with pytest.raises(DataError, match=r"GCNConv needs x of shape \(50, 5\).*got \(50, 6\)"):
        GCNConv(5, 7)(torch.zeros(50, 6), square())
    with pytest.raises(ConfigError, match="only when it normalises"):
        GCNConv(5, 7, normalize=False, add_self_loops=True)
    with pytest.raises(ConfigError, match="'mean', 'max', 'sum', 'add'; got 'median'"):
        SAGEConv(5, 7, aggr="median")


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(
    ("num_src", "num_dst", "num_edges"), [(40, 40, 300), (9, 5, 30), (7, 0, 0), (1, 1, 4)]
)
def test_factors_of_gcn_have_the_bits_of_their_twin(num_src, num_dst, num_edges, dtype, monkeypatch):
    """Nodes without in-edges, repeated self-loops and sources that are no destinations are among them."""
    torch.manual_seed(0)
    ends = (
        torch.randint(num_src, (num_edges,)).to(dtype),
        torch.randint(max(num_dst, 1), (num_edges,)).to(dtype),
    )
    csc, _ = coo_to_csc(*ends, num_src, num_dst)
    for add_self_loops, fill in ((True, 1.0), (True, 2.0), (False, 1.0)):
        found = gcn._gcn_factors(csc, add_self_loops, fill, torch.float32)
        with monkeypatch.context() as patch:
            patch.setattr(gcn, "native_for", lambda _: None)
            expected = gcn._gcn_factors(csc, add_self_loops, fill, torch.float32)
        assert all(map(torch.equal, found[:2], expected[:2]))
        assert found[2:] == expected[2:]


# ---- dropout of the rows that attention sums


@pytest.fixture
def alone():
    """400 nodes without edges: each attends to itself alone, so its output is its own transformed row."""
    return Csc(torch.zeros(401, dtype=torch.int64), torch.empty(0, dtype=torch.int32), 400)


def test_row_dropout_drops_that_share_of_elements_and_scales_the_rest(alone):
    torch.manual_seed(0)
    conv = GATConv(5, 8, heads=2, row_dropout=0.25)
    x = torch.randn(400, 5)
    ratio = conv(x, alone) / conv.lin(x)
    dropped = ratio == 0
    assert dropped.float().mean().item() == pytest.approx(0.25, abs=0.03)  # 4.6 deviations of 6,400 draws
    torch.testing.assert_close(ratio[~dropped], torch.full_like(ratio[~dropped], 1 / 0.75))


def test_row_dropout_rests_while_evaluating(alone):
    conv = GATConv(5, 8, heads=2, row_dropout=0.25).eval()
    x = torch.randn(400, 5)
    torch.testing.assert_close(conv(x, alone), conv.lin(x))


@pytest.mark.parametrize("share", [-0.1, 1.0])
def test_a_row_dropout_that_is_no_probability_is_refused(share):
    with pytest.raises(ConfigError, match=rf"row_dropout must lie in \[0, 1\); got {share}"):
        GATConv(5, 8, row_dropout=share)
