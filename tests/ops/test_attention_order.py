"""GAT on a batch sums before its product or after it; both orders have PyG's results and gradients."""

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.beside_pyg import pyg
from tests.kernels import needs_kernels
from tests.ops.graphs import assert_same_bits_with_any_threads
from torch import nn
from torch_geometric.data import Data

import graphbraid
from graphbraid.estimates.machine import allocation_of
from graphbraid.fullgraph.batches import segments
from graphbraid.loader import NeighborLoader
from graphbraid.machine.hardware import Rates

pytestmark = needs_kernels
FREE = dict.fromkeys(("multiply_flops", "row_bytes", "stream_bytes"), float("inf"))
PRODUCT_FIRST, ARITHMETIC = Rates(**FREE), Rates(**FREE | {"multiply_flops": 1.0})
"""At these rates the product is always first, and the order with fewer multiplications is chosen."""


class Two(nn.Module):
    """Two layers; the rows between them want a gradient."""

    def __init__(self, channels, wide, classes, heads, *, concat=True, **options):
        super().__init__()
        self.first = pyg.GATConv(channels, wide, heads=heads, **options)
        self.last = pyg.GATConv(heads * wide, classes, heads=heads, concat=concat, **options)

    def forward(self, x, edge_index, edge_attr=None):
        x = F.elu(self.first(x, edge_index, edge_attr))
        return self.last(x, edge_index, edge_attr)


def batch_of(num_nodes=120, num_edges=700, channels=7, *, num_seeds=9, hops=(4, 3), features=0, hub=False):
    """A sampled batch. Some edges are stored loops or stand twice; a hub has edges from all nodes."""
    draw = torch.Generator().manual_seed(num_nodes)
    edges = torch.randint(num_nodes, (2, num_edges), generator=draw)
    edges[1, :10] = edges[0, :10]
    if hub:
        edges = torch.cat([edges, torch.stack([torch.arange(num_nodes), torch.zeros(num_nodes).long()])], 1)
    data = Data(torch.randn(num_nodes, channels, generator=draw), edges)
    if features:
        data.edge_attr = torch.randn(edges.shape[1], features, generator=draw)
    seeds = torch.arange(num_seeds)
    with NeighborLoader(data, list(hops), input_nodes=seeds, batch_size=num_seeds, seed=1) as loader:
        return next(iter(loader))


def results(model, batch, rates, monkeypatch, *, twice=False):
    """Outputs, those without gradients, and the gradients of all parameters."""
    monkeypatch.setattr(segments, "Rates", lambda: rates)
    model = copy.deepcopy(model)
    engine = graphbraid.compile(model, strict=True)
    torch.manual_seed(4)
    out = engine(batch)
    for keeps in (True, False) if twice else (False,):
        grads = torch.autograd.grad(out.square().sum(), [*model.parameters()], retain_graph=keeps)
    with torch.no_grad():
        torch.manual_seed(4)
        return [out.detach(), engine(batch), *grads]


def assert_near(found, expected):
    largest = max(float(one.abs().max()) for one in expected)  # some gradients are sums that cancel
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other.double(), rtol=2e-4, atol=5e-6 * largest)


def of_pyg(model, batch):
    """What :func:`results` returns, by PyG in float64."""
    model = copy.deepcopy(model).double()
    features = () if batch.edge_attr is None else (batch.edge_attr.double(),)
    out = model(batch.x.double(), batch.edge_index, *features)[: batch.batch_size]
    grads = torch.autograd.grad(out.square().sum(), [*model.parameters()])
    return [out.detach(), out.detach(), *grads]


@pytest.mark.parametrize("hub", [False, True])
@pytest.mark.parametrize("features", [0, 3])
@pytest.mark.parametrize("loops", [True, False])
@pytest.mark.parametrize(("heads", "concat"), [(1, True), (3, True), (4, False), (9, False)])
def test_both_orders_have_pygs_results(heads, concat, loops, features, hub, monkeypatch, compiled):
    torch.manual_seed(0)
    options = {"concat": concat, "add_self_loops": loops, "edge_dim": features or None}
    model = Two(7, 24, 40, heads, **options)
    batch = batch_of(features=features, hub=hub, hops=(-1, -1) if hub else (4, 3))
    expected = of_pyg(model, batch)
    sums = results(model, batch, ARITHMETIC, monkeypatch, twice=True)
    product = results(model, batch, PRODUCT_FIRST, monkeypatch)
    assert_near(sums, expected)
    assert_near(product, expected)
    assert hub or not torch.equal(sums[0], product[0])  # another order has other bits


@pytest.mark.parametrize("concat", [True, False])
def test_dropout_has_the_same_masks_in_both_orders(concat, monkeypatch):
    torch.manual_seed(0)
    model, batch = Two(5, 24, 40, 2, concat=concat, dropout=0.4), batch_of(channels=5)
    orders = [results(model, batch, rates, monkeypatch) for rates in (ARITHMETIC, PRODUCT_FIRST)]
    assert_near(*orders)
    assert not torch.equal(orders[0][0], orders[1][0])


@settings(max_examples=15, deadline=None)
@given(
    num_nodes=st.integers(10, 300),
    edges=st.integers(0, 6),
    channels=st.integers(1, 70),
    heads=st.integers(1, 9),
    wide=st.sampled_from([1, 8, 80]),
    concat=st.booleans(),
)
def test_both_orders_are_equal_at_any_sizes(num_nodes, edges, channels, heads, wide, concat):
    model = Two(channels, wide, 3, heads, concat=concat)
    batch = batch_of(num_nodes, num_nodes * edges, channels)
    with pytest.MonkeyPatch.context() as patch:
        orders = [results(model, batch, rates, patch) for rates in (ARITHMETIC, PRODUCT_FIRST)]
    assert_near(*orders)


def test_a_vector_or_a_weight_may_be_frozen(monkeypatch):
    torch.manual_seed(0)
    model, batch = Two(7, 24, 40, 3), batch_of()
    for frozen in (model.first.lin.weight, model.last.att_src):
        frozen.requires_grad_(False)
    expected = dict(
        zip(model.state_dict(), of_pyg(copy.deepcopy(model).requires_grad_(), batch)[2:], strict=True)
    )
    monkeypatch.setattr(segments, "Rates", lambda: ARITHMETIC)
    graphbraid.compile(model, strict=True)(batch).square().sum().backward()
    for name, one in model.named_parameters():
        assert (one.grad is not None) == one.requires_grad
        if one.requires_grad:
            assert_near([one.grad], [expected[name]])


def test_rows_of_a_whole_graph_have_gradients(monkeypatch):
    """Its transpose is known, so no pass makes it anew."""
    torch.manual_seed(0)
    model, batch, found = Two(5, 64, 9, 3), batch_of(channels=5, hops=(-1, -1)), []
    for rates in (ARITHMETIC, PRODUCT_FIRST):
        monkeypatch.setattr(segments, "Rates", lambda rates=rates: rates)
        x = batch.x.clone().requires_grad_()
        out = graphbraid.compile(copy.deepcopy(model), strict=True)(x, batch.edge_index)
        found.append([out.detach(), *torch.autograd.grad(out.square().sum(), [x])])
    assert not torch.equal(found[0][0], found[1][0])
    x = batch.x.double().requires_grad_()
    out = model.double()(x, batch.edge_index)
    expected = [out.detach(), *torch.autograd.grad(out.square().sum(), [x])]
    for one in found:
        assert_near(one, expected)


def test_bits_do_not_depend_on_threads(monkeypatch):
    torch.manual_seed(0)
    model = Two(64, 16, 20, 4, dropout=0.3)
    batch = batch_of(9000, 60000, 64, num_seeds=700, hops=(8, 5))
    found = assert_same_bits_with_any_threads(lambda: results(model, batch, Rates(), monkeypatch))
    product = results(model, batch, PRODUCT_FIRST, monkeypatch)
    assert_near(found, product)
    assert not torch.equal(found[0], product[0])


def test_sums_first_take_no_more_memory(monkeypatch):
    torch.manual_seed(0)
    model, batch = pyg.GAT(64, 64, 2, 20, heads=4), batch_of(9000, 60000, 64, num_seeds=700, hops=(8, 5))
    peaks = []
    for rates in (Rates(), PRODUCT_FIRST):
        monkeypatch.setattr(segments, "Rates", lambda rates=rates: rates)
        engine = graphbraid.compile(model, strict=True)
        engine(batch).sum().backward()
        peaks.append(allocation_of(lambda e=engine: e(batch).sum().backward(), batch.x.device).peak)
    written = allocation_of(lambda: model(batch.x, batch.edge_index)[:700].sum().backward(), batch.x.device)
    assert peaks[0] < 1.1 * peaks[1]
    assert 3 * peaks[0] < written.peak
