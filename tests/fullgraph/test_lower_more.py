"""Models of the matrix under any passes, trained for a while and on a device; what their layers share.

Each by itself on graphs of every kind stands in the matrix.
"""

from itertools import chain

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from tests.beside_pyg import pyg
from tests.fullgraph.fake_device import FakeDevice
from tests.fullgraph.matrix.case import layer
from tests.fullgraph.matrix.cases_layers import LAYERS
from tests.fullgraph.matrix.cases_propagation import PROPAGATION, propagating, ready
from tests.fullgraph.matrix.cases_rowwise import ROWWISE
from tests.fullgraph.matrix.compare import LEFT_ALONE, LOWERED, Plain, assert_alike, engine_of, verdict
from tests.fullgraph.matrix.graphs import CHANNELS, data_of
from tests.fullgraph.matrix.models import Stack
from tests.suites import every

import graphbraid
from graphbraid import Graph, native
from graphbraid.fullgraph import ALL, Engine
from graphbraid.fullgraph.device import HOST
from graphbraid.fullgraph.lowering.options import CompileOptions
from graphbraid.fullgraph.step.operations import attention
from graphbraid.machine.hardware import Rates

CASES = {case.id: case for case in chain(PROPAGATION, ROWWISE, LAYERS) if case.expected == LOWERED}


def made(name):
    torch.manual_seed(1)
    return CASES[name].make()


def loss_of(out, data):
    return F.cross_entropy(out, data.y[data.train_mask])


def loss_and_gradients(model, loss):
    model.zero_grad()
    loss.backward()
    grads = [torch.zeros(()) if p.grad is None else p.grad.clone() for p in model.parameters()]
    return [loss.detach(), *grads]


@pytest.mark.slow
@given(
    name=st.sampled_from(sorted(CASES)),
    passes=st.sets(st.sampled_from(sorted(ALL))),
    graph=st.sampled_from(["untidy", "directed", "undirected"]),
)
def test_any_choice_of_passes_gives_the_same_numbers(name, passes, graph):
    data = CASES[name].prepare(data_of(graph))
    model, twin = made(name), made(name)
    engine = graphbraid.compile(model, data, nodes=data.train_mask, passes=passes)
    assert verdict(engine) == LOWERED, engine.explain()
    assert_alike(model, twin, data, engine, steps=1)


TRAINED = list({case.part: name for name, case in CASES.items()}.values())
"""The last case of each part."""


def losses(name, how):
    data, model = CASES[name].prepare(data_of("untidy")), made(name)
    run = engine_of(model, data) if how == "compiled" else Plain(model, data, getattr(torch, how))
    optimizer = torch.optim.Adam(model.parameters(), 0.002)
    found = []
    for _ in range(20):
        optimizer.zero_grad()
        out = run() if how == "compiled" else run()[data.train_mask]
        loss = loss_of(out, data)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return torch.tensor(found, dtype=torch.float64)


@pytest.mark.parametrize("name", every(3, TRAINED))
def test_trains_as_pyg_does_for_twenty_steps(name):
    exact = losses(name, "float64")
    ours, theirs = (((losses(name, how) - exact) / exact).abs().max() for how in ("compiled", "float32"))
    # Adam turns the rounding of a gradient near zero into a step; PyG's own float32 strays as far.
    assert ours <= max(1e-5, 3 * theirs)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (propagating(dropout=0.5), "dropout of edges"),
        (lambda: Stack(layer(pyg.ARMAConv, act=torch.sin)), "act"),
        (lambda: Stack(layer(pyg.SGConv, flow="target_to_source")), "flow"),
    ],
)
def test_an_option_without_lowered_form_is_named(make, reason):
    engine = engine_of(make(), data_of("untidy"))
    assert verdict(engine) == LEFT_ALONE or engine.breaks
    assert reason in engine.explain()


@pytest.mark.skipif(native.kernels() is None, reason="compiled kernels make the logits")
@pytest.mark.parametrize("heads", [1, 2])
def test_gats_kernels_make_the_logits_and_their_gradients(heads, monkeypatch):
    """No product of its own reads all rows for them, nor is the rows' gradient read once more."""

    def refuse(*_, **__):
        raise AssertionError("the kernels make the logits")

    for name in ("tall_product", "tall_gram"):
        monkeypatch.setattr(attention, name, refuse)
    torch.manual_seed(0)
    data, model = data_of("untidy"), Stack(layer(pyg.GATConv, heads=heads, concat=heads == 1))
    found = engine_of(model, data)()
    expected = model(data.x, data.edge_index)[data.train_mask]
    torch.testing.assert_close(found, expected)
    both = (loss_and_gradients(model, out.sin().sum()) for out in (found, expected))
    torch.testing.assert_close(*both, rtol=1e-4, atol=1e-5)


def test_the_powers_of_a_layer_are_computed_once():
    data = data_of("untidy")
    data.train_mask[:] = True
    for make in (pyg.SGConv, pyg.TAGConv, pyg.ChebConv):
        text = engine_of(make(CHANNELS, 20, K=3), data).explain()
        assert "computed once" in text
        assert "= aggregate(" not in text


SEVERAL = (
    "SSGConv: alpha=0.5, K=3, hidden 4",
    "PyG's ready GCN: jk='max', act='tanh'",
    "ChebConv: K=5, hidden 8",
    "GCN2Conv: plain",
    "arithmetic and activations: torch.sub(x, y, alpha=2)",
    "between layers: PyG's MLP",
)


@pytest.mark.parametrize("name", every(3, SEVERAL))
def test_a_device_runs_and_records_the_same(name, monkeypatch):
    monkeypatch.setattr(native, "kernels", lambda: None)  # only the twins can be recorded by the fake
    data, device, found = data_of("untidy"), FakeDevice(), []
    graph, nodes = Graph.from_pyg(data), data.train_mask.nonzero().view(-1)
    for where in (HOST, device):
        model = made(name)
        engine = Engine(model, graph, nodes, CompileOptions(rates=Rates(), device=where))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(4):
            last = loss_and_gradients(model, loss_of(engine(), data))
            optimizer.step()
        found.append([*last, engine.predict()])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
    assert device.num_records == 2


@pytest.mark.parametrize("name", ["APPNP: plain", "TAGConv: plain, hidden 8", *SEVERAL[2:5:2]])
def test_rows_may_be_rounded_before_they_are_aggregated(name):
    data, losses = data_of("untidy"), []
    for storage in ("float32", "bfloat16"):
        engine = graphbraid.compile(made(name), data, nodes=data.train_mask, storage=storage)
        losses.append(loss_of(engine(), data))
    torch.testing.assert_close(*losses, rtol=2e-2, atol=0)


def test_dropout_between_the_layers_is_the_same_under_any_passes():
    data = data_of("untidy")
    arma = layer(pyg.ARMAConv, num_stacks=2, num_layers=2, dropout=0.4)
    for make in (lambda: ready("GCN", {"dropout": 0.5, "jk": "cat"}), lambda: Stack(arma)):
        found = []
        for passes in (ALL, ALL - {"prune", "split"}, set()):
            torch.manual_seed(1)
            model = make()
            engine = graphbraid.compile(model, data, nodes=data.train_mask, passes=passes)
            torch.manual_seed(7)
            found.append(loss_and_gradients(model, loss_of(engine(), data)))
        assert found[0][0] != loss_of(model.eval()(data.x, data.edge_index)[data.train_mask], data)
        for other in found[1:]:
            torch.testing.assert_close(other, found[0], rtol=1e-4, atol=2e-5)
