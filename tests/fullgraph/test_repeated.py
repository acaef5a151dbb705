"""Kernel calls that are bound to their arguments: the same bits as calls that cross each time anew."""

import copy

import pytest
import torch
import torch.nn.functional as F
from tests.fullgraph.graphs import CHANNELS, CLASSES, make_graph
from tests.kernels import needs_kernels
from torch import nn

import graphbraid
from graphbraid import native
from graphbraid import nn as gnn
from graphbraid.fullgraph.step import planned_step
from graphbraid.fullgraph.step.tasks import BoundCall
from graphbraid.ops import reference
from graphbraid.ops.linear import tall_product

MODELS = {
    "gcn": lambda: gnn.GCN(CHANNELS, 8, CLASSES, 3, dropout=0.0),
    "gcn, dropout": lambda: gnn.GCN(CHANNELS, 8, CLASSES, 3, dropout=0.5),
    "sage": lambda: gnn.GraphSAGE(CHANNELS, 8, CLASSES, 2, dropout=0.3),
    "gin": lambda: gnn.GIN(CHANNELS, 8, CLASSES, 2),
    "gat": lambda: gnn.GAT(CHANNELS, 8, CLASSES, 2, heads=2),
    "mlp": lambda: gnn.MLP(CHANNELS, 8, CLASSES, 2),
}
GRAPHS = {
    "dense": {},
    "sparse": {"sparse": True, "density": 0.2},
    "binary": {"binary": "ones", "density": 0.4},
}


def steps(model, graph, count, *, change=lambda number, model: None):
    """Outputs and gradients of some steps of Adam."""
    engine = graphbraid.compile(model, graph)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    labels, found = graph.y[graph.split("train")], []
    torch.manual_seed(5)
    for number in range(count):
        change(number, model)
        optimizer.zero_grad()
        out = engine()
        F.cross_entropy(out, labels).backward()
        found.append([out.detach().clone(), *(p.grad.clone() for p in model.parameters())])
        optimizer.step()
    return engine, found


def each_time_anew(monkeypatch):
    monkeypatch.setattr(BoundCall, "__call__", BoundCall.run_once)


def bound_calls(engine):
    return engine.runner.training_step.plan.bound_calls


def pair(make):
    torch.manual_seed(0)
    model = make()
    return model, copy.deepcopy(model)


def assert_same_bits(ours, theirs):
    for number, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True)), f"step {number}"


@pytest.mark.parametrize("features", GRAPHS)
@pytest.mark.parametrize("kind", MODELS)
def test_steps_have_the_same_bits_bound_or_not(kind, features, monkeypatch):
    graph = make_graph(**GRAPHS[features])
    model, twin = pair(MODELS[kind])
    engine, ours = steps(model, graph, 6)
    if native.kernels() is not None:
        assert bound_calls(engine)
        assert all(call._bound for call in bound_calls(engine))
    each_time_anew(monkeypatch)
    _, theirs = steps(twin, graph, 6)
    assert_same_bits(ours, theirs)


def test_a_parameter_that_moves_is_read_where_it_is(monkeypatch):
    graph = make_graph()

    def change(number, model):
        for weight in model.parameters():
            if number == 3:
                weight.data = weight.data.clone() * 2
            elif number == 5 and weight.ndim == 2 and weight.shape[0] == weight.shape[1]:
                weight.data = weight.data.t()  # at the same address

    model, twin = pair(MODELS["gcn"])
    _, ours = steps(model, graph, 9, change=change)
    each_time_anew(monkeypatch)
    _, theirs = steps(twin, graph, 9, change=change)
    assert_same_bits(ours, theirs)


def test_masks_are_new_in_every_step_and_repeated_with_their_pass():
    graph = make_graph()
    model, _ = pair(MODELS["gcn, dropout"])
    engine, _ = steps(model, graph, 4)
    torch.manual_seed(1)
    first, second = engine().clone(), engine()
    assert not torch.equal(first, second)
    once = torch.autograd.grad(second.square().sum(), list(model.parameters()), retain_graph=True)
    again = torch.autograd.grad(second.square().sum(), list(model.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))


def test_gradients_that_are_kept_are_not_written_over():
    graph = make_graph()
    model, _ = pair(MODELS["gcn"])
    engine, _ = steps(model, graph, 4)
    kept = []
    for factor in range(1, 7):
        grads = torch.autograd.grad(factor * engine().sum(), list(model.parameters()))
        kept.append((factor, grads))
    for factor, grads in kept:
        for grad, one in zip(grads, kept[0][1], strict=True):
            torch.testing.assert_close(grad, factor * one)


def test_gradients_that_add_up_do():
    graph = make_graph()
    model, _ = pair(MODELS["sage"])
    model.eval()
    engine = graphbraid.compile(model, graph)
    for _ in range(6):
        engine().sum().backward()
    expected = torch.autograd.grad(engine().sum(), list(model.parameters()))
    for parameter, grad in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, 6 * grad)


@needs_kernels
def test_a_copy_made_on_the_way_is_never_bound():
    weight, out = torch.randn(4, 3), torch.empty(5, 3)
    rows = torch.randn(5, 4)
    call = BoundCall(lambda: tall_product(rows.clone(), weight, out=out))
    for _ in range(8):
        rows.normal_()
        call()
        torch.testing.assert_close(out, rows @ weight)
    assert not call._bound


@needs_kernels
def test_what_a_bound_call_was_given_is_kept():
    bind = native.kernels().bound.tall_product
    a, b, out = torch.ones(5, 4), torch.ones(4, 3), torch.zeros(5, 3)
    call = bind(a, b, out, False, None, None)
    del a, b
    torch.ones(5, 4), torch.full((4, 3), 7.0)  # would find the place
    call.run()
    assert (out == 4).all()


@needs_kernels
def test_what_a_kernel_refuses_it_refuses_when_bound():
    call = native.kernels().bound.tall_product(
        torch.ones(5, 4), torch.ones(3, 3), torch.zeros(5, 3), False, None, None
    )
    with pytest.raises(ValueError, match="b must have length 4; got 3"):
        call.run()
    with pytest.raises(TypeError):
        native.kernels().bound.tall_product(torch.ones(5, 4), None, torch.zeros(5, 3), False, None, None)


@needs_kernels
def test_a_failure_names_the_first_value_that_went_wrong_after_calls_were_bound():
    graph = make_graph()
    model, _ = pair(MODELS["gcn"])
    engine, _ = steps(model, graph, 4)
    with torch.no_grad():
        next(p for p in model.parameters() if isinstance(p, nn.Parameter)).fill_(torch.nan)
    engine()
    assert "is the first to go wrong" in engine.first_not_finite()


@pytest.mark.parametrize("nodes", ["some", "all"])
def test_the_gradient_of_the_outputs_is_spread_to_the_same_bits(monkeypatch, nodes):
    graph = make_graph(train=15 if nodes == "some" else 80)
    for_all = {"passes": graphbraid.fullgraph.ALL - {"prune"}}
    model, twin = pair(lambda: gnn.GCN(CHANNELS, 8, 20, 2, dropout=0.0))
    found = []
    for net, spread in ((model, planned_step.spread_rows), (twin, reference.spread_rows)):
        monkeypatch.setattr(planned_step, "spread_rows", spread)
        engine = graphbraid.compile(net, graph, **for_all)
        out = engine()
        out.square().sum().backward()
        found.append([out, *(p.grad for p in net.parameters())])
    assert_same_bits(*([some] for some in found))
