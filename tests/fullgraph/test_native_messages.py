"""Messages in compiled segments beside the same messages by themselves, and beside PyG."""

import copy
from functools import partial
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from tests.beside_pyg import Data, pyg
from tests.fullgraph.matrix.graphs import CHANNELS, data_of
from tests.fullgraph.test_batches import sampled
from tests.fullgraph.test_native_segment import by_operation, functions_behind
from torch import nn
from torch_geometric.utils import softmax

import graphbraid
from graphbraid import native
from graphbraid.fullgraph.batches.operations import BatchRun
from graphbraid.ops.kernels import watched
from graphbraid.ops.rng import keep_mask, seed_of_call

pytestmark = pytest.mark.skipif(native.kernels() is None, reason="the kernels are not compiled")


WIDTH = 4


class Own(pyg.MessagePassing):
    """A linear map of each end, parameters of all shapes, and a map of the nodes' own rows."""

    def __init__(self, i, o, **options):
        super().__init__(**options)
        self.lin, self.gates, self.own = nn.Linear(i, o), nn.Linear(i, o), nn.Linear(i, o)
        self.scale, self.row = nn.Parameter(torch.tensor([0.7])), nn.Parameter(torch.linspace(-1, 1, o)[None])
        self.edge, self.encoder = nn.Linear(WIDTH, o), nn.Linear(WIDTH, 3)
        self.joined, self.plain = nn.Linear(2 * o + 3, o), pyg.Linear(WIDTH, 2, bias=False)
        self.maps = nn.ModuleList(nn.Linear(o + WIDTH, o) for _ in range(3))
        self.turned, self.lin_of_edges = nn.Parameter(torch.rand(o, 2)), nn.Linear(o, o)
        self.by_head = nn.Parameter(torch.rand(1, 2, o // 2))

    def forward(self, x, edge_index, edge_weight=None, edge_attr=None):
        more = {"edge_weight": edge_weight, "edge_attr": edge_attr}
        more = {name: one for name, one in more.items() if one is not None}
        rows = self.lin(x)
        if self.node_dim == 0:
            return self.own(x) + self.propagate(edge_index, x=rows.view(-1, 2, WIDTH // 2)).flatten(1)
        return self.own(x) + self.propagate(edge_index, x=rows, gate=self.gates(x), **more)


def gate(self, gate_i, gate_j, x_j):
    return torch.sigmoid(gate_i + gate_j) * torch.tanh(x_j)


def difference(self, x_i, x_j):
    return torch.tanh(x_i) * torch.exp(-x_j.abs()) - x_j


def learned(self, x_i, x_j):
    return F.leaky_relu(x_j * self.row + x_i * self.scale, 0.1) * self.row


def distance(self, x_i, x_j, gate_j):
    return gate_j * torch.exp(-(x_i - 0.5 * x_j).pow(2).sum(dim=-1, keepdim=True))


def attends(self, x_i, x_j, index, ptr, size_i):
    return x_j * softmax((torch.relu(x_i) * x_j).sum(-1), index, ptr, size_i).view(-1, 1)


def attends_by_head(self, x_i, x_j, index, ptr, size_i):
    score = (F.leaky_relu(x_i + x_j, 0.2) * self.by_head).sum(-1)
    return x_j * softmax(score, index, ptr, size_i).unsqueeze(-1)


def weighed(self, x_i, x_j, edge_weight):
    return edge_weight.view(-1, 1) * torch.relu(x_j - 0.5 * x_i)


def featured(self, x_j, edge_weight, edge_attr):
    return edge_weight.view(-1, 1) * torch.sigmoid(x_j + edge_attr)


def mapped(self, x_i, x_j, edge_attr):
    return torch.relu(x_j + self.edge(edge_attr)) * x_i


def many_maps(self, gate_i, gate_j, x_j, edge_attr):
    """More steps than others, as ResGatedGraphConv has them."""
    key, query, value = (
        one(torch.cat([rows, edge_attr], dim=-1))
        for one, rows in zip(self.maps, (gate_i, gate_j, x_j), strict=True)
    )
    return torch.sigmoid(key + query) * value


def map_of_a_map(self, x_i, x_j, edge_attr):
    """As PNAConv has it."""
    return torch.relu(self.joined(torch.cat([x_i, self.encoder(edge_attr), x_j], dim=-1)))


def maps_of_maps(self, x_j, edge_weight, edge_attr):
    """One of them without a bias; the inner map is read beside them, too."""
    by_weight = F.linear(self.plain(edge_attr), self.turned) * edge_weight.view(-1, 1)
    inner = self.edge(edge_attr)
    return torch.tanh(x_j + self.lin_of_edges(inner)) * inner + by_weight


MESSAGES = {
    **{f"gate, {aggr}": (gate, {"aggr": aggr}) for aggr in ("sum", "mean", "max", "min")},
    "difference": (difference, {}),
    "difference, mean": (difference, {"aggr": "mean"}),
    "parameters": (learned, {}),
    "parameters, max": (learned, {"aggr": "max"}),
    "distance": (distance, {}),
    "softmax": (attends, {}),
    "softmax by head": (attends_by_head, {"node_dim": 0}),
    "weights of edges": (weighed, {}),
    "weights of edges, max": (weighed, {"aggr": "max"}),
    "features of edges": (featured, {"aggr": "mean"}),
    "a map of features": (mapped, {}),
    "a map of features, max": (mapped, {"aggr": "max"}),
    "many maps of features": (many_maps, {}),
    "many maps of features, max": (many_maps, {"aggr": "max"}),
    "a map of a map": (map_of_a_map, {}),
    "a map of a map, min": (map_of_a_map, {"aggr": "min"}),
    "maps of maps": (maps_of_maps, {"aggr": "mean"}),
}


class Model(nn.Module):
    """Three layers with dropout."""

    def __init__(self, name):
        super().__init__()
        message, options = MESSAGES[name]
        message.__name__ = "message"  # by which PyG finds its signature
        self.reads = [one for one in ("edge_weight", "edge_attr") if one in message.__code__.co_varnames]
        kind = type("".join(c for c in name if c.isalpha()), (Own,), {"message": message})
        widths = CHANNELS, WIDTH, WIDTH, WIDTH
        self.convs = nn.ModuleList(kind(i, o, **options) for i, o in pairwise(widths))

    def forward(self, x, edge_index, edge_weight=None, edge_attr=None):
        more = {"edge_weight": edge_weight, "edge_attr": edge_attr}
        more = {name: more[name] for name in self.reads}
        for conv in self.convs[:-1]:
            x = F.dropout(conv(x, edge_index, **more).relu(), 0.3, self.training)
        return self.convs[-1](x, edge_index, **more)


def ready(name, kind="untidy"):
    """A model and a graph; a dense one has steps that run once for each node."""
    torch.manual_seed(0)
    data = data_of("untidy")
    if kind != "untidy":
        num_edges = 400 if kind == "dense" else 0
        data = Data(torch.randn(30, CHANNELS), torch.randint(26, (2, num_edges)))
    data.edge_weight, data.edge_attr = torch.rand(data.num_edges), torch.rand(data.num_edges, WIDTH)
    return Model(name), data


def named(model, data):
    return {name: getattr(data, name) for name in model.reads}


def runs_as_one(out):
    names = functions_behind(out)
    return "_NativePassBackward" in names and "AggregateMessagesBackward" not in names


@pytest.mark.parametrize("kind", ["untidy", "dense", "without edges"])
@pytest.mark.parametrize("name", MESSAGES)
def test_messages_give_what_they_give_by_themselves(name, kind, monkeypatch):
    model, data = ready(name, kind)
    results = []
    for is_native in (True, False):
        if not is_native:
            by_operation(monkeypatch)
        engine, found = graphbraid.compile(copy.deepcopy(model), strict=True), []
        for _ in range(2):
            torch.manual_seed(5)
            x, call = data.x.clone().requires_grad_(), partial(engine, **named(model, data))
            out = call(x, data.edge_index)
            assert runs_as_one(out) == is_native
            with torch.no_grad():
                torch.manual_seed(5)
                assert torch.equal(out, call(x, data.edge_index))
            wanted = [x, *engine.parameters()]
            for keeps in (True, False):
                grads = torch.autograd.grad(out.square().sum(), wanted, retain_graph=keeps, allow_unused=True)
                found += [out.detach(), *grads]
        results.append(found)
    for one, other in zip(*results, strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.allclose(one, other, rtol=1e-5, atol=1e-5)
    assert torch.equal(results[0][0], results[1][0]) or "softmax" in name


def adam(run, model, batch, y):
    """Losses of some steps, and the parameters after them."""
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=0.01), []
    for _ in range(10):
        optimizer.zero_grad()
        loss = F.cross_entropy(run(batch), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [*losses, *(p.detach().clone() for p in model.parameters())]


@pytest.mark.parametrize("layout", ["subgraph", "blocks"])
@pytest.mark.parametrize("name", MESSAGES)
def test_ten_steps_on_a_batch_equal_those_by_themselves_and_pygs(name, layout, monkeypatch):
    model, data = ready(name)
    model = model.eval()  # dropout's masks are others
    batch, y = sampled(data, layout=layout, num_neighbors=(3, 2, 2)), torch.randint(WIDTH, (5,))
    written, twin = copy.deepcopy(model), copy.deepcopy(model)
    engine = graphbraid.compile(model, strict=True)
    assert runs_as_one(engine(batch))
    found = [adam(engine, model, batch, y)]
    by_operation(monkeypatch)
    found.append(adam(graphbraid.compile(twin, strict=True), twin, batch, y))
    if layout == "subgraph":
        rows = partial(written, batch.x, batch.edge_index, **named(model, batch))
        found.append(adam(lambda _: rows()[:5], written, batch, y))
    for other in found[1:]:
        torch.testing.assert_close(found[0], other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", MESSAGES)
def test_unwritten_memory_is_read_nowhere(name, nan_memory):
    model, data = ready(name)
    data.edge_index = data.edge_index[:, :0] if name == "distance" else data.edge_index
    data.edge_weight, data.edge_attr = (one[: data.num_edges] for one in (data.edge_weight, data.edge_attr))
    x = data.x.clone().requires_grad_()
    out = graphbraid.compile(model, strict=True)(x, data.edge_index, **named(model, data))
    assert runs_as_one(out)
    assert out.isfinite().all()
    for grad in torch.autograd.grad(out.sum(), [x, *model.parameters()], allow_unused=True):
        assert grad is None or grad.isfinite().all()


@pytest.fixture
def nan_memory():
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)  # tensors of new memory are filled with NaN
    yield
    torch.use_deterministic_algorithms(before)


@pytest.mark.parametrize("name", ["gate, sum", "gate, max", "parameters", "softmax by head"])
def test_parts_that_are_frozen_have_no_gradients(name, monkeypatch):
    model, data = ready(name)
    for one in (
        model.convs[1].row,
        model.convs[0].lin.weight,
        model.convs[0].gates.weight,
        model.convs[2].by_head,
    ):
        one.requires_grad_(requires_grad=False)
    wanted, found = [p for p in model.parameters() if p.requires_grad], []
    for is_native in (True, False):
        if not is_native:
            by_operation(monkeypatch)
        out = graphbraid.compile(model.eval(), strict=True)(data.x, data.edge_index)
        assert runs_as_one(out) == is_native
        found.append(torch.autograd.grad(out.square().sum(), wanted, allow_unused=True))
    for one, other in zip(*found, strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("changed", ["edge_weight", "edge_attr", "row"])
def test_what_messages_read_may_not_be_written_over_before_backward(changed):
    model, data = ready("parameters" if changed == "row" else "features of edges")
    order = data.edge_index[1].argsort(stable=True)  # else the rows are copied into order
    given = {name: one[order].contiguous() for name, one in named(model, data).items()}
    out = graphbraid.compile(model, strict=True)(data.x, data.edge_index[:, order].contiguous(), **given)
    assert runs_as_one(out)
    with torch.no_grad():
        (model.convs[1].row if changed == "row" else given[changed]).mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_weights_of_edges_that_learn_run_by_themselves(monkeypatch):
    model, data = ready("weights of edges")
    engine, weight = graphbraid.compile(model), data.edge_weight.clone()
    assert runs_as_one(engine(data.x, data.edge_index, weight))
    with watched() as calls:
        assert not runs_as_one(engine(data.x, data.edge_index, weight))
    assert calls
    monkeypatch.setattr(BatchRun, "edge_weight", lambda *_: weight.clone().requires_grad_())
    out = engine(data.x, data.edge_index, weight)
    assert "_NativePassBackward" not in functions_behind(out)


def test_a_segment_refuses_messages_that_do_not_fit():
    segment, rows = native.kernels().Segment, torch.rand(3, 4)
    fields = (11, 0, -1, -1, 1, -1, -1, -1, 0, 0, 0.0, 0.0, 1, False, False)
    edges = torch.tensor([0, 1, 2, 3]), torch.tensor([0, 1, 2]), False, False, 0.0, None, None, None, None
    steps = torch.tensor([[0, 0, 0, 0]]), torch.zeros(1), torch.tensor([[0, 0, 0]]), [0]

    def made(*, steps=steps, sources=(0,), heads=1, columns=4, kind=0, count=9):
        programs = [None, steps, *[None] * 7][:count]
        find = partial(lambda *_: ([[], []], programs))
        messages = [*sources], [], [], heads, columns, [kind], False, False, find, None
        return segment([fields], 1, 0, [1], (1.0, 1.0, 1.0), 0.01, -1, [messages])

    def run(of, *, of_edges=((None, None),)):
        begun = of.begin([rows], [], [(edges, 3, 3)], [], [*of_edges])
        return None if begun is None else begun.forward([], [False])

    assert run(made()) is not None
    assert run(made(columns=6)) is None  # rows of 4
    assert run(made(), of_edges=()) is None
    assert run(made(), of_edges=[(torch.rand(2, 4), None)]) is None
    assert run(made(), of_edges=[(None, torch.rand(2))]) is None
    for wrong in ({"heads": 3}, {"kind": 3}, {"sources": (1,)}, {"sources": (-1,)}, {"columns": 0}):
        with pytest.raises(ValueError, match=r"must|heads"):
            made(**wrong)
    more = [{"count": 8}, {"steps": None}]
    for wrong in ([[2, 0, 0, 0]], [[3, 0, 0, 0]], [[4, 0, 0, 0]], [[0, 1, 0, 0]]):
        more.append({"steps": (torch.tensor(wrong), *steps[1:])})
    more += [
        {"steps": (*steps[:2], torch.tensor([wrong]), [0])} for wrong in ([9, 0, 0], [0, 1, 0], [0, 0, 1])
    ]
    for one in more:
        with pytest.raises(ValueError, match=r"must|has"):
            run(made(**one))


FEATURES = 4
LAYERS = {
    "ResGatedGraphConv": partial(pyg.ResGatedGraphConv, edge_dim=FEATURES),
    "PNAConv": partial(
        pyg.PNAConv,
        aggregators=["mean", "min", "max", "std"],
        scalers=["identity", "amplification", "attenuation"],
        deg=torch.tensor([3, 5, 4, 2, 1]),
        edge_dim=FEATURES,
    ),
    "CGConv": lambda i, _: pyg.CGConv(i, dim=FEATURES, aggr="max"),
}
EDGES = {
    "drawn, some twice": lambda: torch.randint(30, (2, 200)),
    "a hub": lambda: torch.stack([torch.randint(30, (200,)), torch.randint(30, (200,)) // 15]),
    "loops": lambda: torch.cat([torch.randint(30, (2, 60)), torch.arange(0, 30, 2).repeat(2, 1)], 1),
    "none": lambda: torch.empty(2, 0, dtype=torch.int64),
}


class WithFeatures(nn.Module):
    """Two layers, with a linear map before one that keeps the width."""

    def __init__(self, name):
        super().__init__()
        self.lin = nn.Linear(CHANNELS, 8)
        self.convs = nn.ModuleList(LAYERS[name](8, 8) for _ in range(2))

    def forward(self, x, edge_index, edge_attr):
        x = self.lin(x)
        for conv in self.convs:
            x = conv(x, edge_index, edge_attr).relu()
        return x


@pytest.mark.parametrize("edges", EDGES)
@pytest.mark.parametrize("name", LAYERS)
def test_layers_with_features_of_edges_equal_pygs_in_float64(name, edges):
    torch.manual_seed(4)
    model, edge_index = WithFeatures(name), EDGES[edges]()
    exact = copy.deepcopy(model).double()
    given = torch.randn(30, CHANNELS), torch.randn(edge_index.shape[1], FEATURES)
    results = []
    for run, dtype in ((graphbraid.compile(model, strict=True), torch.float32), (exact, torch.float64)):
        x, features = (one.to(dtype) for one in given)
        out = run(x.requires_grad_(), edge_index, features)
        if dtype == torch.float32:
            assert runs_as_one(out) == (name != "CGConv")  # on one block, which autograd records
        found = torch.autograd.grad(out.square().mean(), [x, *run.parameters()], allow_unused=True)
        results.append([out, *(torch.zeros(()) if one is None else one for one in found)])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours.double(), theirs.double(), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("edge_dim", [None, FEATURES])
def attention(heads, **options):
    """A model of one layer, whose map of edge features may have a bias."""
    conv = pyg.TransformerConv(CHANNELS, 4, heads=heads, **options)
    if options.get("edge_dim"):
        conv.lin_edge = nn.Linear(options["edge_dim"], 4 * heads)
    return pyg.Sequential("x, edge_index, edge_attr", [(conv, "x, edge_index, edge_attr -> x")])


def with_results(out, x, model):
    return [out, *torch.autograd.grad(out.square().sum(), [x, *model.parameters()])]


@pytest.mark.parametrize("edge_dim", [None, FEATURES])
@pytest.mark.parametrize("heads", [1, 3])
def test_attention_that_drops_coefficients_equals_pygs_with_the_same_mask(heads, edge_dim, monkeypatch):
    torch.manual_seed(1)
    dst = torch.randint(25, (200,)).sort().values
    edge_index, x = torch.stack([torch.randint(30, (200,)), dst]), torch.randn(30, CHANNELS)
    call = x.requires_grad_(), edge_index, torch.randn(200, FEATURES) if edge_dim else None
    model = attention(heads, dropout=0.4, edge_dim=edge_dim)
    engine = graphbraid.compile(model, strict=True)
    torch.manual_seed(5)
    mask = keep_mask(torch.arange(200) + dst, heads, 0.4, seed_of_call()) / 0.6
    torch.manual_seed(5)
    out = engine(*call)
    assert runs_as_one(out)
    monkeypatch.setattr(F, "dropout", lambda alpha, **_: alpha * mask)
    found = [with_results(one, x, model) for one in (out, model(*call))]
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
    monkeypatch.undo()
    torch.testing.assert_close(engine.eval()(*call), model.eval()(*call))


class Encoded(nn.Module):
    """A user's own attention, whose edge features pass a linear map of the model's before the layer's."""

    def __init__(self, learns=True, **options):
        super().__init__()
        self.encoder = nn.Linear(FEATURES, 3)
        self.conv = OwnAttention(CHANNELS, 4, heads=2, edge_dim=3, **options)
        self.encoder.requires_grad_(learns)

    def forward(self, x, edge_index, edge_attr):
        return self.conv(x, edge_index, self.encoder(edge_attr))


class OwnAttention(pyg.TransformerConv):
    """A copy that maps the features twice and scales by a product."""

    def message(self, query_i, key_j, value_j, edge_attr, index, ptr, size_i):
        key, value = (
            rows + self.lin_edge(edge_attr).view(-1, self.heads, self.out_channels)
            for rows in (key_j, value_j)
        )
        alpha = softmax(0.5 * (query_i * key).sum(-1), index, ptr, size_i)
        return value * alpha.unsqueeze(-1)


@pytest.mark.parametrize("edges", EDGES)
@pytest.mark.parametrize("learns", [True, False])
def test_own_attention_to_encoded_features_equals_that_of_float64(edges, learns):
    torch.manual_seed(2)
    model, edge_index = Encoded(learns), EDGES[edges]()
    exact, features = copy.deepcopy(model).double(), torch.randn(edge_index.shape[1], FEATURES)
    results = []
    for run, dtype in ((graphbraid.compile(model, strict=True), torch.float32), (exact, torch.float64)):
        x = torch.linspace(-1, 1, 30 * CHANNELS, dtype=dtype).view(30, CHANNELS).requires_grad_()
        out = run(x, edge_index, features.to(dtype))
        wanted = [x, *(one for one in run.parameters() if one.requires_grad)]
        results.append([out, *torch.autograd.grad(out.square().sum(), wanted)])
        assert dtype == torch.float64 or runs_as_one(out)
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours.double(), theirs.double(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("count", [FEATURES - 1, FEATURES + 1])
def test_features_of_another_width_are_refused_as_by_the_model(count):
    model = attention(2, edge_dim=FEATURES)
    engine, edge_index = graphbraid.compile(model, strict=True), EDGES["a hub"]()
    call = torch.randn(30, CHANNELS), edge_index
    engine(*call, torch.randn(200, FEATURES))
    with pytest.raises((ValueError, RuntimeError)):
        engine(*call, torch.randn(200, count))
