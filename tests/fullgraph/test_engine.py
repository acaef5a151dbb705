"""The engine against the models it is made from: outputs, gradients, training, and what it refuses."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from tests.extras import NO_PYG
from tests.fullgraph.graphs import CHANNELS, CLASSES, make_graph, unlowerable
from tests.suites import few_of
from torch import nn

import graphbraid
from graphbraid import Graph
from graphbraid import nn as gnn
from graphbraid.errors import ConfigError, DataError, ResourceError
from graphbraid.fullgraph import ALL, Engine, Uncompiled
from graphbraid.fullgraph.lowering.options import CompileOptions
from graphbraid.graph.csc import Csc
from graphbraid.machine.hardware import Rates

MODELS = {
    "gcn": lambda **o: gnn.GCN(CHANNELS, 16, CLASSES, 3, **o),
    "gcn improved, wide": lambda **o: gnn.GCN(CHANNELS, 40, CLASSES, 2, improved=True, **o),
    "gcn without loops": lambda **o: gnn.GCN(CHANNELS, 16, CLASSES, 2, add_self_loops=False, **o),
    "gcn plain sum": lambda **o: gnn.GCN(CHANNELS, 8, CLASSES, 2, normalize=False, **o),
    "sage": lambda **o: gnn.GraphSAGE(CHANNELS, 16, CLASSES, 3, **o),
    "sage sum without root": lambda **o: gnn.GraphSAGE(
        CHANNELS, 16, CLASSES, 2, aggr="sum", root_weight=False, **o
    ),
    "sage max": lambda **o: gnn.GraphSAGE(CHANNELS, 16, CLASSES, 3, aggr="max", **o),
    "sage projected": lambda **o: gnn.GraphSAGE(CHANNELS, 16, CLASSES, 2, project=True, **o),
    "sage projected max, rows of length 1": lambda **o: gnn.GraphSAGE(
        CHANNELS, 16, CLASSES, 2, project=True, aggr="max", normalize=True, **o
    ),
    "sage, rows of length 1": lambda **o: gnn.GraphSAGE(CHANNELS, 16, CLASSES, 3, normalize=True, **o),
    "gin": lambda **o: gnn.GIN(CHANNELS, 16, CLASSES, 2, eps=0.3, **o),
    "gin, learned eps": lambda **o: gnn.GIN(CHANNELS, 16, CLASSES, 3, eps=0.3, train_eps=True, **o),
    "gat": lambda **o: gnn.GAT(CHANNELS, 16, CLASSES, 2, heads=4, **o),
    "gat residual": lambda **o: gnn.GAT(CHANNELS, 16, CLASSES, 2, heads=2, out_heads=3, residual=True, **o),
    "gat, rows dropped": lambda **o: gnn.GAT(
        CHANNELS, 16, CLASSES, 2, heads=2, row_dropout=o.get("dropout", 0.0), **o
    ),
    "gatv2": lambda **o: gnn.GATv2(CHANNELS, 16, CLASSES, 3, heads=2, **o),
    "gatv2 shared": lambda **o: gnn.GATv2(CHANNELS, 16, CLASSES, 2, heads=2, share_weights=True, **o),
    "mlp": lambda **o: gnn.MLP(CHANNELS, 16, CLASSES, 2, **o),
    "layer norm, elu": lambda **o: gnn.GCN(CHANNELS, 16, CLASSES, 3, norm="layer", act="elu", **o),
    "batch norm, gelu": lambda **o: gnn.GraphSAGE(CHANNELS, 16, CLASSES, 2, norm="batch", act="gelu", **o),
}
GRAPHS = {
    "directed": {},
    "undirected": {"symmetric": True},
    "weighted": {"weighted": True},
    "sparse": {"sparse": True, "density": 0.1},
    "all nodes train": {"train": 60},
}


def loss_of(outputs, graph):
    return F.cross_entropy(outputs, graph.y[graph.split("train")])


def gradients(model, loss):
    for parameter in model.parameters():
        parameter.grad = None
    loss.backward()
    return [torch.zeros(()) if p.grad is None else p.grad.clone() for p in model.parameters()]


def assert_same(model, graph, engine):
    """Loss, gradients and predictions are those of the model itself."""
    model.train()
    expected = loss_of(model(graph.x, graph.csc)[graph.split("train")], graph)
    actual = loss_of(engine(), graph)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)
    for ours, theirs in zip(gradients(model, actual), gradients(model, expected), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=2e-5)
    model.eval()
    torch.testing.assert_close(engine.predict(), model(graph.x, graph.csc).detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", GRAPHS)
@pytest.mark.parametrize("name", MODELS)
def test_equals_the_model(name, kind):
    graph = make_graph(**GRAPHS[kind])
    torch.manual_seed(1)
    model = MODELS[name](dropout=0.0)
    assert_same(model, graph, graphbraid.compile(model, graph))


@given(
    name=st.sampled_from([*MODELS]),
    kind=st.sampled_from([*GRAPHS]),
    passes=st.sets(st.sampled_from(sorted(ALL))),
    seed=st.integers(0, 5),
)
def test_any_choice_of_passes_gives_the_same_numbers(name, kind, passes, seed):
    graph = make_graph(**GRAPHS[kind] | {"seed": seed})
    torch.manual_seed(seed)
    model = MODELS[name](dropout=0.0)
    assert_same(model, graph, graphbraid.compile(model, graph, passes=passes))


@pytest.mark.parametrize("name", ["gcn", "sage", "gin", "gat", "mlp"])
def test_rows_may_be_rounded_before_they_are_aggregated(name):
    graph = make_graph(symmetric=True)
    torch.manual_seed(1)
    model = MODELS[name](dropout=0.0)
    exact, rounded = (graphbraid.compile(model, graph, storage=s) for s in ("float32", "bfloat16"))
    expected, actual = loss_of(exact(), graph), loss_of(rounded(), graph)
    torch.testing.assert_close(actual, expected, rtol=2e-2, atol=0)
    assert torch.equal(actual, expected) == (name in ("gat", "mlp"))  # those aggregate nothing
    for a, b in zip(gradients(model, actual), gradients(model, expected), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=2e-2 * float(b.abs().max() + 1e-3))
    assert "bfloat16" in rounded.explain() or name in ("gat", "mlp")


@pytest.mark.parametrize("name", [n for n in MODELS if n != "mlp"])
def test_memory_grows_with_nodes_and_not_with_edges(name):
    sizes = []
    for degree in (4, 8):
        graph = regular_graph(degree)
        model = MODELS[name](dropout=0.0)
        engine = Engine(
            model, graph, graph.split("train"), CompileOptions(rates=Rates(), passes=ALL - {"prune"})
        )
        sizes.append(engine.nbytes)
    assert sizes[0] == sizes[1]


def regular_graph(degree, nodes=50):
    """Each node has as many in-edges."""
    draw = torch.Generator().manual_seed(degree)
    indices = torch.randint(nodes, (nodes * degree,), generator=draw, dtype=torch.int32)
    csc = Csc(torch.arange(0, nodes * degree + 1, degree), indices, nodes)
    x, y = torch.rand(nodes, CHANNELS, generator=draw), torch.zeros(nodes, dtype=torch.int64)
    return Graph(csc=csc, x=x, y=y, splits={"train": torch.arange(nodes)})


def test_storage_has_two_names():
    graph = make_graph()
    with pytest.raises(ConfigError, match="storage must be one of float32, bfloat16; got 'float16'"):
        graphbraid.compile(MODELS["gcn"](dropout=0.0), graph, storage="float16")


def test_hoisting_takes_no_more_than_it_is_given():
    graph = make_graph()
    nodes, model = graph.split("train"), MODELS["gcn"](dropout=0.0)
    assert "aggregated once" in Engine(model, graph, nodes, CompileOptions(rates=Rates())).explain()
    refused = Engine(model, graph, nodes, CompileOptions(rates=Rates(), spare_bytes=100)).explain()
    assert "of the 0.0001 MB allowed" in refused
    assert "spare_bytes allows more" in refused


@pytest.mark.parametrize(
    "name", ["gcn", "sage", "gin", "layer norm, elu", "gat", "gat, rows dropped", "gatv2"]
)
def test_dropout_masks_belong_to_nodes_and_edges_so_that_pruning_changes_nothing(name):
    graph = make_graph()
    torch.manual_seed(1)
    options = {"attention_dropout": 0.5} if name.startswith("gat") else {}
    model = MODELS[name](dropout=0.5, **options)
    losses = []
    for passes in (ALL, ALL - {"prune"}, set()):
        torch.manual_seed(7)
        engine = graphbraid.compile(model, graph, passes=passes)
        loss = loss_of(engine(), graph)
        losses.append((loss.detach(), gradients(model, loss)))
    torch.manual_seed(7)
    loss = loss_of(model.train()(graph.x, graph.csc)[graph.split("train")], graph)
    losses.append((loss.detach(), gradients(model, loss)))
    for other, grads in losses[1:]:
        torch.testing.assert_close(other, losses[0][0], rtol=1e-5, atol=1e-6)
        for a, b in zip(grads, losses[0][1], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-5)


class PygNet(nn.Module):
    def __init__(self, make, *, dropout=0.0):
        super().__init__()
        self.convs = nn.ModuleList(make(a, b) for a, b in ((CHANNELS, 16), (16, 16), (16, CLASSES)))
        self.p = dropout

    def forward(self, x, edge_index):
        for conv in self.convs[:-1]:
            x = F.dropout(F.relu(conv(x, edge_index)), p=self.p, training=self.training)
        return self.convs[-1](x, edge_index)


class WeightedNet(PygNet):
    def forward(self, x, edge_index, edge_weight=None):
        for conv in self.convs[:-1]:
            x = F.relu(conv(x, edge_index, edge_weight))
        return self.convs[-1](x, edge_index, edge_weight=edge_weight)


class Residual(PygNet):
    def forward(self, x, edge_index):
        first = F.relu(self.convs[0](x, edge_index))
        second = self.convs[1](first, edge_index) + first
        return self.convs[2](first + F.relu(second), edge_index)


@pytest.mark.parametrize("kind", ["gcn", "sage", "gat"])
@pytest.mark.parametrize("passes", [ALL, set()], ids=["all passes", "no passes"])
def test_an_addition_across_layers_takes_the_later_layer_s_nodes(kind, passes):
    pytest.importorskip("torch_geometric", reason=NO_PYG)
    graph = make_graph()
    torch.manual_seed(1)
    model = Residual(pyg_layers()[kind])
    edge_index = torch.stack([graph.csc.indices.long(), graph.csc.destinations().long()])
    engine = graphbraid.compile(model, graph, passes=passes)
    assert isinstance(engine, Engine), engine.explain()
    losses = [loss_of(out, graph) for out in (engine(), model(graph.x, edge_index)[graph.split("train")])]
    torch.testing.assert_close(*losses, rtol=1e-5, atol=1e-6)
    for ours, theirs in zip(*(gradients(model, loss) for loss in losses), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(engine.predict(), model(graph.x, edge_index).detach(), rtol=1e-4, atol=1e-5)


def pyg_layers():
    from torch_geometric.nn import GATConv, GCNConv, GINConv, SAGEConv

    return {
        "gcn": lambda i, o: GCNConv(i, o, cached=True),
        "sage": SAGEConv,
        "gin": lambda i, o: GINConv(nn.Sequential(nn.Linear(i, o), nn.ReLU(), nn.Linear(o, o))),
        "gat": lambda i, o: GATConv(i, o, heads=4, concat=False),
    }


@pytest.mark.parametrize("binary", ["ones", "row"])
@pytest.mark.parametrize("kind", few_of(("gcn", "sage", "gin", "gat"), {"gcn", "gat"}))
def test_a_pyg_stack_on_binary_features_trains_as_it_does_uncompiled(kind, binary):
    pytest.importorskip("torch_geometric", reason=NO_PYG)
    graph = make_graph(symmetric=True, binary=binary, density=0.4)
    exact, plain, compiled = (pyg_losses(kind, graph, how) for how in ("float64", "float32", "compiled"))
    # At a larger rate Adam turns the rounding of a gradient near zero into a step, and PyG's own float32
    # strays further than 1e-5 from its float64 (GATv2, after ten epochs at 0.01).
    for found in (plain, compiled):
        assert ((found - exact) / exact).abs().max() <= 1e-5


def pyg_losses(kind, graph, how):
    """Losses of a PyG stack trained with Adam: compiled, by PyG in float32, or by PyG in float64."""
    edge_index = torch.stack([graph.csc.indices.long(), graph.csc.destinations().long()])
    torch.manual_seed(3)
    model, nodes = PygNet(pyg_layers()[kind]), graph.split("train")
    model.to(torch.float64 if how == "float64" else torch.float32)
    x = graph.x.to(next(model.parameters()).dtype)
    if how == "compiled":
        engine = Engine(model, graph, nodes, CompileOptions(rates=BINARY, spare_bytes=0))
        assert engine.program.input_path == "binary"
    optimizer = torch.optim.Adam(model.parameters(), 0.002)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = loss_of(engine() if how == "compiled" else model(x, edge_index)[nodes], graph)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return torch.tensor(losses, dtype=torch.float64)


def test_the_program_is_that_of_the_mode_the_model_is_in():
    pytest.importorskip("torch_geometric", reason=NO_PYG)
    graph, model = make_graph(), PygNet(pyg_layers()["gcn"], dropout=0.5)
    model.eval()
    engine = graphbraid.compile(model, graph)
    assert "dropout" not in engine.explain()
    assert torch.equal(engine(), engine())
    assert not model.training
    model.train()
    assert "dropout 0.5" in engine.explain()
    assert not torch.equal(engine(), engine())


def test_bits_do_not_depend_on_threads():
    from tests.ops.graphs import assert_same_bits_with_any_threads, skip_where_torch_multiplies

    skip_where_torch_multiplies()
    graph = make_graph(symmetric=True)
    torch.manual_seed(0)
    model = MODELS["sage"](dropout=0.3)

    evidence = graphbraid.compile(model, graph).evidence  # what is measured depends on threads: lower alike

    def run():
        torch.manual_seed(5)
        engine = graphbraid.compile(model, graph, evidence=evidence)
        out = engine()
        return [out.detach(), *gradients(model, loss_of(out, graph)), engine.predict()]

    assert_same_bits_with_any_threads(run)


@pytest.mark.parametrize("name", ["gcn", "sage", "gin", "gat", "gatv2", "mlp"])
def test_sparse_features_are_never_made_dense(name, monkeypatch):
    graph = make_graph(sparse=True, density=0.05)
    rates = Rates(sparse_values=1e12)  # so that the sparse path is chosen for a graph as small as this
    model = MODELS[name](dropout=0.0)
    expected = model(graph.x, graph.csc)[graph.split("train")].detach()
    monkeypatch.setattr(type(graph.x), "to_dense", lambda _: pytest.fail("made dense"))
    engine = Engine(model, graph, graph.split("train"), CompileOptions(rates=rates))
    assert engine.program.settings["input_path"] == "sparse"
    outputs = engine()
    torch.testing.assert_close(outputs, expected, rtol=1e-4, atol=1e-5)
    loss_of(outputs, graph).backward()
    engine.predict()


BINARY = Rates(binary_values=1e15, sparse_values=1e6)
"""Rates by which the binary path is chosen for a graph as small as these."""


@pytest.mark.parametrize("binary", ["ones", "row"])
@pytest.mark.parametrize("name", ["gcn", "sage", "gin", "gat", "gatv2", "mlp"])
def test_binary_features_are_read_as_bits_and_train_alike(name, binary, monkeypatch):
    graph = make_graph(binary=binary, density=0.4)
    model = MODELS[name](dropout=0.0)
    expected = model(graph.x, graph.csc)[graph.split("train")]
    wanted = [expected.detach(), *gradients(model, loss_of(expected, graph))]
    engine = Engine(model, graph, graph.split("train"), CompileOptions(rates=BINARY, spare_bytes=0))
    assert engine.program.input_path == "binary"
    engine()
    graph.x.data.fill_(torch.nan)  # unnoticed: the bits are all it reads
    outputs = engine()
    for actual, other in zip([outputs, *gradients(model, loss_of(outputs, graph))], wanted, strict=True):
        torch.testing.assert_close(actual, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("sparse", [False, True])
def test_predictions_and_pruned_levels_agree_whatever_the_path(sparse):
    graph = make_graph(binary="row", density=0.4, sparse=sparse)
    model = MODELS["sage"](dropout=0.3)
    found = []
    for passes in (ALL, ALL - {"input_path"}, ALL - {"prune"}):
        torch.manual_seed(3)
        engine = Engine(
            model, graph, graph.split("train"), CompileOptions(rates=BINARY, passes=passes, spare_bytes=0)
        )
        assert engine.program.input_path == ("binary" if "input_path" in passes else "dense")
        out = engine()
        found.append([out.detach(), *gradients(model, loss_of(out, graph)), engine.predict()])
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_explain_names_each_decision_and_the_arena():
    text = graphbraid.compile(MODELS["gcn"](), make_graph()).explain()
    for name in (*(ALL - {"halo"}), "Arena", "Program"):  # that of several ranks alone
        assert name.replace("_", " ") in text, text


def test_what_cannot_be_lowered_runs_uncompiled_and_says_why():
    graph = make_graph()
    torch.manual_seed(0)
    model = unlowerable()
    engine = graphbraid.compile(model, graph)
    assert isinstance(engine, Uncompiled)
    assert "norms.0: no operation stands for Sine of tests" in engine.explain()
    model.eval()
    expected = model(graph.x, graph.csc)
    torch.testing.assert_close(engine(), expected[graph.split("train")])
    torch.testing.assert_close(engine.predict(), expected)


def test_a_model_without_lowered_form_gets_the_graph_s_weights_too():
    pyg = pytest.importorskip("torch_geometric.nn", reason=NO_PYG)
    graph, net = make_graph(weighted=True), type("Odd", (WeightedNet,), {})
    net.forward = lambda self, x, e, edge_weight=None: WeightedNet.forward(self, x, e, edge_weight).sin()
    model = net(pyg.GCNConv)
    engine = graphbraid.compile(model, graph)
    assert [call.name for op in engine.breaks for call in op.calls] == ["sin"]
    edge_index = torch.stack([graph.csc.indices.long(), graph.csc.destinations().long()])
    expected = model(graph.x, edge_index, graph.csc.weight)
    torch.testing.assert_close(engine.predict(), expected.detach())
    assert not torch.allclose(expected, model(graph.x, edge_index), atol=1e-2)


@pytest.mark.parametrize(
    ("forward", "reason"),
    [
        (lambda self, x, e: F.rrelu(self.convs[0](x, e)), "rrelu"),
        (lambda self, x, e, w=2.0: self.convs[0](x, e, w), "convs.0: it takes other weights"),
        (lambda self, x, e, edge_weight=None: self.convs[0](x, e, edge_weight.relu()), "relu"),
    ],
)
def test_a_forward_that_cannot_be_read_is_named(forward, reason):
    pytest.importorskip("torch_geometric", reason=NO_PYG)
    model = type("Odd", (PygNet,), {"forward": forward})(pyg_layers()["gcn"])
    engine = graphbraid.compile(model, make_graph())
    assert isinstance(engine, Uncompiled) or engine.breaks
    assert reason in engine.explain()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"passes": ["fast"]}, ConfigError, "no lowering pass is called 'fast'"),
        ({"nodes": torch.tensor([3, 90])}, DataError, "training nodes"),
        ({"nodes": torch.tensor([3, 4, 3])}, ConfigError, "3 is named again"),
        ({"nodes": torch.tensor([], dtype=torch.int64)}, ConfigError, "no training nodes"),
        ({"nodes": "holdout"}, DataError, "holdout"),
    ],
)
def test_bad_input_is_named(options, error, message):
    with pytest.raises(error, match=message):
        graphbraid.compile(MODELS["gcn"](), make_graph(), **options)


def test_a_graph_without_features_is_refused():
    with pytest.raises(DataError, match=r"graph\.x is None"):
        graphbraid.compile(MODELS["gcn"](), make_graph().replace(x=None))


def test_too_little_memory_is_said_before_anything_is_allocated(monkeypatch):
    engine = graphbraid.compile(MODELS["gcn"](), make_graph())
    assert isinstance(engine, Engine)
    monkeypatch.setattr("graphbraid.fullgraph.device.free_memory_bytes", lambda: 1000)
    with pytest.raises(ResourceError, match=r"needs .* MB beside the data.*sampled"):
        engine()


def test_weights_keep_a_transpose_of_their_own():
    text = graphbraid.compile(MODELS["gcn"](), make_graph(symmetric=True, weighted=True)).explain()
    assert "- symmetry: edge weights need the transpose's order" in text


def test_a_boolean_mask_names_nodes_too():
    graph = make_graph()
    mask = torch.zeros(graph.num_nodes, dtype=torch.bool)
    mask[[5, 2, 9]] = True
    model = MODELS["gcn"](dropout=0.0)
    expected = model(graph.x, graph.csc)[[2, 5, 9]]
    torch.testing.assert_close(graphbraid.compile(model, graph, nodes=mask)(), expected)


def test_where_outputs_stop_being_finite_is_found():
    graph = make_graph(train=60)
    model = MODELS["gcn"](dropout=0.0)
    graph.x[33, 2] = torch.inf
    engine = graphbraid.compile(model, graph)
    assert not torch.isfinite(engine()).all()
    assert "is the first to go wrong, at node" in engine.first_not_finite()
