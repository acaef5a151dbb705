"""Layers of a user's own in an engine, beside what the matrix of models compares."""

import copy

import pytest
import torch
from tests.extras import NO_PYG

pytest.importorskip("torch_geometric", reason=NO_PYG)
import torch.nn.functional as F
from tests.fullgraph.matrix.cases_messages import own
from tests.fullgraph.matrix.compare import LEFT_ALONE, LOWERED, assert_alike, engine_of, verdict
from tests.fullgraph.matrix.graphs import CHANNELS, CLASSES, data_of
from tests.fullgraph.matrix.models import Stack
from torch import nn

from graphbraid.ops import messages


def _gate(self, x_i, x_j):
    return torch.sigmoid(x_i + x_j) * x_j * self.att


def _dropped(self, x_j):
    return F.dropout(x_j, 0.5, self.training)


def _dropped_by_module(self, x_j):
    return self.dropout(x_j)


def _noisy(self, x_j):
    return x_j + torch.rand(1)


def _with_dropout():
    model = Stack(own(_dropped_by_module))
    for layer in (model.first, model.second):
        layer.dropout = nn.Dropout(0.5)
    return model


@pytest.mark.parametrize("make", [lambda: Stack(own(_dropped)), _with_dropout], ids=["function", "module"])
def test_a_message_with_dropout_is_lowered_and_rests_in_evaluation(make):
    data, model = data_of("untidy"), make()
    assert verdict(engine_of(model, data)) == LOWERED
    model, twin = model.eval(), copy.deepcopy(model)
    engine = engine_of(model, data)
    assert verdict(engine) == LOWERED
    assert_alike(model, twin, data, engine, steps=1)


class One(nn.Module):
    """One layer."""

    def __init__(self, make):
        super().__init__()
        self.conv = make(CHANNELS, CLASSES)

    def forward(self, x, edge_index):
        return self.conv(x, edge_index)


def test_dropout_in_a_message_keeps_the_mean_and_draws_the_same_from_a_seed():
    """Each step draws other numbers; backward draws those of its forward."""
    data, model = data_of("untidy"), One(own(_dropped, aggr="sum"))
    engine = engine_of(model, data)
    assert verdict(engine) == LOWERED
    torch.manual_seed(3)
    first, second = engine().detach(), engine().detach()
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    assert torch.equal(first, engine().detach())
    mean = torch.stack([engine().detach() for _ in range(2000)]).mean(0)
    expected = engine_of(model.eval(), data)().detach()
    torch.testing.assert_close(mean, expected, rtol=0.1, atol=0.25)
    model.train()
    out = engine()
    out.sum().backward()  # the layer is linear, so each row's gradient gives back the row
    rebuilt = sum((p.grad * p).sum() for p in model.parameters() if p.grad is not None)
    torch.testing.assert_close(rebuilt, out.sum(), rtol=1e-3, atol=1e-3)


def test_a_message_that_draws_is_left_alone():
    engine = engine_of(Stack(own(_noisy)), data_of("untidy"))
    assert verdict(engine) == LEFT_ALONE
    assert "random numbers" in engine.explain()


@pytest.mark.parametrize("aggr", ["sum", "mean", "max", "min"])
def test_blocks_of_a_few_edges_give_the_same(monkeypatch, aggr):
    monkeypatch.setattr(messages, "_BLOCK_FLOATS", 1)
    monkeypatch.setattr(messages, "_LEAST_EDGES", 5)
    data, model = data_of("untidy"), Stack(own(_gate, aggr=aggr))
    twin = copy.deepcopy(model)
    assert_alike(model, twin, data, engine_of(model, data), steps=10)


def test_frozen_parameters_of_a_message_get_no_gradient():
    data, model = data_of("untidy"), Stack(own(_gate))
    for layer in (model.first, model.second):
        layer.att.requires_grad_(False)
    twin = copy.deepcopy(model)
    assert_alike(model, twin, data, engine_of(model, data), steps=1)
    assert model.first.att.grad is None


def test_a_message_that_is_changed_is_read_again():
    data, model = data_of("untidy"), Stack(own(_gate))
    engine = engine_of(model, data)
    before = engine.predict().clone()
    model.first.att.data.mul_(0.0)
    assert not torch.equal(before, engine.predict())
    kind = type(model.first)

    def message(self, x_i, x_j):
        return x_i - x_j

    kind.message = message
    twin = copy.deepcopy(model)
    assert_alike(model, twin, data, engine, steps=1)
    assert "message(x_i, x_j)" in engine.explain()


def test_steps_hold_no_row_per_edge():
    """Ten times the edges take the same arena."""
    sizes = []
    for times in (1, 10):
        data = data_of("untidy")
        data.edge_index, data.edge_weight = data.edge_index.repeat(1, times), None
        engine = engine_of(Stack(own(_gate)), data)
        engine()
        sizes.append(engine.explain().split("Arena")[1].splitlines()[1])
    assert sizes[0] == sizes[1]
