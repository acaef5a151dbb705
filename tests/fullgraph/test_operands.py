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
from torch_geometric.nn import MessagePassing


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


class BufferedEps(MessagePassing):
    """GIN's layer as it may be copied: its epsilon is a buffer."""

    def __init__(self, shape, dtype):
        super().__init__(aggr="add")
        self.register_buffer("eps", torch.full(shape, 0.3, dtype=dtype))

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x) + (1 + self.eps) * x


def two_of_eps(self, x, edge_index):
    return self.last(self.second(self.first(x, edge_index).relu(), edge_index))


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (1, 1, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_number_computed_of_a_buffer_is_a_factor_that_is_followed(shape, dtype):
    data = data_of("untidy")
    layers = [BufferedEps(shape, dtype) for _ in range(2)]
    model = module_of(two_of_eps, first=layers[0], second=layers[1], last=nn.Linear(CHANNELS, CLASSES))
    promotes = dtype == torch.float64 and len(shape) > 0
    if promotes or len(shape) > 2:  # the result would be of another dtype or rank
        assert verdict(engine_of(model, data)) != LOWERED
        return
    engine = engine_of(model, data)
    assert_as_written(engine, model, data)
    model.first.eps.fill_(-2.0)
    assert_as_written(engine, model, data)
    model.second.eps.data.fill_(4.0)  # without a new version
    assert_as_written(engine, model, data)
    assert verdict(engine) == LOWERED


def changed_between(self, x, edge_index):
    factor = 1 + self.own
    first = x * factor
    factor += 1
    return self.layer(first + x * factor, edge_index)


@pytest.mark.filterwarnings("ignore:.*runs? as (it is|they are) written")
def test_a_number_that_the_forward_writes_over_is_no_factor():
    data, model = data_of("untidy"), module_of(changed_between, layer=GCN(CHANNELS, CLASSES))
    model.register_buffer("own", torch.tensor([0.3]))
    engine = engine_of(model, data)
    assert_as_written(engine, model, data)
    assert verdict(engine) != LOWERED
