"""Messages whose linear maps become products for each node, beside PyG in float64."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from tests.beside_pyg import pyg
from torch import nn
from torch_geometric.utils import softmax

import graphbraid

NODES, WIDTH = 30, 6


class Layer(pyg.MessagePassing):
    """A message made of some maps; subclasses have the message."""

    def __init__(self, aggr="sum", **options):
        super().__init__(aggr=aggr, **options)
        self.both, self.each = nn.Linear(2 * WIDTH, WIDTH), pyg.Linear(WIDTH, WIDTH)
        self.last, self.score = nn.Linear(WIDTH, WIDTH), nn.Linear(2 * WIDTH, 1)
        self.matrix = nn.Parameter(torch.randn(WIDTH, WIDTH))
        self.wide, self.edge = nn.Linear(2 * WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH + 3, WIDTH)
        self.inner, self.drop = nn.ReLU(inplace=True), nn.Dropout(0.5)

    def forward(self, x, edge_index, edge_attr):
        return self.propagate(edge_index, x=x, edge_attr=edge_attr)


def _parts(self, x_i, x_j):
    gate, value = self.wide(torch.cat([x_i, x_j], -1)).chunk(2, dim=-1)
    return torch.sigmoid(gate) * value


def _stacked(self, x_i, x_j):
    halves = torch.stack([x_i, x_j], 1)
    return torch.stack([self.each(halves[:, 0]), self.last(halves[:, 1])], dim=1).sum(1)


def _used_again(self, x_i, x_j):
    joined = torch.cat([x_i, x_j], -1)
    return self.both(joined) * joined[:, WIDTH:]


MESSAGES = {
    "ends": lambda self, x_i, x_j: torch.tanh(self.both(torch.cat([x_i, x_j], -1))),
    "difference": lambda self, x_i, x_j: self.inner(self.both(torch.cat([x_i, 2 * (x_j - x_i)], 1))),
    "mlp": lambda self, x_i, x_j: self.last(F.relu(self.both(torch.cat((x_j, -x_i), dim=-1)))),
    "product": lambda self, x_i, x_j: torch.sigmoid(self.each(x_j) - x_i @ self.matrix) @ self.matrix,
    "neighbour": lambda self, x_j: self.last(x_j),
    "neighbour_inside": lambda self, x_j: self.inner(self.last(x_j[:, :WIDTH])),
    "parts": _parts,
    "columns": lambda self, x_i, x_j: F.relu(self.each(torch.cat([x_i[:, 2:], x_j[:, :2]], -1))),
    "stacked": _stacked,
    "attention": lambda self, x_i, x_j, index: (
        softmax(F.leaky_relu(self.score(torch.cat([x_i, x_j], -1))), index) * x_j
    ),
    "features": lambda self, x_i, x_j, edge_attr: F.relu(self.edge(torch.cat([x_i, edge_attr, x_j], -1))),
    "twice": lambda self, x_i, x_j: self.last(self.each(x_j)) + x_i,
    "used_again": _used_again,
}
BLOCKED = {"stacked"}
"""Those of which something is left that no kernel's step computes."""


class Net(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.first, self.layer = nn.Linear(WIDTH, WIDTH), layer

    def forward(self, x, edge_index, edge_attr):
        return self.layer(F.relu(self.first(x)), edge_index, edge_attr)


def _layer(message, **options):
    """A layer with a message, or with the one of a name."""
    message = MESSAGES.get(message, message)
    message.__name__ = "message"  # by which PyG finds its signature
    kind = type("OwnLayer", (Layer,), {"message": message})
    torch.manual_seed(1)
    return kind(**options)


def _data(num_edges=150):
    draw = torch.Generator().manual_seed(0)
    edges = torch.randint(4, NODES, (2, num_edges), generator=draw)  # the first nodes have no edges
    rows = torch.randn(NODES, WIDTH, generator=draw, dtype=torch.float64)
    return rows, edges, torch.randn(num_edges, 3, generator=draw, dtype=torch.float64)


def _compared(model, engine, twin, given):
    x, *rest = given
    ours, theirs = (x.clone().requires_grad_() for _ in range(2))
    out, expected = engine(ours, *rest), twin(theirs, *rest)
    model.zero_grad()
    twin.zero_grad()
    for one in (out, expected):
        one.square().sum().backward()
    pairs = [(out, expected), (ours.grad, theirs.grad)]
    for (name, a), b in zip(model.named_parameters(), twin.parameters(), strict=True):
        zero = torch.zeros_like(a)
        assert a.grad is None or a.grad.isfinite().all(), name
        pairs.append((zero if a.grad is None else a.grad, zero if b.grad is None else b.grad))
    for a, b in pairs:
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def _model(message, **options):
    model = Net(_layer(message, **options)).double()
    return model, graphbraid.compile(model), copy.deepcopy(model)


@pytest.mark.parametrize("aggr", ["sum", "mean", "max"])
@pytest.mark.parametrize("name", MESSAGES)
def test_equals_pyg_in_float64(name, aggr):
    model, engine, twin = _model(name, aggr=aggr)
    _compared(model, engine, twin, _data())
    is_sum = name == "neighbour" and aggr != "max"  # nothing but a sum of moved rows is left
    how = "= aggregate(" if is_sum else "linear maps moved to the nodes"
    assert how in engine.explain() or name == "used_again"
    twin.layer.last.weight.data.mul_(2)  # numbers may change, and so may the parameters themselves
    model.layer.last.weight = nn.Parameter(twin.layer.last.weight.detach().clone())
    _compared(model, engine, twin, _data(90))


@pytest.mark.parametrize("name", MESSAGES)
def test_what_is_left_runs_in_one_kernel(name):
    data = _data()
    model = Net(_layer(name))
    twin = copy.deepcopy(model).double()
    x, edges, features = data[0].float(), data[1], data[2].float()
    engine = graphbraid.compile(model)
    torch.testing.assert_close(
        engine(x, edges, features), twin(*data), rtol=1e-4, atol=1e-5, check_dtype=False
    )
    is_left = "in one kernel" in engine.explain() or "= aggregate(" in engine.explain()
    assert is_left == (name not in BLOCKED), engine.explain()


@pytest.mark.parametrize("aggr", ["sum", "mean", "max"])
def test_nodes_without_edges_have_no_bias(aggr):
    model, engine, twin = _model("mlp", aggr=aggr)
    x, _, _ = _data()
    none = torch.empty(2, 0, dtype=torch.int64), torch.empty(0, 3, dtype=torch.float64)
    _compared(model, engine, twin, (x, *none))
    one = torch.tensor([[1], [2]]), torch.zeros(1, 3, dtype=torch.float64)
    _compared(model, engine, twin, (x, *one))
    assert not engine(x, *one)[0].any()


def _hooked(layer):
    layer.both.register_forward_hook(lambda module, args, out: 2 * out)


def _weight_normed(layer):
    nn.utils.parametrizations.weight_norm(layer.both)


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def _another_class(layer):
    layer.both = Doubled(2 * WIDTH, WIDTH)


def _shared(layer):
    layer.last = layer.each


@pytest.mark.parametrize("change", [_hooked, _weight_normed, _another_class, _shared])
@pytest.mark.parametrize("name", ["ends", "mlp"])
@pytest.mark.filterwarnings("ignore::graphbraid.errors.RunsAsWrittenWarning")
def test_maps_that_look_alike_and_are_not(name, change):
    layer = _layer(name)
    change(layer)
    model = Net(layer).double()
    twin = copy.deepcopy(model)
    _compared(model, graphbraid.compile(model), twin, _data())


TENSORS = {
    "gated": lambda self, x_i, x_j: (
        torch.tanh(self.both(torch.cat([x_i, x_j], -1))) * F.softplus(self.score.bias)
    ),
    "turned": lambda self, x_i, x_j: torch.tanh(self.each(x_j) - x_i) @ self.matrix.t(),
    "without_gradient": lambda self, x_i, x_j: self.each(x_j) * x_i * self.matrix.detach()[0].exp(),
}


@pytest.mark.parametrize("function", TENSORS.values(), ids=TENSORS)
@pytest.mark.parametrize("aggr", ["sum", ["mean", "std"]])
def test_tensors_that_a_message_computes_of_parameters_are_new_in_each_call(function, aggr):
    model, engine, twin = _model(function, aggr=aggr)
    for _ in range(3):
        _compared(model, engine, twin, _data())
        for one in (model, twin):
            for parameter in one.parameters():
                parameter.data = parameter.data * 1.1


FACTORS = {
    "zero_times": lambda self, x_i, x_j: self.last(0 * x_j + x_i),
    "infinitely_often": lambda self, x_i, x_j: self.last(x_j * math.inf) - x_i,
}


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("function", FACTORS.values(), ids=FACTORS)
def test_factors_without_a_product_of_their_own_keep_undefined_rows(function, value):
    layer, (x, *rest) = _layer(function).double(), _data()
    x[7, 2] = value
    expected = copy.deepcopy(layer)(x, *rest)
    torch.testing.assert_close(graphbraid.compile(layer)(x, *rest), expected, equal_nan=True)


@pytest.mark.parametrize("aggr", ["sum", "max", ["mean", "max"]])
@pytest.mark.parametrize("name", ["mlp", "used_again", "features"])
def test_hooks_on_gradients_of_parameters_run_once(name, aggr):
    model, engine, twin = _model(name, aggr=aggr)
    for parameter in (p for one in (model, twin) for p in one.parameters()):
        parameter.register_hook(lambda gradient: 2 * gradient)
    for _ in range(2):
        _compared(model, engine, twin, _data())


def test_dropout_between_two_maps_stays_and_rests_in_evaluation():
    data = _data()
    model, engine, twin = _model(
        lambda self, x_i, x_j: self.last(self.drop(self.both(torch.cat([x_i, x_j], -1))))
    )
    first, second = (engine(*data) for _ in range(2))
    assert not first.equal(second)
    mean = torch.stack([engine(*data).detach() for _ in range(400)]).mean(0)
    engine.eval()
    twin.eval()
    torch.testing.assert_close(mean, twin(*data).detach(), rtol=0.3, atol=1.0)
    _compared(model, engine, twin, data)
    engine.train()
    assert not engine(*data).equal(engine(*data))


def _scaled(aggr, scalers, **options):
    return pyg.aggr.DegreeScalerAggregation(aggr, scalers, torch.arange(1, 9), **options)


@pytest.mark.parametrize(
    ("make", "in_one_kernel"),
    [
        (lambda: ["mean", "min", "max", "std"], True),
        (lambda: ["sum", "var"], True),
        (lambda: "std", True),
        (lambda: ["sum"], True),
        (lambda: _scaled(["mean", "max"], ["identity", "amplification", "attenuation"]), True),
        (lambda: _scaled("std", "linear"), True),
        (lambda: _scaled(["sum"], ["inverse_linear"]), True),
        (lambda: _scaled(["mean", "max"], ["amplification"], train_norm=True), False),
        (lambda: ["mean", "mul"], False),
        (lambda: ["mean", "mean"], False),
        (lambda: pyg.aggr.MultiAggregation(["mean", "max"], mode="sum"), False),
        (lambda: pyg.aggr.MultiAggregation(["mean", pyg.aggr.StdAggregation(semi_grad=True)]), False),
        (lambda: pyg.aggr.VarAggregation(semi_grad=True), False),
    ],
)
def test_several_aggregations_of_one_message(make, in_one_kernel):
    torch.manual_seed(1)
    model = Net(_layer(lambda self, x_i, x_j: F.relu(self.both(torch.cat([x_i, x_j], -1))), aggr=make()))
    wide = copy.deepcopy(model).double()
    data = _data()
    _compared(wide, graphbraid.compile(wide), copy.deepcopy(wide), data)
    twin, engine = copy.deepcopy(model).double(), graphbraid.compile(model)
    x, edges, features = data[0].float(), data[1], data[2].float()
    for _ in range(2):
        out, expected = engine(x, edges, features), twin(*data)
        torch.testing.assert_close(out, expected, rtol=1e-3, atol=1e-4, check_dtype=False)
        out.square().sum().backward()
        expected.square().sum().backward()
        for (name, a), b in zip(model.named_parameters(), twin.parameters(), strict=True):
            if b.grad is None:
                assert a.grad is None
                continue
            scale = max(1.0, float(b.grad.abs().max()))
            torch.testing.assert_close(
                a.grad.double(), b.grad, rtol=1e-3, atol=1e-3 * scale, msg=lambda m, n=name: f"{n}: {m}"
            )
        for module in (*model.modules(), *twin.modules()):  # averages may be loaded later
            if isinstance(module, pyg.aggr.DegreeScalerAggregation):
                module.avg_deg_log.data.fill_(2.5)
                module.avg_deg_lin.data.fill_(4.0)
    assert ("in one kernel" in engine.explain()) == in_one_kernel, engine.explain()
    if in_one_kernel:  # some of the others fail without edges
        none = torch.empty(2, 0, dtype=torch.int64), features[:0]
        torch.testing.assert_close(engine(x, *none), twin(data[0], *none), check_dtype=False)


@pytest.mark.parametrize("towers", [1, 2])
def test_towers_of_pna_become_rows_of_nodes(towers):
    torch.manual_seed(1)
    conv = pyg.PNAConv(
        WIDTH,
        WIDTH,
        ["mean", "min", "max", "std"],
        ["identity", "attenuation"],
        torch.arange(1, 9),
        towers=towers,
        edge_dim=3,
        divide_input=towers == 2,
    )
    model = Net(conv).double()
    twin = copy.deepcopy(model)
    engine = graphbraid.compile(model)
    _compared(model, engine, twin, _data())
    assert "linear maps moved to the nodes" in engine.explain()
