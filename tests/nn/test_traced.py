"""Models under torch.compile and torch.export give the results, gradients and masks of those as written."""

import pytest
import torch
from tests.graph.typed_cases import bibliography

from graphbraid import nn
from graphbraid.errors import ConfigError, DataError
from graphbraid.graph import SparseFeatures
from graphbraid.graph.csc import Csc, coo_to_csc
from graphbraid.ops import bias_act_dropout

pytestmark, LONG = pytest.mark.slow, pytest.mark.long
NODES = 30
EDGES = torch.randint(0, NODES, (2, 150), generator=torch.Generator().manual_seed(0))
RELATION = torch.arange(150) % 4
X = torch.randn(NODES, 8, generator=torch.Generator().manual_seed(1))
MODELS = {
    "GCN": (lambda: nn.GCN(8, 8, 3), (X, EDGES)),
    "GCN, weighted, improved": (lambda: nn.GCN(8, 8, 3, improved=True), (X, EDGES, torch.rand(150))),
    "GraphSAGE": (lambda: nn.GraphSAGE(8, 16, 3, norm="layer"), (X, EDGES)),
    "GraphSAGE, max": (lambda: nn.GraphSAGE(8, 8, 3, aggr="max", act="gelu"), (X, EDGES)),
    "GraphSAGE, project": (lambda: nn.GraphSAGE(8, 8, 3, project=True, normalize=True), (X, EDGES)),
    "GIN": (lambda: nn.GIN(8, 8, 3, eps=0.5), (X, EDGES)),
    "GAT": (lambda: nn.GAT(8, 8, 3, heads=2, residual=True), (X, EDGES)),
    "GATv2": (lambda: nn.GATv2(8, 8, 3, heads=4, act="elu"), (X, EDGES)),
    "MLP": (lambda: nn.MLP(8, 8, 3, norm="batch"), (X, EDGES)),
    "RGCNConv": (lambda: nn.RGCNConv(8, 8, 4, num_bases=2), (X, EDGES, RELATION)),
    "RGCNConv, narrowing": (lambda: nn.RGCNConv(8, 3, 4), (X, EDGES, RELATION)),
    "RGCNEncoder": (lambda: nn.RGCNEncoder(8, 8, 3, 4, num_layers=2), (X, EDGES, RELATION)),
    "NodeEmbedding": (
        lambda: nn.NodeEmbedding(NODES, 8, nn.GCN(8, 8, 3)),
        (None, EDGES, torch.arange(NODES)),
    ),
    "LinkModel": (
        lambda: nn.LinkModel(nn.GCN(8, 8, 8), nn.DistMult(4, 8)),
        (X, EDGES, EDGES[:, :9], RELATION[:9]),
    ),
}
FIRST = ("GCN", "RGCNConv")
EACH = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FIRST else LONG) for name in MODELS]
)


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    torch.manual_seed(0)


def compiled(model):
    """Compile without graph breaks; the backend runs what was traced, forward and backward, as it stands."""
    return torch.compile(model, fullgraph=True, backend="aot_eager")


def results(run, model, arguments):
    """Return outputs and gradients of a call."""
    model.zero_grad()
    x, *others = arguments
    x = x if x is None else x.clone().requires_grad_()
    out = run(x, *others)
    (out * torch.linspace(-1, 1, out.numel()).view(out.shape)).sum().backward()
    return [out.detach(), *(p.grad for p in model.parameters()), *([] if x is None else [x.grad])]


@EACH
def test_a_compiled_model_gives_the_results_and_gradients_of_the_model_as_written(name):
    make, arguments = MODELS[name]
    model = make()
    for module in model.modules():
        module.dropout = 0.0
    wanted = results(model, model, arguments)
    for found, other in zip(results(compiled(model), model, arguments), wanted, strict=True):
        torch.testing.assert_close(found, other, rtol=1e-4, atol=1e-5)


@EACH
def test_an_exported_model_gives_the_results_of_the_model_as_written(name):
    make, arguments = MODELS[name]
    model = make().eval()
    program = torch.export.export(model, arguments)
    assert "graphbraid" in str(program.graph) or name == "MLP"
    torch.testing.assert_close(program.module()(*arguments), model(*arguments), rtol=1e-4, atol=1e-5)


def test_an_exported_model_is_saved_and_takes_other_graphs(tmp_path):
    model = nn.GAT(8, 8, 3, heads=2).eval()
    sizes = {"x": {0: torch.export.Dim("nodes", max=2**31 - 1)}, "edge_index": {1: torch.export.Dim("edges")}}
    program = torch.export.export(model, (X, EDGES), dynamic_shapes=sizes)
    torch.export.save(program, tmp_path / "model.pt2")
    loaded = torch.export.load(tmp_path / "model.pt2").module()
    x, edges = torch.randn(50, 8), torch.randint(0, 50, (2, 333))
    torch.testing.assert_close(loaded(x, edges), model(x, edges))
    with pytest.raises(DataError, match=r"sources must be node ids in \[0, 50\)"):
        loaded(x, edges + 50)


def blocks():
    outer = Csc(torch.tensor([0, 2, 3, 5, 6]), torch.tensor([0, 5, 6, 3, 3, 1]), 7)
    return [outer, Csc(torch.tensor([0, 2, 3]), torch.tensor([3, 1, 2]), 4)]


@pytest.mark.parametrize("edges", ["graph", "weighted", "blocks", "degrees"])
@pytest.mark.parametrize("kind", [nn.GCN, *(pytest.param(k, marks=LONG) for k in (nn.GraphSAGE, nn.GATv2))])
def test_adjacencies_are_compiled_and_exported(kind, edges):
    model, x = kind(8, 8, 3, dropout=0.0), X
    given = coo_to_csc(*EDGES, NODES, NODES)[0]
    if edges == "weighted":
        given = Csc(given.indptr, given.indices, NODES, torch.rand(150))
    elif edges != "graph":
        given, x = blocks(), X[:7]
    if edges == "degrees":
        given = [Csc(b.indptr, b.indices, b.num_src, None, torch.full((b.num_src,), 9.0)) for b in given]
    wanted = results(model, model, (x, given))
    for found, other in zip(results(compiled(model), model, (x, given)), wanted, strict=True):
        torch.testing.assert_close(found, other, rtol=1e-4, atol=1e-5)
    exported = torch.export.export(model, (x, given)).module()
    torch.testing.assert_close(exported(x, given), wanted[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [nn.GCN, nn.GAT, nn.MLP])
def test_sparse_features_are_compiled_and_exported(kind):
    model, x = kind(8, 8, 3).eval(), SparseFeatures.from_dense(X.relu())
    wanted = model(x, EDGES)
    torch.testing.assert_close(compiled(model)(x, EDGES), wanted)
    torch.testing.assert_close(torch.export.export(model, (x, EDGES)).module()(x, EDGES), wanted)


def test_a_model_of_several_types_is_compiled_and_exported():
    graph = bibliography()
    model = nn.RGCN.of(graph, 8, 3, dropout=0.0)
    x = {name: graph.nodes_of(name).x for name in graph.node_types if graph.nodes_of(name).x is not None}
    edges = {one: graph.relation(one) for one in graph.edge_types}
    wanted = model(x, edges)
    for run in (compiled(model), torch.export.export(model, (x, edges)).module()):
        torch.testing.assert_close(run(x, edges), wanted, rtol=1e-4, atol=1e-5)


def test_each_call_of_a_compiled_model_draws_masks_of_its_own_and_backward_uses_them():
    model = nn.GAT(8, 8, 8, heads=2, dropout=0.5, attention_dropout=0.5, row_dropout=0.5)
    run = compiled(model)
    x = X.clone().requires_grad_()
    first, second = run(x, EDGES), run(x, EDGES)
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    found = results(run, model, (X, EDGES))
    torch.manual_seed(3)
    for one, other in zip(results(run, model, (X, EDGES)), found, strict=True):
        assert torch.equal(one, other)


def test_dropout_of_a_compiled_operator_has_the_gradient_of_its_mask():
    x = torch.ones(40, 8, requires_grad=True)
    out = compiled(lambda x: bias_act_dropout(x, act="none", p=0.5))(x)
    out.sum().backward()
    assert torch.equal(x.grad, out)
    assert 100 < int((out == 0).sum()) < 220


def test_autocast_inside_and_around_a_compiled_model():
    model = nn.GraphSAGE(8, 16, 3, dropout=0.0)

    def inside(x, edges):
        with torch.autocast("cpu", torch.bfloat16):
            return model(x, edges)

    wanted = results(inside, model, (X, EDGES))
    assert wanted[0].dtype == torch.bfloat16
    for found, other in zip(results(compiled(inside), model, (X, EDGES)), wanted, strict=True):
        torch.testing.assert_close(found, other, rtol=0.05, atol=0.05)


def test_edges_that_change_between_calls_of_a_compiled_model_are_read_anew():
    model = nn.GCN(8, 8, 3).eval()
    run, edges = compiled(model), EDGES.clone()
    run(X, edges)
    edges[0] = edges[0].flip(0)
    torch.testing.assert_close(run(X, edges), model(X, edges))
    csc = coo_to_csc(*EDGES, NODES, NODES)[0]
    run(X, csc)
    csc.indices[0] = 10**9
    with pytest.raises(RuntimeError, match="indices of Csc was changed in place"):  # as torch wraps it
        run(X, csc)


@pytest.mark.parametrize("name", ["GCN", "MLP"])
@pytest.mark.filterwarnings("ignore")
def test_jit_trace_is_refused(name):
    make, arguments = MODELS[name]
    with pytest.raises(ConfigError, match=r"use torch.export.export\(model"):
        torch.jit.trace(make(), arguments)


@LONG
def test_the_default_compiler_trains_a_model():
    model = nn.GCN(8, 8, 3, dropout=0.0)
    wanted = results(model, model, (X, EDGES))
    for found, other in zip(results(torch.compile(model), model, (X, EDGES)), wanted, strict=True):
        torch.testing.assert_close(found, other, rtol=1e-4, atol=1e-5)
