"""Edge features in full-graph training: followed as they change, copied where needed, refused where wrong."""

import copy

import pytest
import torch
from tests.beside_pyg import pyg
from tests.fullgraph.fake_device import FakeDevice
from tests.fullgraph.matrix.case import layer
from tests.fullgraph.matrix.cases_edges import FEATURES, GINE, Featured, with_features
from tests.fullgraph.matrix.compare import LEFT_ALONE, LOWERED, engine_of, verdict
from tests.fullgraph.matrix.graphs import CHANNELS, CLASSES, data_of
from tests.fullgraph.matrix.models import Stack
from tests.ops.graphs import assert_same_bits_with_any_threads
from torch import nn

import graphbraid
from graphbraid import Graph, Trainer, native
from graphbraid.errors import DataError
from graphbraid.fullgraph import Engine, NotLoweredError, Uncompiled, estimated_bytes

CLOSE = {"rtol": 1e-4, "atol": 1e-5}
MAKERS = {
    "gine": GINE,
    "gat": layer(pyg.GATConv, edge_dim=FEATURES, heads=2, concat=False),
    "gatv2": layer(pyg.GATv2Conv, edge_dim=FEATURES, heads=2, concat=False),
}


@pytest.fixture(params=MAKERS)
def make(request):
    """Each layer that reads edge features; weights drawn by chance may let no gradient through a ReLU."""
    torch.manual_seed(5)
    return MAKERS[request.param]


def data_with_features(name="untidy"):
    return with_features()(data_of(name))


def expected(model, data):
    return model(data.x, data.edge_index, data.edge_attr)[data.train_mask]


def test_features_written_to_or_replaced_are_noticed(make):
    data, model = data_with_features(), Featured(make)
    engine = engine_of(model, data)
    torch.testing.assert_close(engine(), expected(model, data), **CLOSE)
    data.edge_attr.mul_(-2)
    torch.testing.assert_close(engine(), expected(model, data), **CLOSE)
    data.edge_attr = torch.rand(data.num_edges, FEATURES)
    torch.testing.assert_close(engine(), expected(model, data), **CLOSE)
    assert engine.why is None


def test_a_graph_of_ones_own_brings_its_features_and_changes_of_them_are_noticed(make):
    data, model = data_with_features(), Featured(make)
    graph = Graph.from_pyg(data)
    engine = graphbraid.compile(model, graph)
    train = graph.split("train")
    torch.testing.assert_close(engine(), expected(model, data), **CLOSE)
    graph.edge_attr.add_(1)
    data.edge_attr += 1
    torch.testing.assert_close(engine(), expected(model, data), **CLOSE)
    torch.testing.assert_close(engine.predict()[train], expected(model, data), **CLOSE)


def test_features_that_require_gradients_get_them(make):
    data, model = data_with_features(), Featured(make)
    engine = engine_of(model, data)
    data.edge_attr.requires_grad_()
    assert "require gradients" in engine.why.reason
    engine().sum().backward()
    assert data.edge_attr.grad.abs().sum() > 0


@pytest.mark.parametrize("as_graph", [False, True])
def test_a_model_without_edge_features_takes_no_copy_of_them(as_graph):
    data = data_with_features()
    graph = Graph.from_pyg(data) if as_graph else data
    engine = graphbraid.compile(Stack(pyg.GCNConv), graph, nodes=data.train_mask)
    held = engine._tracker.source.graph.edge_attr
    assert held is graph.edge_attr if as_graph else held is None


def test_features_in_the_graphs_order_stay_in_place():
    data = data_with_features("directed")
    order = torch.argsort(data.edge_index[1] * data.num_nodes + data.edge_index[0])
    data.edge_index = data.edge_index[:, order]
    engine = engine_of(Featured(GINE), data)
    engine()
    assert engine._tracker.source.graph.edge_attr is data.edge_attr
    whole = graphbraid.compile(Featured(GINE), data, nodes=torch.arange(data.num_nodes))
    whole()
    rows = whole.runner.training_step.plan.edge_features.rows(0)
    assert rows.data_ptr() == data.edge_attr.data_ptr()


def test_what_explain_says():
    said = engine_of(Featured(GINE), data_with_features()).explain()
    assert "rectified sum(x): 3 edge features, mapped + 1 I" in said
    assert "edge features are read in the graph's order" in said
    assert "edge features need the transpose's order" in said


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda attr: attr[:, :2], "takes 3 edge features; the graph has 2"),
        (lambda attr: attr.long(), "edge_attr"),
        (lambda attr: attr[:5], "edge_attr"),
        (lambda attr: attr[:, 0], "it takes 'edge_attr'"),
    ],
)
def test_features_that_do_not_fit_are_left_to_the_model(change, reason):
    data = data_with_features()
    data.edge_attr = change(data.edge_attr)
    engine = engine_of(Featured(GINE), data)
    assert verdict(engine) == LEFT_ALONE
    assert reason in engine.explain()
    with pytest.raises((RuntimeError, AssertionError, ValueError, IndexError)):
        engine()


def test_weights_of_the_graph_do_not_count():
    data, model = data_with_features(), Featured(GINE)
    assert Graph.from_pyg(data).csc.weight is not None
    engine = engine_of(model, data)
    assert verdict(engine) == LOWERED
    torch.testing.assert_close(engine(), expected(model, data), **CLOSE)
    without = copy.copy(data)
    del without.edge_weight
    torch.testing.assert_close(engine_of(model, without)(), expected(model, data), **CLOSE)


def test_a_second_backward_pass_gives_the_same_gradients(make):
    data, model = data_with_features(), Featured(make)
    out = engine_of(model, data)()
    grads = []
    for _ in range(2):
        model.zero_grad()
        out.sum().backward(retain_graph=True)
        grads.append([p.grad.clone() for p in model.parameters()])
    for first, second in zip(*grads, strict=True):
        assert torch.equal(first, second)


@pytest.mark.parametrize(("name", "symbol"), [("gine", "rectified sum"), ("gatv2", "attention")])
def test_steps_are_timed_and_have_a_floor(name, symbol):
    floor = engine_of(Featured(MAKERS[name]), data_with_features()).floor(measure=True)
    assert symbol in str(floor.to_json())


def test_a_floor_counts_the_map_of_edge_features():
    data, flops = data_with_features(), []
    for columns in (1, 5):
        data.edge_attr = torch.rand(data.num_edges, columns)
        model = Featured(layer(pyg.GATv2Conv, edge_dim=columns), hidden=8)
        engine = graphbraid.compile(model, data, nodes=torch.arange(data.num_nodes))
        first = next(op.out for op in engine.program.ops if op.reads_edges)
        operations = engine.floor().operations
        flops.append([one.work.flops for one in operations if one.operation == first])
    forward, backward = (wide - narrow for narrow, wide in zip(*flops, strict=True))
    assert forward == backward == 2 * (5 - 1) * data.num_edges * 8


def test_attention_that_gets_features_it_has_no_map_for_is_left_to_pyg():
    data, model = data_with_features(), Featured(layer(pyg.GATv2Conv))
    engine = engine_of(model, data)
    assert verdict(engine) == LEFT_ALONE
    assert "gets edge_attr without edge_dim" in engine.explain()
    with pytest.raises(AssertionError):
        engine()


def test_bits_do_not_depend_on_threads(make):
    data, model = data_with_features("real"), Featured(make)

    def run():
        out = engine_of(model, data)()
        return [out.detach(), *torch.autograd.grad(out.sum(), [*model.parameters()])]

    assert_same_bits_with_any_threads(run)


def test_rows_of_a_wider_matrix_are_read_where_they_are(make):
    data, model = data_with_features("directed"), Featured(make)
    order = torch.argsort(data.edge_index[1] * data.num_nodes + data.edge_index[0])
    data.edge_index, wide = data.edge_index[:, order], torch.rand(data.num_edges, FEATURES + 2)
    data.edge_attr = wide[:, :FEATURES]
    engine = graphbraid.compile(model, data, nodes=torch.arange(data.num_nodes))
    torch.testing.assert_close(engine(), model(data.x, data.edge_index, data.edge_attr), **CLOSE)
    engine().sum().backward()


def test_an_edge_list_without_edges(make):
    data = data_with_features()
    data.edge_index, data.edge_attr = data.edge_index[:, :0], data.edge_attr[:0]
    data.edge_weight = None
    model = Featured(make)
    engine = engine_of(model, data)
    torch.testing.assert_close(engine(), expected(model, data), **CLOSE)
    engine().sum().backward()


def test_the_user_is_told_of_a_graph_that_does_not_fit():
    with pytest.raises(DataError, match="edge_attr has 3 rows"):
        Graph.from_edge_index([[0], [1]], edge_attr=torch.zeros(3, 1))


def test_a_network_of_rows_that_are_too_narrow_is_left_to_the_model():
    model = Featured(lambda i, o: pyg.GINEConv(nn.Linear(i, o)), hidden=CHANNELS)
    engine = engine_of(model, data_with_features())
    assert verdict(engine) == LEFT_ALONE
    assert f"adds rows of {FEATURES} edge features to rows of {CHANNELS} columns" in engine.explain()


@pytest.mark.parametrize("name", ["gat", "gatv2"])
def test_attention_to_features_runs_as_written_on_a_device_and_says_why(name):
    data, model = data_with_features(), Featured(MAKERS[name])
    graph = Graph.from_pyg(data)
    engine = graphbraid.compile(model, graph, device=FakeDevice())
    assert isinstance(engine, Uncompiled)
    assert "attention to edge features has no kernel" in engine.explain()
    torch.testing.assert_close(engine(), expected(model, data), **CLOSE)
    engine().sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    with pytest.raises(NotLoweredError, match="no kernel"):
        estimated_bytes(model, graph, FakeDevice())
    assert estimated_bytes(model, graph) > 0


def test_the_trainer_trains_attention_to_features_on_a_device_as_written(monkeypatch):
    graph = Graph.from_pyg(data_with_features())
    monkeypatch.setattr("graphbraid.train.runtime.device_at", lambda place: FakeDevice())
    monkeypatch.setattr("graphbraid.fullgraph.device.device_at", lambda place: FakeDevice())
    trainer = Trainer(Featured(MAKERS["gat"]), graph, mode="full", epochs=2, eval_every=0)
    result = trainer.fit()
    assert len(result.history) == 2


def test_sums_of_neighbours_and_features_have_a_kernel_on_a_device(monkeypatch):
    monkeypatch.setattr(native, "kernels", lambda: None)  # the twins, which the fake can record
    data, model = data_with_features(), Featured(MAKERS["gine"])
    engine = graphbraid.compile(model, Graph.from_pyg(data), device=FakeDevice())
    assert isinstance(engine, Engine)
    for _ in range(3):
        torch.testing.assert_close(engine(), expected(model, data), **CLOSE)


class Gated(pyg.MessagePassing):
    """Gates of both ends and the edge, by one linear map of all three or by several."""

    def __init__(self, channels, features, how, aggr):
        super().__init__(aggr=aggr)
        self.how, self.value = how, nn.Linear(channels, channels)
        self.gate = nn.Linear(features + (2 * channels if how == "joined" else 0), channels)

    def forward(self, x, edge_index, edge_attr):
        if self.how == "mapped before":
            edge_attr = self.gate(edge_attr)
        return self.propagate(edge_index, x=x, value=self.value(x), edge_attr=edge_attr)

    def message(self, x_i, x_j, value_j, edge_attr):
        if self.how == "joined":
            return torch.sigmoid(self.gate(torch.cat([x_i, edge_attr, x_j], dim=-1))) * value_j
        gate = edge_attr
        if self.how == "mapped":
            gate = self.gate(edge_attr)
        elif self.how == "bias computed":
            gate = nn.functional.linear(edge_attr, self.gate.weight, self.gate.bias * 2)
        return torch.sigmoid(x_i + x_j + gate) * value_j


MAPS = {
    "mapped": (lambda: Gated(CHANNELS, FEATURES, "mapped", "sum"), True),
    "mapped before": (lambda: Gated(CHANNELS, FEATURES, "mapped before", "mean"), True),
    "joined": (lambda: Gated(CHANNELS, FEATURES, "joined", "max"), True),
    "a bias that is computed": (lambda: Gated(CHANNELS, FEATURES, "bias computed", "sum"), False),
    "TransformerConv": (lambda: pyg.TransformerConv(CHANNELS, 4, heads=2, edge_dim=FEATURES), True),
    "ResGatedGraphConv": (lambda: pyg.ResGatedGraphConv(CHANNELS, 8, edge_dim=FEATURES), True),
    "GENConv": (lambda: pyg.GENConv(CHANNELS, 8, aggr="mean", edge_dim=FEATURES, norm=None), True),
}
"""Layers that map edge features in their messages, and whether one kernel runs these."""


@pytest.mark.parametrize("name", MAPS)
def test_linear_maps_of_few_features_are_steps_of_one_kernel(name):
    torch.manual_seed(3)
    make, is_fused = MAPS[name]
    data, model = (
        data_with_features(),
        pyg.Sequential(
            "x, edge_index, edge_attr", [(make(), "x, edge_index, edge_attr -> x"), nn.LazyLinear(CLASSES)]
        ),
    )
    model(data.x, data.edge_index, data.edge_attr)
    engine, twin = engine_of(model, data), copy.deepcopy(model)
    assert ("in one kernel" in engine.explain()) is is_fused
    assert ("on blocks of edges" in engine.explain()) is not is_fused
    on_batches = graphbraid.compile(copy.deepcopy(model))
    for _ in range(2):
        out, theirs = engine(), expected(twin, data)
        whole = on_batches(data.x, data.edge_index, data.edge_attr)[data.train_mask]
        torch.testing.assert_close(out, theirs, **CLOSE)
        torch.testing.assert_close(whole, theirs, **CLOSE)
        weights = torch.rand(out.shape, generator=torch.Generator().manual_seed(1))
        for made in (out, whole, theirs):
            (made * weights).sum().backward()
        for one, other, third in zip(*(m.parameters() for m in (model, twin, on_batches)), strict=True):
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-4)
            torch.testing.assert_close(third.grad, other.grad, rtol=1e-3, atol=1e-4)
        for p, q, r in zip(*(m.parameters() for m in (model, twin, on_batches)), strict=True):
            new = torch.randn(p.shape, generator=torch.Generator().manual_seed(2))
            p.data, q.data, r.data = new, new.clone(), new.clone()  # other memory than the one that was read


def test_a_map_of_many_features_runs_as_written():
    data = with_features(80)(data_of("untidy"))
    model = pyg.Sequential(
        "x, edge_index, edge_attr",
        [
            (Gated(CHANNELS, 80, "mapped", "sum"), "x, edge_index, edge_attr -> x"),
            nn.Linear(CHANNELS, CLASSES),
        ],
    )
    engine = engine_of(model, data)
    assert "on blocks of edges" in engine.explain()
    torch.testing.assert_close(engine(), expected(model, data), **CLOSE)
