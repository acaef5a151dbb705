"""Models with parts that run as written, between lowered ones: held to PyG in float64, or refused."""

import copy
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tests.beside_pyg import pyg
from tests.fullgraph.matrix.case import GAT, GCN, GIN, SAGE
from tests.fullgraph.matrix.compare import LEFT_ALONE, PARTLY, assert_alike, engine_of, verdict
from tests.fullgraph.matrix.graphs import CHANNELS, CLASSES, NODES, data_of
from tests.fullgraph.matrix.models import HIDDEN, calls
from torch import nn
from torch_geometric.utils import scatter

import graphbraid
from graphbraid import Graph
from graphbraid.errors import ConfigError, RunsAsWrittenWarning
from graphbraid.fullgraph import NotLoweredError, Uncompiled, lower


def parameter(*shape):
    return nn.Parameter(torch.rand(*shape))


# ---- models


def at_the_start(self, x, edge_index):
    x = F.normalize(x * self.scale, dim=-1)
    return self.head(self.second(self.first(x, edge_index).relu(), edge_index))


def gated(self, x, edge_index):
    h = self.first(x, edge_index).relu()
    h = F.normalize(h.atan() * torch.sigmoid(self.gate), dim=-1)
    return self.head(self.second(h, edge_index).relu())


def at_the_end(self, x, edge_index):
    h = self.second(self.first(x, edge_index).relu(), edge_index)
    return self.head(h).sinh()


def residual_over_a_break(self, x, edge_index):
    h = self.first(x, edge_index).relu()
    return self.head(self.second(h.abs().sqrt() + h, edge_index) + h)


def used_twice(self, x, edge_index):
    h = self.first(x, edge_index).cos()
    return self.head(self.second(h, edge_index).relu() + h * h)


def levels_weighed(self, x, edge_index):
    first = self.first(x, edge_index).relu()
    second = self.second(first, edge_index).relu()
    weights = self.weights.softmax(0)
    return self.head(weights[0] * first + weights[1] * second)


def levels_stacked(self, x, edge_index):
    first = self.first(x, edge_index).relu()
    second = self.second(first, edge_index).relu()
    both = torch.stack([first, second], dim=1)
    return self.head((both * both.mean(-1, keepdim=True).softmax(1)).sum(1))


def mean_of_rows(self, x, edge_index):
    h = self.first(x, edge_index)
    h = (h - h.mean(0)) / (1e-3 + h.pow(2).sum(-1).mean().sqrt())
    return self.head(self.second(h.relu(), edge_index))


def size_of_rows(self, x, edge_index):
    h = self.first(x, edge_index)
    h = h - torch.ones(h.size(0), h.size(0), dtype=h.dtype) @ h / h.shape[0]
    return self.head(self.second(h.relu(), edge_index))


def shared_statistics(self, x, edge_index):
    h = self.first(x, edge_index)
    center = h.mean(0)
    h = self.second((h - center).relu(), edge_index)
    return self.head(h + center)


def weight_of_a_layer(self, x, edge_index):
    h = self.first(x, edge_index).relu()
    h = self.inner(h) + F.linear(h, self.inner.weight.t())
    return self.head(self.second(h, edge_index))


def heads(self, x, edge_index):
    h = self.first(x, edge_index).view(-1, 2, HIDDEN // 2)
    h = h * h.softmax(dim=-1)
    return self.head(self.second(h.flatten(1), edge_index))


def a_table(self, x, edge_index):
    h = self.first(x, edge_index).relu() + self.table.weight
    return self.head(self.second(h, edge_index))


def a_table_alone(self, x, edge_index):
    return self.head(self.second(self.table.weight, edge_index).relu())


def a_module(self, x, edge_index):
    h = self.part(self.first(x, edge_index))
    return self.head(self.second(h, edge_index))


def a_module_twice(self, x, edge_index):
    h = self.part(self.first(x, edge_index))
    return self.head(self.part(self.second(h, edge_index)))


def a_layer(self, x, edge_index):
    h = self.first(x, edge_index).relu()
    h = self.layer(h, edge_index).relu()
    return self.head(self.second(h, edge_index))


def own_edges(self, x, edge_index):
    h = self.first(x, edge_index).relu()
    h = self.layer(h, edge_index.flip(0)) + h
    return self.head(self.second(h, edge_index))


def by_mode(self, x, edge_index):
    h = self.first(x, edge_index)
    h = h.sin() if self.training else h.cos()
    return self.head(self.second(h, edge_index))


def a_result_of_two(self, x, edge_index):
    h, _ = torch.split(self.first(x, edge_index), [HIDDEN - 2, 2], dim=1)
    return self.head(self.second(torch.cat([h, h[:, :2].exp()], 1), edge_index))


def attention_as_products(self, x, edge_index):
    h = self.first(x, edge_index)
    return self.head(self.second((h @ h.t()).softmax(1) @ h, edge_index))


def squeezed(self, x, edge_index):
    h = self.second(self.first(x, edge_index).relu(), edge_index)
    return self.head(h * (h @ self.score).squeeze().sigmoid()[:, None])


def squeezed_messages(self, x, edge_index):
    return self.head(self.part(self.second(self.first(x, edge_index).relu(), edge_index), edge_index))


def ids_by_frequency(self, x, edge_index):
    h = self.first(x, edge_index)
    return self.head(self.second(h.sin() + self.table(h.argmax(1)), edge_index))


class ByValue(nn.Module):
    """A module that branches on what it reads, so that it cannot be traced."""

    def __init__(self):
        super().__init__()
        self.scale = parameter(HIDDEN)

    def forward(self, x):
        return x * self.scale if x.abs().max() > 1e-3 else x - self.scale


class Drawn(nn.Module):
    """A module that would draw numbers, but drops nothing."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(HIDDEN, 2, dropout=0.0, batch_first=True)

    def forward(self, x):
        if x.size(0) < 2:
            return x
        return x + self.attention(x[None], x[None], x[None], need_weights=False)[0][0]


class Attending(pyg.MessagePassing):
    """A layer of one's own, whose message reads all edges of a node together."""

    def __init__(self):
        super().__init__(aggr="add")
        self.lin = nn.Linear(2 * HIDDEN, 1)

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x)

    def message(self, x_i, x_j, index, ptr, size_i):
        weight = self.lin(torch.cat([x_i, x_j], -1)).exp()
        return x_j * weight / scatter(weight, index, 0, size_i)[index]


class Squeezed(pyg.MessagePassing):
    """A layer of one's own, whose message has another shape if there is one edge."""

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x)

    def message(self, x_i, x_j):
        return x_j * (x_i * x_j).sum(-1, keepdim=True).squeeze().sigmoid()[:, None]


class Shifted(nn.BatchNorm1d):
    """A batch normalisation of one's own."""

    def forward(self, x):
        return super().forward(x) + 1.0


def by_frequency():
    return {"table": nn.Embedding(HIDDEN, HIDDEN, scale_grad_by_freq=True)}


def table():
    return nn.Embedding(NODES, HIDDEN)


def of_a_pair(self, x, edge_index):
    h = self.first(x, edge_index)
    return self.head(self.layer((h, h.relu()), edge_index))


def of_few_rows(self, x, edge_index):
    """The layer's destinations are the first nodes, and no message reads their rows."""
    h = self.first(x, edge_index)
    some = self.layer((h, h[:9]), edge_index[:, edge_index[1] < 9])
    return self.head(self.second(h + F.pad(some, (0, 0, 0, h.size(0) - 9)), edge_index))


MODELS = {
    "at the start": (at_the_start, GCN, lambda: {"scale": parameter(CHANNELS)}),
    "gated": (gated, GCN, lambda: {"gate": parameter(HIDDEN)}),
    "gated, SAGE": (gated, SAGE, lambda: {"gate": parameter(HIDDEN)}),
    "gated, GAT": (gated, GAT, lambda: {"gate": parameter(HIDDEN)}),
    "a frozen gate": (gated, GCN, lambda: {"gate": nn.Parameter(torch.rand(HIDDEN), requires_grad=False)}),
    "at the end": (at_the_end, GIN, dict),
    "residual over a break": (residual_over_a_break, GCN, dict),
    "used twice": (used_twice, SAGE, dict),
    "levels weighed": (levels_weighed, GCN, lambda: {"weights": parameter(2)}),
    "levels stacked": (levels_stacked, GCN, dict),
    "mean of rows": (mean_of_rows, GCN, dict),
    "size of rows": (size_of_rows, GAT, dict),
    "shared statistics": (shared_statistics, GCN, dict),
    "weight of a layer": (weight_of_a_layer, GCN, lambda: {"inner": nn.Linear(HIDDEN, HIDDEN, bias=False)}),
    "heads": (heads, GCN, dict),
    "a table": (a_table, GCN, lambda: {"table": table()}),
    "a layer that reads a table": (a_table_alone, GCN, lambda: {"table": table()}),
    "GraphNorm": (a_module, GCN, lambda: {"part": pyg.GraphNorm(HIDDEN)}),
    "PairNorm": (a_module, SAGE, lambda: {"part": pyg.PairNorm()}),
    "GroupNorm": (a_module, GCN, lambda: {"part": nn.GroupNorm(2, HIDDEN)}),
    "RMSNorm": (a_module, GCN, lambda: {"part": nn.RMSNorm(HIDDEN)}),
    "batch norm of one's own": (a_module, GCN, lambda: {"part": Shifted(HIDDEN)}),
    "batch norm of one's own, twice": (a_module_twice, GCN, lambda: {"part": Shifted(HIDDEN)}),
    "centered by a selection": (a_module, GCN, lambda: {"part": Centered()}),
    "by value": (a_module, GCN, lambda: {"part": ByValue()}),
    "by value, twice": (a_module_twice, GIN, lambda: {"part": ByValue()}),
    "attention of all to all": (a_module, GCN, lambda: {"part": Drawn()}),
    "MFConv": (a_layer, GCN, lambda: {"layer": pyg.MFConv(HIDDEN, HIDDEN)}),
    "MFConv of a pair": (of_a_pair, GCN, lambda: {"layer": pyg.MFConv((HIDDEN, HIDDEN), HIDDEN, 3)}),
    "MFConv of few rows": (of_few_rows, GCN, lambda: {"layer": pyg.MFConv((HIDDEN, HIDDEN), HIDDEN, 3)}),
    "a layer of one's own": (a_layer, SAGE, lambda: {"layer": Attending()}),
    "other edges": (own_edges, SAGE, lambda: {"layer": Attending()}),
    "by mode": (by_mode, GCN, dict),
    "attention as products": (attention_as_products, GCN, dict),
    "squeezed": (squeezed, GCN, lambda: {"score": parameter(HIDDEN, 1)}),
    "squeezed messages": (squeezed_messages, GCN, lambda: {"part": Squeezed()}),
    "ids by frequency": (ids_by_frequency, GCN, by_frequency),
    "a result of two": (a_result_of_two, GCN, dict),
}


def made(name):
    run, make, parts = MODELS[name]
    torch.manual_seed(5)
    return calls(run)(make, **parts())


@pytest.mark.parametrize("name", MODELS)
def test_equals_pyg(name):
    data, model = data_of("untidy"), made(name)
    state = torch.get_rng_state()
    engine = engine_of(model, data)
    assert torch.equal(state, torch.get_rng_state())  # trials draw no numbers of the user's
    assert verdict(engine) != LEFT_ALONE, engine.explain()
    assert any(op.moves for op in engine.program.ops)
    assert_alike(model, made(name), data, engine, steps=10)


@pytest.mark.parametrize("name", ["gated", "by value", "a layer of one's own", "heads"])
@pytest.mark.parametrize("graph", ["directed", "undirected", "real"])
def test_equals_pyg_on_other_graphs(name, graph):
    data, model = data_of(graph), made(name)
    engine = engine_of(model, data)
    assert verdict(engine) == PARTLY, engine.explain()
    assert_alike(model, made(name), data, engine, steps=3)


def test_what_works_row_by_row_is_pruned_and_what_couples_rows_is_not():
    data = data_of("untidy")
    for name, prunes in (
        ("gated", True),
        ("levels weighed", True),
        ("heads", True),
        ("by value", False),
        ("mean of rows", False),
        ("size of rows", False),
        ("a layer of one's own", False),
        ("GraphNorm", False),
        ("a table", False),
    ):
        engine = engine_of(made(name), data)
        if engine.breaks:
            assert any(op.couples_rows for op in engine.breaks) != prunes, name
            assert (engine.lowered.num_rows(1) < NODES) == prunes, name


# ---- what is refused, and why


def overwrites(self, x, edge_index):
    h = self.first(x, edge_index)
    torch.sigmoid_(h)
    return self.head(self.second(h, edge_index))


def fewer_rows(self, x, edge_index):
    return self.head(self.second(self.first(x, edge_index), edge_index))[:5]


def by_a_value(self, x, edge_index):
    h = self.first(x, edge_index)
    return self.head(self.second(h if h.mean() > 0 else -h, edge_index))


def unread(self, x, edge_index):
    h = self.first(x, edge_index)
    self.part(h)
    return self.head(self.second(h, edge_index))


def beside_a_mean(self, x, edge_index):
    h = self.second(self.first(x, edge_index).sin(), edge_index)
    return self.head(h), h.mean()


def of_numbers(self, x, edge_index):
    h = self.first(x, edge_index) * (self.values[0] * 2)
    return self.head(self.second(h, edge_index))


def looked_up(self, x, edge_index):
    h = self.first(x, edge_index)
    return self.head(self.second(h + self.part(h.argmax(1)), edge_index))


def selected_rows(self, x, edge_index):
    h = self.first(x, edge_index)
    return self.head(self.second(h + h[h[:, 0] > 0].relu().mean(0), edge_index))


def numbers_of_rows(self, x, edge_index):
    h = self.first(x, edge_index)
    return self.head(self.second(h + torch.where(h[:, 0] > -99)[0].cos()[:, None], edge_index))


def rows_of_a_module(self, x, edge_index):
    h = self.first(x, edge_index)
    return self.head(self.second(h + self.part(h).relu().mean(0), edge_index))


class Selecting(nn.Module):
    """A module whose result has as many rows as values are positive."""

    def forward(self, x):
        return x[x[:, 0] > 0] if len(x) else x


class Centered(nn.Module):
    """A module that selects rows, and returns a row for each node."""

    def forward(self, x):
        return x - x[x[:, 0] > x.mean()].mean(0) if x.ndim == 2 else x


class Counting(nn.Module):
    """A module that counts its calls, and reads the count."""

    count = 0

    def forward(self, x):
        self.count += 1
        return x * self.count if x.sum() > -1e9 else x


@pytest.mark.parametrize(
    ("run", "parts", "code", "line"),
    [
        (overwrites, dict, "in-place", "torch.sigmoid_(h)"),
        (fewer_rows, dict, "no-operation", ""),
        (by_a_value, dict, "reads-values", "h.mean() > 0"),
        (unread, lambda: {"part": Shifted(HIDDEN)}, "unread", "super().forward(x) + 1.0"),
        (beside_a_mean, dict, "no-operation", ""),
        (of_numbers, lambda: {"values": [parameter(HIDDEN)]}, "", ""),
        (a_module, lambda: {"part": Counting()}, "effects", ""),
        (selected_rows, dict, "form", "h[:, 0] > 0"),
        (numbers_of_rows, dict, "form", "torch.where"),
        (rows_of_a_module, lambda: {"part": Selecting()}, "form", ""),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_cannot_stand_between_lowered_operations_runs_as_written(run, parts, code, line):
    torch.manual_seed(5)
    model, data = calls(run)(GCN, **parts()), data_of("untidy")
    twin = copy.deepcopy(model)
    engine = engine_of(model, data)
    assert isinstance(engine, Uncompiled), engine.explain()
    assert engine.why.code == code or not code
    if line:
        path, _, number = engine.why.where.rpartition(":")
        assert line in Path(path).read_text(encoding="utf-8").splitlines()[int(number) - 1]
        assert engine.why.where in engine.explain()
    twin.load_state_dict(model.state_dict())
    expected, out = twin(data.x, data.edge_index), engine.predict()
    for ours, theirs in zip(*(x if isinstance(x, tuple) else (x,) for x in (out, expected)), strict=True):
        if run is not unread and not isinstance(getattr(model, "part", None), Counting):
            torch.testing.assert_close(ours, theirs.detach())


def test_a_model_whose_layers_all_run_as_written_has_no_breaks():
    torch.manual_seed(5)
    engine = engine_of(calls(gated)(pyg.SuperGATConv, gate=parameter(HIDDEN)), data_of("untidy"))
    assert isinstance(engine, Uncompiled)
    assert "its forward cannot be traced" in engine.explain()


def test_breaks_that_cost_more_than_the_layers_save_are_refused():
    """With an edge for every ten nodes, copying rows costs more than a fast sum saves."""
    graph = Graph.from_edge_index(torch.tensor([[0, 1], [1, 2]]), num_nodes=20, x=torch.randn(20, CHANNELS))
    engine = graphbraid.compile(made("gated"), graph, nodes=[1, 2])
    assert isinstance(engine, Uncompiled)
    assert engine.why.code == "small"


def test_strict_refuses_any_part_that_would_run_as_written():
    data = data_of("untidy")
    for name in ("gated", "by value"):
        with pytest.raises(ConfigError, match=r"strict=True, .*test_breaks\.py:\d+"):
            graphbraid.compile(made(name), data, nodes=data.train_mask, strict=True)
    model = calls(lambda self, x, e: self.head(self.part(self.first(x, e))))(GCN, part=nn.ReLU())
    engine = graphbraid.compile(model, data, nodes=data.train_mask, strict=True)
    assert not engine.breaks
    model.part = Shifted(HIDDEN)
    with pytest.raises(ConfigError, match="strict=True"):
        engine()
    with pytest.raises(ConfigError, match="strict=True"):
        engine.predict()


def test_one_warning_says_once_per_model_which_parts_run_as_written():
    data, model = data_of("untidy"), made("by value")
    with pytest.warns(RunsAsWrittenWarning, match=r"parts of the model run(.|\n)*test_breaks.py:\d+: part"):
        engine_of(model, data)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine_of(model, data)
    with pytest.warns(RunsAsWrittenWarning, match="the whole model runs as it is written"):
        engine_of(calls(by_a_value)(GCN), data)


def test_explain_lists_the_parts_with_file_line_and_share():
    engine = engine_of(made("gated"), data_of("untidy"))
    text = engine.explain(measure=True)
    assert "between lowered operations: 1 graph break" in text
    assert "parts that run as written" in text.splitlines()[-1]
    calls_of_it = [call for op in engine.breaks for call in op.calls]
    assert calls_of_it
    assert all("test_breaks.py:" in call.where and call.code for call in calls_of_it if call.why)


def test_lowering_alone_refuses_breaks():
    data = data_of("untidy")
    with pytest.raises(NotLoweredError):
        lower(made("by value"), Graph.from_pyg(data), data.train_mask)


def test_a_break_whose_result_loses_rows_later_is_an_error():
    """A copy of one row to all would be silent."""

    class Falling(nn.Module):
        def forward(self, x):
            return x[:1] if x.mean() > 100 else x

    data, model = data_of("untidy"), calls(a_module)(GCN, part=Falling())
    engine = engine_of(model, data)
    assert engine.breaks
    model.first.bias.data.fill_(1e3)
    with pytest.raises(ConfigError, match=r"returned \(1, 8\) where \(24, 8\) is expected"):
        engine()


# ---- changes


def test_what_a_break_reads_may_change():
    data = data_of("untidy")

    def scaled(self, x, edge_index):
        h = self.first(x, edge_index)
        return self.head(self.second(h.sin() * self.factor, edge_index))

    torch.manual_seed(5)
    model = calls(scaled)(GCN, factor=2.0)
    engine = engine_of(model, data)

    def expected():
        return model(data.x, data.edge_index)[data.train_mask]

    assert engine.breaks
    for change in (
        lambda: setattr(model, "factor", 3.0),
        lambda: setattr(model, "factor", parameter(HIDDEN)),
        lambda: model.factor.data.mul_(2),
        lambda: setattr(data, "x", data.x * 2),
        lambda: data.edge_index.copy_(data.edge_index.flip(0)),
    ):
        change()
        torch.testing.assert_close(engine(), expected())


def test_a_buffer_and_a_tensor_that_are_seen_in_parts_may_get_other_memory():
    data, held = data_of("untidy"), [torch.rand(3, HIDDEN)]

    def scaled(self, x, edge_index):
        h = self.first(x, edge_index).sin() * self.rows[:, :1] * held[0][1]
        return self.head(self.second(h * self.columns[0], edge_index))

    torch.manual_seed(5)
    model = calls(scaled)(GCN)
    model.register_buffer("rows", torch.rand(NODES, 3))
    model.register_buffer("columns", torch.rand(2, HIDDEN))
    engine = engine_of(model, data)
    assert engine.breaks
    for tensor in (model.rows, model.columns, held[0]):
        tensor.data = tensor.data * 3
        torch.testing.assert_close(engine(), model(data.x, data.edge_index)[data.train_mask])


def test_what_a_module_in_a_break_reads_may_change():
    data, model = data_of("untidy"), made("by value")
    engine = engine_of(model, data)
    for change in (
        lambda: model.part.scale.data.mul_(-3),
        lambda: setattr(model.part, "scale", parameter(HIDDEN)),
        lambda: setattr(model, "part", Shifted(HIDDEN)),
        model.eval,
    ):
        change()
        expected = copy.deepcopy(model)(data.x, data.edge_index)[data.train_mask]
        torch.testing.assert_close(engine(), expected)


def test_a_dropout_in_a_break_draws_from_torch():
    data = data_of("untidy")

    def drops(self, x, edge_index):
        h = F.alpha_dropout(self.first(x, edge_index), 0.5, self.training)
        return self.head(self.second(h, edge_index))

    model = calls(drops)(GCN)
    engine = engine_of(model, data)
    torch.manual_seed(1)
    first = engine()
    assert not torch.equal(first, engine())
    torch.manual_seed(1)
    assert torch.equal(first, engine())
    torch.testing.assert_close(engine.predict(), model.eval()(data.x, data.edge_index).detach())


def test_features_that_the_layers_share_stay_as_they_are():
    """A break reads views of buffers; it must never write to them, nor to the user's features."""
    data, model = data_of("untidy"), made("at the start")
    before = data.x.clone()
    engine = engine_of(model, data)
    for _ in range(2):
        engine().sum().backward()
    assert torch.equal(data.x, before)
    assert engine.predict().shape[1] == CLASSES


class Branching(nn.Module):
    """Reads a parameter before it branches on a value, so that its trace fails on the way."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(HIDDEN) + 0.5)

    def forward(self, x):
        x = x + self.scale
        return x * self.scale if x.sum() > 0 else x


@pytest.mark.parametrize("asks", [False, True])
def test_a_module_that_reads_a_parameter_before_its_trace_fails_is_a_break(asks):
    def run(self, x, edge_index):
        h = self.own(self.first(x, edge_index) + 1) + self.own.scale
        return self.head(h.relu() if asks and not torch.is_grad_enabled() else h + 1)

    torch.manual_seed(0)
    model, data = calls(run)(GCN, own=Branching()), data_of("untidy")
    twin = copy.deepcopy(model)
    engine = engine_of(model, data)
    assert verdict(engine) == (LEFT_ALONE if asks else PARTLY), engine.explain()
    assert ("another without gradients" if asks else "own: its forward cannot be traced") in engine.explain()
    if not asks:
        assert_alike(model, twin, data, engine)
