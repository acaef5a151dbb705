"""Which of equal largest messages the gradient goes to: where PyG gives it, however PyG takes the maximum."""

import copy

import pytest
import torch
from tests.beside_pyg import pyg
from tests.fullgraph.graphs import make_graph
from tests.fullgraph.matrix.compare import LEFT_ALONE, LOWERED, assert_alike, engine_of, verdict
from tests.fullgraph.matrix.graphs import CHANNELS, CLASSES, data_of
from torch import nn

import graphbraid
from graphbraid import nn as gnn
from graphbraid.fullgraph.program import Maximum
from graphbraid.fullgraph.reading import aggregations

LAYERS = {
    "SAGEConv": lambda i, o: pyg.SAGEConv(i, o, aggr="max"),
    "SAGEConv, no root": lambda i, o: pyg.SAGEConv(i, o, aggr="max", root_weight=False),
    "GraphConv": lambda i, o: pyg.GraphConv(i, o, aggr="max"),
}
SHAPES = {"integers": nn.Identity, "relu": nn.ReLU, "no more than zero": lambda: nn.Hardtanh(-2.0, 0.0)}
"""Shapes of the rows under the maximum: equal ones of many values; many zeros; zeros that are the largest."""


class Tied(nn.Module):
    """A maximum of small integers, many of them equal although their rows of features are not.

    After one step of an optimizer rounding decides which are.
    """

    def __init__(self, layer, between):
        super().__init__()
        self.first, self.between = nn.Linear(CHANNELS, 8, bias=False), between()
        self.scale, self.last = nn.BatchNorm1d(8).eval(), layer(8, CLASSES)
        nn.init.constant_(self.scale.running_var, 1 - self.scale.eps)
        with torch.no_grad():
            self.first.weight.mul_(4).round_().clamp_(-1, 1)

    def forward(self, x, edge_index):
        return self.last(self.scale(self.between(self.first(x))), edge_index)


def pair(layer, between):
    torch.manual_seed(0)
    model = Tied(layer, between)
    return model, copy.deepcopy(model)


def whole_numbers(graph):
    data = data_of(graph)
    data.x = data.x.round().clamp(-1, 1)
    return data


def maxima(engine):
    return [op.ties for op in engine.program.ops if isinstance(op, Maximum)]


@pytest.mark.parametrize("between", SHAPES)
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("graph", ["untidy", "directed", "undirected"])
def test_gradients_of_ties_are_those_of_pyg(layer, between, graph):
    data = whole_numbers(graph)
    model, twin = pair(LAYERS[layer], SHAPES[between])
    engine = engine_of(model, data)
    assert verdict(engine) == LOWERED, engine.explain()
    assert maxima(engine) == ["shared with zero"]
    assert "an initial zero has a share" in engine.explain()
    assert_alike(model, twin, data, engine, steps=1)


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("between", SHAPES)
def test_the_first_has_it_where_pyg_multiplies_by_a_sparse_matrix(between):
    data = whole_numbers("directed")
    size = (data.num_nodes, data.num_nodes)
    ones = torch.ones(data.edge_index.shape[1])
    data.adj_t = torch.sparse_coo_tensor(data.edge_index.flip(0), ones, size).to_sparse_csr()
    del data.edge_index, data.edge_weight
    model, twin = pair(LAYERS["SAGEConv"], SHAPES[between])
    engine = engine_of(model, data)
    assert verdict(engine) == LOWERED, engine.explain()
    assert maxima(engine) == ["first"]
    assert_alike(model, twin, data, engine, steps=1)


@pytest.mark.parametrize("passes", [graphbraid.fullgraph.ALL, frozenset()])
def test_layers_of_graphbraid_share_as_they_do_by_themselves(passes):
    graph = make_graph()
    graph = graph.replace(x=graph.x.round())
    torch.manual_seed(0)
    model = gnn.GraphSAGE(graph.num_features, 8, CLASSES, 2, aggr="max", dropout=0.0)
    by_itself = copy.deepcopy(model)
    engine = graphbraid.compile(model, graph, passes=passes)
    assert maxima(engine) == ["shared", "shared"]
    nodes = graph.split("train")
    ours, theirs = engine(), by_itself(graph.x, graph.csc)[nodes]
    torch.testing.assert_close(ours, theirs)
    ours.square().sum().backward()
    theirs.square().sum().backward()
    for a, b in zip(model.parameters(), by_itself.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-5)


def test_what_pyg_does_is_seen_once_and_draws_no_random_number():
    aggregations._probe.cache_clear()
    for _ in range(2):
        state = torch.get_rng_state()
        model, _ = pair(LAYERS["SAGEConv"], SHAPES["relu"])
        before = torch.get_rng_state()
        assert verdict(engine_of(model, whole_numbers("directed"))) == LOWERED
        assert torch.equal(torch.get_rng_state(), before)
        torch.set_rng_state(state)
    assert aggregations._probe.cache_info().misses == 1


def test_it_is_seen_in_inference_mode_too():
    aggregations._probe.cache_clear()
    model, twin = pair(LAYERS["GraphConv"], SHAPES["relu"])
    data = whole_numbers("directed")
    with torch.inference_mode():
        engine = engine_of(model, data)
    assert maxima(engine) == ["shared with zero"]
    assert_alike(model, twin, data, engine, steps=1)


@pytest.mark.parametrize("shares", [((0.0, 1.0), (0.0, 1.0)), ((1.0, 0.0), (0.5, 0.5))])
def test_what_no_kernel_does_runs_as_it_is_written(monkeypatch, shares):
    monkeypatch.setattr(aggregations, "_probe", lambda *_: shares)
    model, twin = pair(LAYERS["SAGEConv"], SHAPES["relu"])
    data = whole_numbers("directed")
    engine = engine_of(model, data)
    assert verdict(engine) == LEFT_ALONE
    assert "shares the gradient of two equal ones and two zeros as" in engine.explain()
    assert_alike(model, twin, data, engine, steps=1)


def test_where_pyg_itself_fails_the_reason_is_said(monkeypatch):
    def fails(*_):
        raise NotImplementedError("no such reduction")

    monkeypatch.setattr(aggregations, "_probe", fails)
    model, _ = pair(LAYERS["SAGEConv"], SHAPES["relu"])
    engine = engine_of(model, whole_numbers("directed"))
    assert verdict(engine) == LEFT_ALONE
    assert "fails by itself here: no such reduction" in engine.explain()
