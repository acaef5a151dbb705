"""Dropout of sparse features ahead of the first weights: stored values are dropped as cells would be."""

import copy

import pytest
import torch
import torch.nn.functional as F
from tests.extras import NO_PYG
from tests.fullgraph.graphs import make_graph
from torch import nn

from graphbraid.fullgraph import Engine
from graphbraid.fullgraph.lowering.options import CompileOptions
from graphbraid.machine.hardware import Rates
from graphbraid.nn import GCNConv

FAST = Rates(sparse_values=1e12)  # so that the sparse path is chosen for graphs as small as these


class Net(nn.Module):
    """The usual model of citation graphs."""

    def __init__(self, channels, *, p=0.5, then=None):
        super().__init__()
        self.first, self.second = GCNConv(channels, 4), GCNConv(4, 3)  # narrower: they multiply first
        self.p, self.then = p, then

    def forward(self, x, edge_index):
        """Drop features, and what the first layer makes of them."""
        x = F.dropout(x, self.p, self.training)
        x = x if self.then is None else self.then(x)
        x = F.dropout(self.first(x, edge_index).relu(), 0.3, self.training)
        return self.second(x, edge_index)


def engines(graph, passes=None, **how):
    """An engine, and its twin of the same weights that multiplies dense features."""
    model, passes = Net(graph.x.shape[1], **how), CompileOptions().passes if passes is None else passes
    twin = copy.deepcopy(model)
    fast = Engine(model, graph, "train", CompileOptions(passes=passes, rates=FAST))
    return fast, Engine(twin, graph, "train", CompileOptions(passes=passes - {"input_path"}, rates=FAST))


def path_of_drop(engine):
    """How weights multiply the result of the first operation."""
    return engine.program.path_of(engine.program.ops[0].out)


def assert_equal_steps(fast, slow, seed):
    """Compare outputs and gradients of a step with the same masks."""
    found = []
    for engine in (fast, slow):
        torch.manual_seed(seed)
        out = engine()
        engine.zero_grad()
        out.square().sum().backward()
        found.append([out.detach(), *[p.grad.clone() for p in engine.parameters()]])
    for one, other in zip(*found, strict=True):
        assert one.abs().max() > 0
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("without", [(), ("prune",), ("prune", "locality")])
def test_steps_are_those_of_dense_features(sparse, without):
    graph = make_graph(sparse=sparse, density=0.2)
    fast, slow = engines(graph, CompileOptions().passes - set(without))
    assert (path_of_drop(fast), path_of_drop(slow)) == ("sparse", "dense")
    assert "sparse after dropout" in fast.explain()
    for seed in range(4):  # calls are bound in the third
        assert_equal_steps(fast, slow, seed)
    torch.testing.assert_close(fast.predict(), slow.predict())
    less, more = fast.floor(measure=True).operations[1].work, slow.floor().operations[1].work
    assert 0 < less.flops < more.flops


def test_the_features_given_stay_as_they_are():
    graph = make_graph(sparse=True, density=0.2)
    before = graph.x.values.clone()
    fast, _ = engines(graph)
    for _ in range(3):
        fast().sum().backward()
    assert torch.equal(graph.x.values, before)


def test_a_pass_that_is_repeated_drops_the_same_values():
    fast, slow = engines(make_graph(density=0.2))
    grads = []
    for engine in (fast, slow):
        torch.manual_seed(0)
        first = engine()
        engine()  # takes the memory of the first
        engine.zero_grad()
        first.square().sum().backward()
        grads.append([p.grad for p in engine.parameters()])
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("how", [{"then": torch.relu}, {"then": torch.tanh}, {"p": 0.0}])
def test_other_readers_keep_features_dense(how):
    fast, slow = engines(make_graph(density=0.2), **how)
    assert fast.program.settings.get("input_paths") is None
    for seed in range(3):
        assert_equal_steps(fast, slow, seed)


def test_gradients_that_are_differentiated_again_have_the_same_masks():
    pyg = pytest.importorskip("torch_geometric.nn", reason=NO_PYG)  # its layers' gradients have derivatives
    graph, found = make_graph(density=0.2), []
    model = Net(graph.x.shape[1])
    model.first, model.second = pyg.GCNConv(graph.x.shape[1], 4), pyg.GCNConv(4, 3)
    for passes in (CompileOptions().passes, CompileOptions().passes - {"input_path"}):
        engine = Engine(model, graph, "train", CompileOptions(passes=passes, rates=FAST))
        torch.manual_seed(0)
        out = engine()
        found.append(torch.autograd.grad(out.square().sum(), [*model.parameters()], create_graph=True))
    for one, other in zip(*found, strict=True):
        assert one.requires_grad
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_nothing_is_left_of_features_dropped_as_a_whole():
    graph = make_graph(density=0.2)
    fast, slow = engines(graph, p=1.0)
    assert path_of_drop(fast) == "dense"
    torch.manual_seed(0)
    one = fast()
    torch.manual_seed(0)
    torch.testing.assert_close(one, slow(), equal_nan=True)


def test_dense_features_stay_dense():
    graph, options = make_graph(), CompileOptions(rates=Rates(sparse_values=1.0))
    assert path_of_drop(Engine(Net(graph.x.shape[1]), graph, "train", options)) == "dense"
