"""Layers whose aggregation a program writes itself, beside the same written with PyTorch and with PyG."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tests.distributed.whole import as_processes, assert_as_one_rank, mixed
from tests.extras import NO_PYG
from tests.fullgraph.graphs import CHANNELS, CLASSES, make_graph
from tests.kernels import needs_kernels
from tests.modules import module_of
from torch import Tensor, nn

from graphbraid import Graph
from graphbraid.errors import ConfigError
from graphbraid.fullgraph import NotLoweredError
from graphbraid.fullgraph.program import Aggregate, Messages
from graphbraid.synth import Synthesis, from_model, from_program, parse_program, train, write_cuda

pytestmark = needs_kernels
GRAPHS = {is_weighted: make_graph(train=30, weighted=is_weighted) for is_weighted in (False, True)}
Rows = dict[str, Tensor]
MESSAGES: dict[str, tuple[str, str, Callable[[Rows, Rows, Tensor], Tensor]]] = {
    "difference": (
        "v.out += relu(u.x - v.y) * g.weight(u, v);",
        "sum",
        lambda u, v, w: F.relu(u["x"] - v["y"]) * w,
    ),
    "gate": (
        "float gate = sigmoid(u.y + v.z); v.out = Mean(v.out, gate * u.x);",
        "mean",
        lambda u, v, _: torch.sigmoid(u["y"] + v["z"]) * u["x"],
    ),
    "maximum": ("v.out = Max(v.out, 2 * u.x - v.x);", "amax", lambda u, v, _: 2 * u["x"] - v["x"]),
    "minimum": (
        "float d = leaky_relu(u.x, 0.2) / (1 + abs(v.y)); v.out = Min(v.out, exp(-d)); "
        "v.out += v.x; v.out += v.z;",
        "amin",
        lambda u, v, _: torch.exp(-F.leaky_relu(u["x"], 0.2) / (1 + v["y"].abs())),
    ),
    "slope of a hundredth": (
        "v.out = Sum(v.out, +leaky_relu(tanh(u.x) * v.x));",
        "sum",
        lambda u, v, _: F.leaky_relu(torch.tanh(u["x"]) * v["x"]),
    ),
    "own row": ("v.out += v.x;", "sum", lambda _, v, __: v["x"]),
    "an earlier value": ("float a = u.x; float b = a + 1; v.out += a;", "sum", lambda u, _, __: u["x"]),
    "source": ("v.out += u.x;", "sum", lambda u, _, __: u["x"]),
    "weighted mean": ("v.out = Mean(v.out, u.x * g.weight(u, v));", "mean", lambda u, _, w: u["x"] * w),
}
PLAIN = {"source", "weighted mean"}


def layer_of(name: str) -> str:
    """The program's text of a layer; statements behind the reduction stand behind the neighbours."""
    body = MESSAGES[name][0]
    inner, behind = body, ""
    if name == "minimum":
        inner, behind = body.split(" v.out += v.x;")[0], "v.out += v.x; v.out += v.z;"
    properties = [p for p in "xyz" if f".{p}" in body]
    parameters = ", ".join(f"propNode<float> {p}" for p in (*properties, "out"))
    return (
        f"function Own(Graph g, {parameters}) {{ forall (v in g.nodes()) {{ "
        f"forall (u in g.neighbors(v)) {{ {inner} }} {behind} }} }}\n"
    )


def made(layer: str, epochs: int = 6) -> Synthesis:
    text = (
        layer
        + """function Train(Graph g, GNN gnn, container<int>& layers, String dataset) {
  gnn.load(g, dataset);
  gnn.initializeLayers(layers, "xavier");
  for (int epoch = 0; epoch < totalEpoch; epoch++) {
    gnn.forwardPass(0, "Own");
    gnn.activation(0, "elu");
    gnn.forwardPass(1, "own");
    gnn.backPropagation(1);
    gnn.backPropagation(0);
    gnn.optimizer("sgd", 0.1);
    gnn.evaluate("val");
  }
}"""
    )
    return from_program(parse_program(text), (CHANNELS, 8, CLASSES), {"totalEpoch": epochs})


def by_hand(conv: nn.Module, x: Tensor, graph: Graph, name: str) -> Tensor:
    """The layer with PyTorch's functions on all edges at once."""
    _, reduction, message = MESSAGES[name]
    rows = {key.removesuffix("_"): linear(x) for key, linear in conv.maps.items()}
    source, destination = graph.csc.indices.long(), graph.csc.destinations().long()
    weight = graph.csc.weight
    given = torch.ones(len(source), 1, dtype=x.dtype) if weight is None else weight.to(x.dtype)[:, None]
    made_of = message(
        {key: one[source] for key, one in rows.items()},
        {key: one[destination] for key, one in rows.items()},
        given,
    )
    out = made_of.new_zeros(len(x), made_of.shape[1])
    at = destination[:, None].expand_as(made_of)
    out = out.scatter_reduce(0, at, made_of, reduction, include_self=False)
    return out + rows["x"] + rows["z"] if name == "minimum" else out


def losses_by_hand(model: nn.Module, graph: Graph, name: str, epochs: int = 6) -> list[float]:
    """Losses of the same training in float64."""
    model = model.double()
    optimizer, found = torch.optim.SGD(model.parameters(), 0.1), []
    nodes = graph.split("train")
    for _ in range(epochs):
        optimizer.zero_grad()
        hidden = F.elu(by_hand(model.convs[0], graph.x.double(), graph, name))
        loss = F.cross_entropy(by_hand(model.convs[1], hidden, graph, name)[nodes], graph.y[nodes])
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@pytest.mark.parametrize("name", MESSAGES)
def test_a_layer_trains_as_by_hand(name):
    graph = GRAPHS["weight" in MESSAGES[name][0]]
    synthesis = made(layer_of(name))
    (first, *_) = [op for op in synthesis.program(graph).ops if isinstance(op, Messages | Aggregate)]
    assert isinstance(first, Aggregate) == (name in PLAIN)
    assert isinstance(first, Aggregate) or (first.steps and first.has_device_kernel)
    expected = losses_by_hand(made(layer_of(name)).model, graph, name)
    assert train(synthesis, graph).losses == pytest.approx(expected, rel=2e-5)


@pytest.mark.parametrize("name", MESSAGES)
def test_a_layer_outside_of_the_engine_has_the_same_rows_and_gradients(name):
    graph, results = GRAPHS["weight" in MESSAGES[name][0]], []
    for own in (True, False):
        conv, x = made(layer_of(name)).model.convs[0].double(), graph.x.double().requires_grad_()
        out = conv(x, graph.csc) if own else by_hand(conv, x, graph, name)
        out.sin().sum().backward()
        results.append([out, x.grad, *(p.grad for p in conv.parameters())])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


def test_a_message_passing_layer_of_pyg_lowers_to_the_same_operation():
    pyg = pytest.importorskip("torch_geometric.nn", reason=NO_PYG)

    class Gate(pyg.MessagePassing):
        def __init__(self, conv: nn.Module) -> None:
            super().__init__(aggr="mean")
            self.x, self.y, self.z = (conv.maps[name] for name in ("x_", "y_", "z_"))

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.propagate(edge_index, x=self.x(x), y=self.y(x), z=self.z(x))

        def message(self, x_j: Tensor, y_j: Tensor, z_i: Tensor) -> Tensor:
            return torch.sigmoid(y_j + z_i) * x_j

    ours, graph = made(layer_of("gate")), GRAPHS[False]
    two = module_of(
        lambda self, x, edge_index: self.convs[1](F.elu(self.convs[0](x, edge_index)), edge_index),
        convs=nn.ModuleList(Gate(conv) for conv in made(layer_of("gate")).model.convs),
    )
    theirs = from_model(two, ours.recipe)
    of = [[op for op in one.program(graph).ops if isinstance(op, Messages)] for one in (ours, theirs)]
    for one, other in zip(*of, strict=True):
        assert {step.op for step in one.steps} == {step.op for step in other.steps}
        assert (one.reduction, one.ties, one.width_out) == (other.reduction, other.ties, other.width_out)
    assert train(ours, graph).losses == pytest.approx(train(theirs, graph).losses, rel=1e-6)


def test_what_a_layer_cannot_have_is_refused():
    weighted = made(layer_of("difference"))
    with pytest.raises(NotLoweredError, match="Own reads the weights of edges; the graph has none"):
        train(weighted, GRAPHS[False])
    with pytest.raises(ConfigError, match="the edges have none"):
        weighted.model.convs[0](GRAPHS[False].x, GRAPHS[False].csc)


def test_messages_with_sums_over_columns_have_no_kernel_on_a_gpu(tmp_path):
    pyg = pytest.importorskip("torch_geometric.nn", reason=NO_PYG)

    class Scored(pyg.MessagePassing):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.propagate(edge_index, x=x)

        def message(self, x_j: Tensor, x_i: Tensor) -> Tensor:
            return x_j * torch.sigmoid((x_j * x_i).sum(-1, keepdim=True))

    model = module_of(
        lambda self, x, edge_index: self.conv(self.lin(x), edge_index),
        lin=nn.Linear(CHANNELS, CLASSES),
        conv=Scored(),
    )
    reason = "messages with heads, a softmax or parameters.*Needed: the target openmp or mpi"
    with pytest.raises(NotLoweredError, match=reason):
        write_cuda(from_model(model), GRAPHS[False], tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", MESSAGES)
def test_ranks_learn_what_one_rank_does(name, monkeypatch):
    as_processes(monkeypatch)
    assert_as_one_rank(made(layer_of(name)).model, GRAPHS["weight" in MESSAGES[name][0]], mixed(3))


@pytest.mark.parametrize("kind", ["ResGatedGraphConv", "TransformerConv", "own parameter"])
def test_ranks_share_messages_of_pygs_layers(kind, monkeypatch):
    """Softmaxes over a node's edges, heads and parameters of messages."""
    pyg = pytest.importorskip("torch_geometric.nn", reason=NO_PYG)

    class Scaled(pyg.MessagePassing):
        def __init__(self, rows: int, columns: int) -> None:
            super().__init__(aggr="mean")
            self.lin, self.factor = nn.Linear(rows, columns), nn.Parameter(torch.rand(columns))

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.propagate(edge_index, x=self.lin(x))

        def message(self, x_j: Tensor, x_i: Tensor) -> Tensor:
            return torch.relu(self.factor * x_j - x_i)

    as_processes(monkeypatch)
    torch.manual_seed(0)
    make = Scaled if kind == "own parameter" else getattr(pyg, kind)
    two = module_of(
        lambda self, x, edge_index: self.second(self.first(x, edge_index).relu(), edge_index),
        first=make(CHANNELS, 8),
        second=make(8, CLASSES),
    )
    assert_as_one_rank(two, GRAPHS[False], mixed(3))
