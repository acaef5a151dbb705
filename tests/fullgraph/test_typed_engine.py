"""Full-graph training over node types and relations: R-GCN lowered, equal to the model as it is written."""

import copy
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.extras import NO_PYG
from tests.fullgraph.fake_device import FakeDevice
from tests.suites import examples
from tests.train.typed_communities import AUTHORS, CITES, PAPERS, VENUES, WRITES, bibliography
from torch import Tensor, nn

import graphbraid
from graphbraid import native
from graphbraid.errors import ConfigError, DataError
from graphbraid.fullgraph import ALL, Engine, Uncompiled, estimated_bytes, lower
from graphbraid.graph import Graph, SparseFeatures
from graphbraid.nn import RGCN

CLOSE: dict[str, Any] = {"rtol": 2e-4, "atol": 2e-5, "check_dtype": False}


def model_of(graph: Graph, seed: int = 0, **options: Any) -> RGCN:
    torch.manual_seed(seed)
    return RGCN.of(graph, options.pop("hidden", 8), **{"dropout": 0.0, "out_channels": 3} | options)


def small(seed: int = 0, *, sparse: bool = False) -> Graph:
    """Isolated nodes, loops, repeated edges, a relation without edges, and a type without features."""
    draw = torch.Generator().manual_seed(seed)

    def pairs(num_src: int, num_dst: int, count: int) -> Tensor:
        return torch.stack([torch.randint(most, (count,), generator=draw) for most in (num_src, num_dst)])

    ends = pairs(11, 11, 30)
    edges = {
        ("a", "to", "a"): torch.cat([ends, ends[:, :6], torch.tensor([[2, 2], [2, 2]])], 1),
        ("b", "to", "a"): pairs(7, 11, 12),
        ("a", "back", "b"): pairs(11, 7, 9),
        ("c", "to", "b"): pairs(5, 7, 8),
        ("a", "never", "c"): torch.empty(2, 0, dtype=torch.int64),
        ("b", "again", "c"): pairs(7, 5, 6),
    }
    x = torch.randn(14, 6, generator=draw) * (torch.rand(14, 6, generator=draw) < 0.4)
    order = torch.randperm(14, generator=draw)
    return Graph.from_relations(
        edges,
        {"a": 14, "b": 9, "c": 5},
        x={"a": SparseFeatures.from_dense(x) if sparse else x, "b": torch.randn(9, 4, generator=draw)},
        y={"a": torch.randint(3, (14,), generator=draw)},
        splits={"a": {"train": order[:4], "val": order[4:8], "test": order[8:]}},
    )


class Plain:
    """The model itself, in double precision: what the engine must give."""

    def __init__(self, model: RGCN, graph: Graph) -> None:
        self.model = copy.deepcopy(model).double()
        self._edges = {one: graph.relation(one) for one in graph.edge_types}
        held = {name: graph.nodes_of(name).x for name in graph.node_types}
        dense = {
            name: x if isinstance(x, Tensor) else x.to_dense() for name, x in held.items() if x is not None
        }
        self._x = {name: x.double() for name, x in dense.items()}

    def __call__(self) -> Tensor:
        out = self.model(self._x, self._edges)
        assert isinstance(out, Tensor)
        return out


def assert_alike(
    model: nn.Module, graph: Graph, engine: Any, nodes: Tensor, steps: int = 3, plain: Any = None
) -> None:
    """Outputs, every gradient and the parameters after steps of Adam, then predictions.

    ``plain()`` gives the outputs of ``plain.model``, the model in double precision.
    """
    plain = plain or Plain(cast("RGCN", model), graph)
    theirs = list(plain.model.parameters())
    optimizers = [torch.optim.Adam(p, lr=1e-2, eps=1e-2) for p in (list(model.parameters()), theirs)]
    y = torch.arange(nodes.numel()) % 3
    for _ in range(steps):
        found, expected = engine(), plain()[nodes]
        torch.testing.assert_close(found, expected, **CLOSE)
        for out, optimizer in zip((found, expected), optimizers, strict=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(out, y).backward()
        for (name, ours), other in zip(model.named_parameters(), theirs, strict=True):
            grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in (ours, other)]
            torch.testing.assert_close(*grads, msg=lambda m, n=name: f"{n}: {m}", **CLOSE)
        for optimizer in optimizers:
            optimizer.step()
    plain.model.eval()
    torch.testing.assert_close(engine.predict(), plain().detach(), **CLOSE)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_layers": 1},
        {"num_layers": 3, "num_bases": 2},
        {"aggr": "sum", "act": "gelu"},
        {"hidden": 2, "out_channels": 5},
        {"hidden": 40, "act": "elu"},
    ],
)
@pytest.mark.parametrize("nodes", ["train", "all"])
def test_the_engine_equals_the_model_as_it_is_written(options, nodes):
    graph = small()
    model = model_of(graph, **options)
    ids = graph.nodes_of("a").split("train") if nodes == "train" else torch.arange(14).flip(0)
    engine = graphbraid.compile(model, graph, nodes=ids)
    assert isinstance(engine, Engine)
    assert_alike(model, graph, engine, ids)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("node_type", ["b", "c"])
def test_outputs_of_any_type(node_type, sparse):
    graph = small(sparse=sparse)
    model = model_of(graph, node_type=node_type)
    ids = torch.tensor([3, 0])
    engine = graphbraid.compile(model, graph, nodes=ids)
    assert isinstance(engine, Engine)
    assert ("are stored sparse" in engine.explain()) == sparse
    assert_alike(model, graph, engine, ids)


@pytest.mark.parametrize("without", sorted(ALL))
def test_each_pass_can_be_left_out(without):
    graph = small()
    model, ids = model_of(graph, num_layers=2), graph.nodes_of("a").split("train")
    engine = graphbraid.compile(model, graph, passes=ALL - {without})
    assert isinstance(engine, Engine)
    assert_alike(model, graph, engine, ids, steps=1)


@settings(max_examples=examples(15))
@given(
    seed=st.integers(0, 99),
    hidden=st.sampled_from([1, 3, 16]),
    num_layers=st.integers(1, 3),
    bases=st.sampled_from([None, 1, 3]),
    aggr=st.sampled_from(["mean", "sum"]),
    node_type=st.sampled_from(["a", "b", "c"]),
    sparse=st.booleans(),
    passes=st.sets(st.sampled_from(sorted(ALL))),
)
def test_any_model_on_any_graph(seed, hidden, num_layers, bases, aggr, node_type, sparse, passes):
    graph = small(seed, sparse=sparse)
    model = model_of(
        graph, seed, hidden=hidden, num_layers=num_layers, num_bases=bases, aggr=aggr, node_type=node_type
    )
    nodes = torch.randperm(
        graph.nodes_of(node_type).num_nodes, generator=torch.Generator().manual_seed(seed)
    )[:4]
    engine = graphbraid.compile(model, graph, nodes=nodes, passes=passes)
    assert isinstance(engine, Engine), engine.explain()
    assert_alike(model, graph, engine, nodes, steps=2)


def test_pruned_levels_hold_only_what_the_loss_depends_on():
    graph = bibliography()
    model, nodes = model_of(graph), torch.tensor([7])
    lowered = lower(model, graph, nodes)
    assert [part.name for part in lowered.program.node_types] == ["author", "paper", "venue"]
    assert [lowered.num_rows(2, part) for part in range(3)] == [0, 1, 0]
    sources = graph.relation(WRITES)
    degree = int(sources.indptr[8] - sources.indptr[7])
    assert lowered.num_rows(1, 0) == sources.indices[sources.indptr[7] : sources.indptr[8]].unique().numel()
    assert f"author writes paper: {degree} edges to the next" in str(lowered)
    engine = graphbraid.compile(model, graph, nodes=nodes)
    assert isinstance(engine, Engine)
    assert_alike(model, graph, engine, nodes, steps=1)


def test_what_explain_says_names_relations():
    graph = bibliography()
    engine = graphbraid.compile(model_of(graph, hidden=16), graph)
    said = engine.explain(measure=True)
    for edge_type in graph.edge_types:
        assert f"mean over {' '.join(edge_type)}" in said
    assert "learned rows(x[venue])" in said
    assert isinstance(engine, Engine)
    floor = engine.floor()
    assert 0 < floor.floor_seconds < 1
    assert any("mean over author writes paper" in one.what for one in floor.operations)


def test_dropout_has_new_masks_in_training_and_none_in_evaluation():
    graph = bibliography()
    model = model_of(graph, dropout=0.5)
    engine = graphbraid.compile(model, graph)
    first, second = engine().detach().clone(), engine().detach().clone()
    assert not torch.equal(first, second)
    model.eval()
    torch.testing.assert_close(engine(), engine.predict()[graph.nodes_of("paper").split("train")])
    torch.testing.assert_close(engine.predict(), Plain(model, graph)().detach(), **CLOSE)


def test_features_written_to_are_noticed():
    graph = bibliography()
    model, train = model_of(graph), graph.nodes_of("paper").split("train")
    engine = graphbraid.compile(model, graph)
    before = engine().detach().clone()
    x = graph.nodes_of("author").x
    assert isinstance(x, Tensor)
    x.mul_(-2)
    after = engine().detach()
    assert not torch.equal(before, after)
    torch.testing.assert_close(after, Plain(model, graph)()[train].detach(), **CLOSE)


def test_a_second_backward_pass_gives_the_same_gradients():
    graph = small()
    model = model_of(graph, num_bases=2)
    out = graphbraid.compile(model, graph)()
    grads = []
    for _ in range(2):
        model.zero_grad()
        out.sum().backward(retain_graph=True)
        grads.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert grads[0]
    for first, second in zip(*grads, strict=True):
        assert torch.equal(first, second)


def test_bytes_are_counted_before_anything_is_allocated():
    graph = bibliography()
    model = model_of(graph, hidden=16)
    engine = graphbraid.compile(model, graph, nodes=torch.arange(PAPERS))
    assert isinstance(engine, Engine)
    engine()
    assert 0 < engine.nbytes <= estimated_bytes(model, graph)
    arena = engine.runner.training_step.arena
    largest = 4 * 16 * max(PAPERS, AUTHORS, VENUES)
    assert arena.nbytes < 40 * largest  # rows of relations share memory


class OfTypes(nn.Module):
    """What no operations stand for: a linear map for each type, then means along two relations."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.author = nn.Linear(graph.nodes_of("author").x.shape[1], 3)
        self.paper = nn.Linear(graph.nodes_of("paper").x.shape[1], 3)

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[Any, Tensor]) -> dict[str, Tensor]:
        src, dst = edge_index_dict[WRITES]
        rows = self.author(x_dict["author"])[src]
        return {"paper": self.paper(x_dict["paper"]).index_add(0, dst, rows)}


def test_any_other_model_runs_as_it_is_written_and_says_why():
    graph = bibliography()
    model = OfTypes(graph)
    engine = graphbraid.compile(model, graph)
    assert isinstance(engine, Uncompiled)
    assert "getitem: its argument edges_0 is not a matrix of node rows" in engine.explain()
    train = graph.nodes_of("paper").split("train")
    x = {name: graph.nodes_of(name).x for name in ("author", "paper")}
    expected = model(x, graph.to_edge_indices())["paper"]
    torch.testing.assert_close(engine(), expected[train])
    torch.testing.assert_close(engine.predict(), expected)
    engine().sum().backward()
    assert model.author.weight.grad is not None


class Changed(RGCN):
    """A subclass, which may do anything."""


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda model: model.convs[0].register_forward_hook(lambda *_: None), "hooks"),
        (lambda model: setattr(model.convs[0], "aggr", "max"), "aggr"),
        (lambda model: setattr(model, "__class__", Changed), "Changed: no operations stand for it"),
        (lambda model: setattr(model, "node_type", "venue"), "gives no outputs of 'paper'"),
        (lambda model: setattr(model.inputs[2], "max_norm", 1.0), "max_norm"),
    ],
)
def test_a_model_that_changes_is_left_alone(change, reason):
    graph = bibliography()
    model = model_of(graph)
    engine = graphbraid.compile(model, graph, node_type="paper")
    change(model)
    assert isinstance(engine, Engine)
    assert engine.why is not None
    assert reason in str(engine.why)


def test_a_graph_that_does_not_fit_the_model_is_refused_by_the_model():
    graph = bibliography()
    model = model_of(graph)
    other = Graph.from_relations(
        {CITES: graph.to_edge_indices()[CITES]}, {"paper": PAPERS}, x={"paper": graph.nodes_of("paper").x}
    )
    engine = graphbraid.compile(model, other, nodes=[0])
    assert "the graph has no relation" in engine.explain()
    with pytest.raises(DataError, match=r"edges must have all relations|need features"):
        engine()


def test_node_type_says_whose_outputs_are_wanted():
    graph = bibliography()
    model = model_of(graph)
    model.node_type = None  # outputs of all types
    engine = graphbraid.compile(model, graph, nodes=[1, 0], node_type="author")
    assert isinstance(engine, Engine)
    expected = Plain(model, graph).model
    x = {name: graph.nodes_of(name).x.double() for name in ("author", "paper")}
    outs = expected(x, {one: graph.relation(one) for one in graph.edge_types})
    torch.testing.assert_close(engine(), outs["author"][[1, 0]], **CLOSE)
    with pytest.raises(ConfigError, match="no node type 'autor'"):
        graphbraid.compile(model, graph, node_type="autor")
    with pytest.raises(ConfigError, match="leave it out"):
        plain = Graph.from_edge_index(torch.tensor([[0], [1]]), x=torch.ones(2, 3), splits={"train": [0]})
        graphbraid.compile(graphbraid.nn.GCN(3, 4, 2), plain, node_type="paper")


def test_hetero_data_run_as_a_graph_with_types_does_and_changes_of_them_are_noticed():
    pytest.importorskip("torch_geometric", reason=NO_PYG)
    graph = bibliography()
    model, train = model_of(graph), graph.nodes_of("paper").split("train")
    data = graph.to_pyg()
    engine = graphbraid.compile(model, data, nodes=train)
    assert isinstance(engine, Engine)
    torch.testing.assert_close(engine(), Plain(model, graph)()[train].float(), rtol=2e-4, atol=2e-5)
    before = engine.predict()
    data["author"].x = data["author"].x * 2
    assert engine.why is None
    assert not torch.allclose(engine.predict(), before)
    theirs = graphbraid.compile(OfTypes(graph), data)
    assert isinstance(theirs, Uncompiled)
    assert theirs.predict().shape == (PAPERS, 3)


def test_the_engine_runs_on_a_device(monkeypatch):
    """The fake device is made of the host, and records only what the twins run."""
    monkeypatch.setattr(native, "kernels", lambda: None)
    graph = small()
    model, ids = model_of(graph, num_bases=2), graph.nodes_of("a").split("train")
    engine = graphbraid.compile(model, graph, device=FakeDevice())
    assert isinstance(engine, Engine)
    assert_alike(model, graph, engine, ids)
    assert "recorded" in engine.explain()


def test_edge_types_that_a_layer_does_not_have_are_refused():
    pyg = pytest.importorskip("torch_geometric", reason=NO_PYG)
    from torch_geometric.nn import RGCNConv

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = RGCNConv(4, 3, 2)

        def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
            return self.conv(x, edge_index, edge_type)

    edges, types = torch.tensor([[0, 1, 2], [1, 2, 0]]), torch.tensor([0, 3, 1])
    data = pyg.data.Data(x=torch.ones(3, 4), edge_index=edges, edge_type=types, num_nodes=3)
    engine = graphbraid.compile(Net(), data, nodes=[0])
    assert "RGCNConv has 2 relations, and edge_type goes up to 3" in engine.explain()
    data.edge_type = torch.tensor([0, 1, -1])
    assert "it takes 'edge_type'" in graphbraid.compile(Net(), data, nodes=[0]).explain()
