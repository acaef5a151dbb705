"""PyG's ready models, propagating layers and what stands between, under any passes, trained, on a device.

Each by itself on graphs of every kind stands in the matrix.
"""

import copy
from functools import partial
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from tests.extras import NO_PYG
from tests.fullgraph.fake_device import FakeDevice
from tests.fullgraph.graphs import CHANNELS, CLASSES, NUM_NODES, make_graph
from tests.suites import every
from torch import nn

import graphbraid
from graphbraid import native
from graphbraid.fullgraph import ALL, Engine, Uncompiled
from graphbraid.fullgraph.device import HOST
from graphbraid.fullgraph.lowering.options import CompileOptions
from graphbraid.fullgraph.step.operations import attention
from graphbraid.machine.rates import Rates

models = pytest.importorskip("torch_geometric.nn.models", reason=NO_PYG)
layers = pytest.importorskip("torch_geometric.nn", reason=NO_PYG)

GRAPHS = {
    "directed": {},  # with loops, repeated edges, isolated nodes, a hub
    "undirected": {"symmetric": True},
    "weighted": {"weighted": True},
    "all nodes train": {"train": 60},
}
HIDDEN = 8


class Stack(nn.Module):
    """Layers with something between them; ``make(in, out)`` gives a layer."""

    def __init__(self, make, between=None, last=None, widths=(CHANNELS, HIDDEN, CLASSES)):
        super().__init__()
        self.convs = nn.ModuleList(make(a, b) for a, b in pairwise(widths))
        self.between, self.last = between or F.relu, last or (lambda x: x)

    def forward(self, x, edge_index, edge_weight=None):
        for i, conv in enumerate(self.convs):
            x = conv(x, edge_index) if edge_weight is None else conv(x, edge_index, edge_weight)
            if i < len(self.convs) - 1:
                x = self.between(x)
        return self.last(x)


class Unweighted(Stack):
    def forward(self, x, edge_index):
        return Stack.forward(self, x, edge_index)


def ready(name, **options):
    kind = {"dropout": 0.0, "num_layers": 2, "out_channels": CLASSES} | options
    return lambda: getattr(models, name)(CHANNELS, HIDDEN, **kind)


READY = {
    f"{name}, {', '.join(f'{k}={v}' for k, v in options.items()) or 'defaults'}": ready(name, **options)
    for name, options in (
        ("GCN", {}),
        ("GCN", {"num_layers": 3, "norm": "batch_norm"}),
        ("GCN", {"act": "tanh", "act_first": True, "norm": "layer_norm", "norm_kwargs": {"mode": "node"}}),
        ("GCN", {"jk": "cat"}),
        ("GCN", {"jk": "max", "num_layers": 3}),
        ("GCN", {"jk": "last", "act": "gelu"}),
        ("GCN", {"out_channels": None, "act": None}),
        ("GCN", {"num_layers": 1}),
        ("GCN", {"act": "PReLU", "improved": True}),
        ("GCN", {"normalize": False, "act": "leaky_relu", "act_kwargs": {"negative_slope": 0.2}}),
        ("GraphSAGE", {}),
        ("GraphSAGE", {"jk": "cat", "act": "elu", "act_kwargs": {"alpha": 0.5}, "num_layers": 3}),
        ("GraphSAGE", {"aggr": "max", "jk": "max"}),
        ("GraphSAGE", {"act": "silu", "project": True}),
        ("GraphSAGE", {"act": "sigmoid", "norm": "batch_norm", "act_first": True}),
        ("GAT", {"heads": 2}),
        ("GAT", {"heads": 4, "jk": "cat", "act": "elu"}),
        ("GAT", {"heads": 2, "v2": True, "act": "softplus"}),
        ("GIN", {}),
        ("GIN", {"jk": "cat", "norm": "batch_norm", "num_layers": 3}),
        ("GIN", {"train_eps": True, "act": "tanh", "act_first": True, "norm": "batch_norm"}),
    )
}
LAYERS = {
    "GraphConv": layers.GraphConv,
    "GraphConv, mean, no bias": lambda i, o: layers.GraphConv(i, o, aggr="mean", bias=False),
    "SGConv, K=1": layers.SGConv,
    "SGConv, K=3, no loops": lambda i, o: layers.SGConv(i, o, K=3, add_self_loops=False),
    "SSGConv": lambda i, o: layers.SSGConv(i, o, alpha=0.1, K=2),
    "SSGConv, no bias, K=3": lambda i, o: layers.SSGConv(i, o, alpha=0.3, K=3, bias=False),
    "TAGConv": lambda i, o: layers.TAGConv(i, o, K=2),
    "TAGConv, plain sums": lambda i, o: layers.TAGConv(i, o, K=2, normalize=False, bias=False),
    "ChebConv, K=1": lambda i, o: layers.ChebConv(i, o, K=1),
    "ChebConv, K=2": lambda i, o: layers.ChebConv(i, o, K=2, bias=False),
    "ChebConv, K=5": lambda i, o: layers.ChebConv(i, o, K=5),
    "ChebConv, K=4, rw": lambda i, o: layers.ChebConv(i, o, K=4, normalization="rw"),
    "ChebConv, K=3, not normalised": lambda i, o: layers.ChebConv(i, o, K=3, normalization=None),
    "ARMAConv": layers.ARMAConv,
    "ARMAConv, stacks and layers": lambda i, o: layers.ARMAConv(i, o, 2, 3),
    "ARMAConv, shared, no activation": lambda i, o: layers.ARMAConv(
        i, o, 2, 2, shared_weights=True, act=None, bias=False
    ),
    "ARMAConv, tanh": lambda i, o: layers.ARMAConv(i, o, 3, 1, act=nn.Tanh()),
}
UNWEIGHTED_LAYERS = {
    "GraphConv, max": lambda i, o: layers.GraphConv(i, o, aggr="max"),
    "GIN with PyG's MLP": lambda i, o: layers.GINConv(layers.MLP([i, 16, o], norm=None, act="elu")),
    "GIN with a normalised MLP": lambda i, o: layers.GINConv(layers.MLP([i, o, o], plain_last=False)),
    "GIN, no activation": lambda i, o: layers.GINConv(layers.MLP([i, o], act=None, bias=False)),
}


class Appnp(nn.Module):
    """A perceptron, then personalised propagation."""

    def __init__(self, **options):
        super().__init__()
        self.lin1, self.lin2 = layers.Linear(CHANNELS, HIDDEN), nn.Linear(HIDDEN, CLASSES)
        self.prop = layers.APPNP(**{"K": 4, "alpha": 0.15} | options)

    def forward(self, x, edge_index, edge_weight=None):
        x = self.lin2(self.lin1(x).relu())
        return self.prop(x, edge_index, edge_weight)


class Gcn2(nn.Module):
    """The model of PyG's example: an initial residual through all layers."""

    def __init__(self, **options):
        super().__init__()
        self.first, self.last = nn.Linear(CHANNELS, HIDDEN), nn.Linear(HIDDEN, CLASSES)
        kept = {"alpha": 0.1, "theta": 0.5} | options
        self.convs = nn.ModuleList(layers.GCN2Conv(HIDDEN, layer=i + 1, **kept) for i in range(3))

    def forward(self, x, edge_index, edge_weight=None):
        x = x_0 = self.first(x).relu()
        for conv in self.convs:
            x = conv(x, x_0, edge_index, edge_weight).relu()
        return self.last(x).log_softmax(dim=-1)


class Jumping(nn.Module):
    """JumpingKnowledge, or its like by hand, over layers of several depths."""

    def __init__(self, mode):
        super().__init__()
        self.convs = nn.ModuleList(layers.SAGEConv(i, HIDDEN) for i in (CHANNELS, HIDDEN, HIDDEN))
        self.mode, self.jump = mode, layers.JumpingKnowledge(mode) if mode in ("cat", "max") else None
        self.lin = nn.Linear({"max": HIDDEN, "by hand": 3 * HIDDEN + CHANNELS}.get(mode, 3 * HIDDEN), CLASSES)

    def forward(self, x, edge_index):
        kept, first = [], x
        for conv in self.convs:
            x = conv(x, edge_index).relu()
            kept.append(x)
        x = torch.cat([*kept, first], dim=1) if self.jump is None else self.jump(kept)
        return self.lin(F.tanh(x) if self.mode == "cat" else x)


class Arithmetic(nn.Module):
    """Sums with factors, as residual networks have them."""

    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(layers.GCNConv(i, HIDDEN) for i in (CHANNELS, HIDDEN, HIDDEN))
        self.lin = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x, edge_index):
        a = self.convs[0](x, edge_index)
        b = 0.9 * self.convs[1](a.relu(), edge_index) + 0.1 * a
        c = self.convs[2](F.gelu(b), edge_index) * 0.5 - a / 4
        d = torch.add(c, b, alpha=-2) + torch.sub(b, a, alpha=0.3) - (-c)
        return F.log_softmax(self.lin(d.mul(2).sub(b)), dim=1)


BETWEEN = {
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "gelu, tanh": lambda x: F.gelu(x, approximate="tanh"),
    "elu 0.3": lambda x: F.elu(x, alpha=0.3),
    "selu": F.selu,
    "silu": F.silu,
    "relu6": F.relu6,
    "softplus": lambda x: F.softplus(x, beta=2),
    "leaky relu 0.2": lambda x: F.leaky_relu(x, 0.2),
    "hardtanh": lambda x: F.hardtanh(x, -0.5, 0.7),
    "softmax": lambda x: x.softmax(-1),
    "modules": nn.Sequential(nn.Softplus(), nn.PReLU(HIDDEN), nn.SELU(), nn.Hardtanh(), nn.CELU(0.7)),
    "more modules": nn.Sequential(nn.Sigmoid(), nn.GELU("tanh"), nn.ReLU6(), nn.Tanh(), nn.LeakyReLU(0.3)),
    "an MLP": lambda: layers.MLP([HIDDEN, 6, HIDDEN], act="PReLU", dropout=0.0),
}
LAST = {"log_softmax": nn.LogSoftmax(dim=-1), "softmax": nn.Softmax(dim=1), "sigmoid": nn.Sigmoid()}


def others():
    def stack(between=None, last=None):
        return lambda: Unweighted(layers.SAGEConv, copy.deepcopy(between), last)

    found = {f"between: {name}": stack(f) for name, f in BETWEEN.items() if name != "an MLP"}
    found["between: an MLP"] = lambda: Unweighted(layers.SAGEConv, BETWEEN["an MLP"]())
    found |= {f"last: {name}": stack(None, f) for name, f in LAST.items()}
    found |= {f"jumping: {mode}": (lambda m=mode: Jumping(m)) for mode in ("cat", "max", "by hand")}
    found |= {name: (lambda m=make: Unweighted(m)) for name, make in UNWEIGHTED_LAYERS.items()}
    return found | {"arithmetic": Arithmetic}


def made():
    found = dict(READY)
    found |= {name: (lambda m=make: Stack(m)) for name, make in LAYERS.items()}
    for name in ("SGConv, K=3, no loops", "SSGConv", "TAGConv", "ChebConv, K=5"):  # they aggregate first
        make = lambda m=LAYERS[name]: Stack(m, widths=(CHANNELS, 20, CLASSES))  # noqa: E731
        found[f"{name}, wider"] = make
    found |= {
        "APPNP": Appnp,
        "APPNP, plain sums": lambda: Appnp(normalize=False, K=2, alpha=0.5),
        "APPNP, no loops": lambda: Appnp(add_self_loops=False, cached=True),
        "GCN2Conv": Gcn2,
        "GCN2Conv, two weights": lambda: Gcn2(shared_weights=False, cached=True),
        "GCN2Conv, plain sums": lambda: Gcn2(normalize=False, alpha=0.7),
    }
    return found | others()


MODELS = made()
WITHOUT_WEIGHTS = [*others(), *(name for name in READY if not name.startswith("GCN"))]


def edges_of(graph, dtype=torch.float32):
    edge_index = torch.stack([graph.csc.indices.long(), graph.csc.destinations().long()])
    weight = graph.csc.weight
    return [edge_index] if weight is None else [edge_index, weight.to(dtype)]


def make_model(name):
    torch.manual_seed(1)
    return MODELS[name]()


def loss_of(out, graph):
    return F.cross_entropy(out[:, :CLASSES], graph.y[graph.split("train")])


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return [torch.zeros(()) if p.grad is None else p.grad.clone().double() for p in model.parameters()]


def assert_same(name, graph, passes=ALL):
    """Outputs, gradients, buffers and predictions are those of PyG in float64."""
    model = make_model(name)
    exact = copy.deepcopy(model).double()
    engine = graphbraid.compile(model, graph, passes=passes)
    assert isinstance(engine, Engine), engine.explain()
    edges = edges_of(graph, torch.float64)
    expected = exact(graph.x.double(), *edges)[graph.split("train")]
    actual = engine()
    torch.testing.assert_close(actual.double(), expected, rtol=1e-4, atol=2e-5)
    pairs = zip(
        gradients(model, loss_of(actual, graph)), gradients(exact, loss_of(expected, graph)), strict=True
    )
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs, rtol=2e-4, atol=4e-5)
    for ours, theirs in zip(model.buffers(), exact.buffers(), strict=True):
        torch.testing.assert_close(ours.double(), theirs.double(), rtol=1e-4, atol=1e-5)
    predicted = exact.eval()(graph.x.double(), *edges).detach()
    torch.testing.assert_close(engine.predict().double(), predicted, rtol=1e-4, atol=2e-5)


@pytest.mark.slow
@given(data=st.data(), passes=st.sets(st.sampled_from(sorted(ALL))), seed=st.integers(0, 5))
def test_any_choice_of_passes_gives_the_same_numbers(data, passes, seed):
    name = data.draw(st.sampled_from(sorted(MODELS)))
    kinds = [kind for kind in GRAPHS if kind != "weighted" or name not in WITHOUT_WEIGHTS]
    assert_same(name, make_graph(**GRAPHS[data.draw(st.sampled_from(kinds))] | {"seed": seed}), passes)


TRAINED = [
    "GCN, jk=max, num_layers=3",
    "GCN, act=PReLU, improved=True",
    "GraphSAGE, act=sigmoid, norm=batch_norm, act_first=True",
    "GAT, heads=4, jk=cat, act=elu",
    "GIN, jk=cat, norm=batch_norm, num_layers=3",
    *("GraphConv", "SGConv, K=3, no loops", "SSGConv", "TAGConv", "ChebConv, K=5", "ChebConv, K=4, rw"),
    *("ARMAConv, stacks and layers", "APPNP", "GCN2Conv", "GCN2Conv, two weights", "arithmetic"),
    *("between: an MLP", "between: modules", "last: log_softmax", "jumping: cat"),
]


def losses(name, graph, how):
    model, x, edges = make_model(name), graph.x, edges_of(graph)
    if how == "float64":
        model, x, edges = model.double(), x.double(), edges_of(graph, torch.float64)
    engine = graphbraid.compile(model, graph) if how == "compiled" else None
    optimizer = torch.optim.Adam(model.parameters(), 0.002)
    found = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = loss_of(engine() if engine else model(x, *edges)[graph.split("train")], graph)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return torch.tensor(found, dtype=torch.float64)


ALIKE = ["SSGConv", "TAGConv", "ChebConv, K=4, rw", "GCN2Conv, two weights", "between: modules"]
"""Made of operations that others of the list train, too."""


@pytest.mark.parametrize(
    "name",
    [
        *every(3, [name for name in TRAINED if name not in ALIKE]),
        *(pytest.param(name, marks=pytest.mark.long) for name in ALIKE),
    ],
)
def test_trains_as_pyg_does_for_twenty_steps(name):
    graph = make_graph(weighted=name not in WITHOUT_WEIGHTS, train=40)
    exact = losses(name, graph, "float64")
    ours, theirs = (
        ((losses(name, graph, how) - exact) / exact).abs().max() for how in ("compiled", "float32")
    )
    # Adam turns the rounding of a gradient near zero into a step; PyG's own float32 strays as far.
    assert ours <= max(1e-5, 3 * theirs)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Appnp(dropout=0.5), "dropout of edges"),
        (lambda: Stack(lambda i, o: layers.SGConv(i, o, cached=True)), "cached=True"),
        (lambda: models.GCN(CHANNELS, HIDDEN, 2, CLASSES, jk="lstm"), "jk"),
        (lambda: Stack(lambda i, o: layers.ARMAConv(i, o, act=torch.sin)), "act"),
        (lambda: Stack(lambda i, o: layers.SGConv(i, o, flow="target_to_source")), "flow"),
        (lambda: Stack(lambda i, o: layers.TAGConv(i, o, aggr="max")), "aggr"),
    ],
)
def test_an_option_without_lowered_form_is_named(make, reason):
    engine = graphbraid.compile(make(), make_graph())
    assert isinstance(engine, Uncompiled) or engine.breaks
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
    graph = make_graph()
    model = Unweighted(lambda a, b: layers.GATConv(a, b, heads=heads, concat=heads == 1))
    edge_index = torch.stack((graph.csc.indices.long(), graph.csc.destinations().long()))
    found = graphbraid.compile(model, graph)()
    expected = model(graph.x, edge_index)[graph.split("train")]
    torch.testing.assert_close(found, expected)
    parameters = [*model.parameters()]
    grads, wanted = (torch.autograd.grad(out.sin().sum(), parameters) for out in (found, expected))
    torch.testing.assert_close(grads, wanted, rtol=1e-4, atol=1e-5)


def test_the_powers_of_a_layer_are_computed_once():
    graph = make_graph(train=60)
    for make in (layers.SGConv, layers.TAGConv, layers.ChebConv):
        model = make(CHANNELS, 20, K=3)
        text = graphbraid.compile(model, graph).explain()
        assert "computed once" in text
        assert "= aggregate(" not in text
    assert graph.num_nodes == NUM_NODES


@pytest.mark.parametrize(
    "name",
    every(
        3,
        (
            "SSGConv",
            "GCN, jk=max, num_layers=3",
            "ChebConv, K=5",
            "GCN2Conv",
            "arithmetic",
            "between: modules",
        ),
    ),
)
def test_a_device_runs_and_records_the_same(name, monkeypatch):
    monkeypatch.setattr(native, "kernels", lambda: None)  # only the twins can be recorded by the fake
    graph, device = make_graph(), FakeDevice()
    found = []
    for where in (HOST, device):
        model = make_model(name)
        engine = Engine(model, graph, graph.split("train"), CompileOptions(rates=Rates(), device=where))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(4):
            loss = loss_of(engine(), graph)
            grads = gradients(model, loss)
            optimizer.step()
        found.append([loss.detach().double(), *grads, engine.predict().double()])
    for here, there in zip(*found, strict=True):
        torch.testing.assert_close(there, here, rtol=1e-4, atol=1e-5)
    assert device.num_records == 2


@pytest.mark.parametrize("name", ["SGConv, K=3, no loops", "TAGConv", "ChebConv, K=5", "APPNP", "arithmetic"])
def test_rows_may_be_rounded_before_they_are_aggregated(name):
    graph, losses = make_graph(), []
    for storage in ("float32", "bfloat16"):
        losses.append(loss_of(graphbraid.compile(make_model(name), graph, storage=storage)(), graph))
    torch.testing.assert_close(*losses, rtol=2e-2, atol=0)


def test_dropout_between_the_layers_is_the_same_under_any_passes():
    graph = make_graph()
    for make in (ready("GCN", dropout=0.5, jk="cat"), partial(Stack, dropped_arma)):
        found = []
        for passes in (ALL, ALL - {"prune", "split"}, set()):
            torch.manual_seed(1)
            model = make()
            engine = graphbraid.compile(model, graph, passes=passes)
            torch.manual_seed(7)
            loss = loss_of(engine(), graph)
            found.append([loss.detach().double(), *gradients(model, loss)])
        assert found[0][0] != loss_of(model.eval()(graph.x, *edges_of(graph))[graph.split("train")], graph)
        for other in found[1:]:
            for a, b in zip(other, found[0], strict=True):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-5)


def dropped_arma(i, o):
    return layers.ARMAConv(i, o, 2, 2, dropout=0.4)
