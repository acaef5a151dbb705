"""Models with parameters and buffers of their own as operands follow what becomes of these."""

import copy

import pytest
import torch
import torch.nn.functional as F
from tests.extras import NO_PYG
from tests.modules import module_of
from torch import nn

pytest.importorskip("torch_geometric", reason=NO_PYG)
from tests.fullgraph.matrix.case import GCN
from tests.fullgraph.matrix.cases_operands import Buffered, mixed
from tests.fullgraph.matrix.compare import LOWERED, engine_of, verdict
from tests.fullgraph.matrix.graphs import CHANNELS, CLASSES, data_of
from tests.fullgraph.matrix.models import calls


def assert_as_written(engine, model, data):
    torch.testing.assert_close(
        engine(), model(data.x, data.edge_index)[data.train_mask], rtol=1e-4, atol=1e-5
    )


def mixing():
    return calls(mixed)(GCN, own=nn.Parameter(torch.tensor([0.3, 0.1])))


def test_numbers_of_a_buffer_that_change_in_place():
    model, data = Buffered(), data_of("untidy")
    engine = engine_of(model, data)
    assert_as_written(engine, model, data)
    model.own.mul_(3)
    assert_as_written(engine, model, data)
    model.own = torch.tensor([-1.0, 0.5])
    assert_as_written(engine, model, data)
    assert verdict(engine) == LOWERED


def test_a_parameter_that_is_replaced_written_to_or_frozen():
    model, data = mixing(), data_of("untidy")
    engine = engine_of(model, data)
    assert_as_written(engine, model, data)
    with torch.no_grad():
        model.own.fill_(0.7)
    assert_as_written(engine, model, data)
    model.own = nn.Parameter(torch.tensor([0.9, 0.0]))
    assert_as_written(engine, model, data)
    engine().sum().backward()
    assert model.own.grad[0] != 0
    model.own.requires_grad_(False)
    model.own.grad = None
    engine().sum().backward()
    assert model.own.grad is None


def test_passes_that_wait_for_their_backward_passes():
    model, data = mixing(), data_of("untidy")
    engine = engine_of(model, data)
    first, second = engine(), engine()
    (first.sum() + second.sum()).backward()
    twice = model.own.grad.clone()
    model.own.grad = None
    (2 * model(data.x, data.edge_index)[data.train_mask].sum()).backward()
    torch.testing.assert_close(twice, model.own.grad, rtol=1e-4, atol=1e-5)


def test_a_row_is_not_computed_of_what_no_step_can_follow():
    def by_norm(self, x, edge_index):
        shift = sum(p.detach().norm() for p in self.parameters())
        return self.head(self.first(x, edge_index) + shift)

    model, data = calls(by_norm)(GCN), data_of("untidy")
    engine = engine_of(model, data)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        assert_as_written(engine, model, data)
        engine().sum().backward()
        optimizer.step()


def test_what_dropout_makes_may_be_written_over():
    def in_place(self, x, edge_index):
        y = F.dropout(self.first(x, edge_index).relu(), 0.5, training=self.training)
        y += self.skip(x)
        return self.head(y)

    model, data = calls(in_place)(GCN), data_of("untidy")
    engine = engine_of(model, data)
    assert verdict(engine) == LOWERED
    model.eval()
    assert_as_written(engine, model, data)


@pytest.mark.parametrize(
    "product",
    [lambda x, w: x @ w, torch.mm, torch.matmul, lambda x, w: x.mm(w), lambda x, w: torch.mm(x, mat2=w)],
)
def test_a_product_of_rows_and_a_parameter_is_a_linear_map(product):
    model = module_of(
        lambda self, x, edge_index: product(self.conv(x, edge_index).relu(), self.weight),
        conv=GCN(CHANNELS, 8),
        weight=nn.Parameter(torch.randn(8, CLASSES)),
    )
    data, twin = data_of("untidy"), copy.deepcopy(model)
    engine = engine_of(model, data)
    assert_as_written(engine, model, data)
    assert verdict(engine) == LOWERED
    engine().square().sum().backward()
    twin(data.x, data.edge_index)[data.train_mask].square().sum().backward()
    torch.testing.assert_close(model.weight.grad, twin.weight.grad, rtol=1e-4, atol=1e-5)
