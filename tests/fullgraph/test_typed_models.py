"""Models over types that are left alone, and why; the type whose outputs are wanted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.extras import NO_PYG
from tests.fullgraph.fake_device import FakeDevice
from tests.fullgraph.test_typed_engine import CLOSE, Plain, assert_alike, model_of, small
from tests.train.typed_communities import CITES, PAPERS, WRITES, bibliography
from torch import Tensor, nn

import graphbraid
from graphbraid import native
from graphbraid.errors import ConfigError, DataError
from graphbraid.fullgraph import Engine, Uncompiled
from graphbraid.graph import Graph
from graphbraid.nn import RGCN


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


def test_any_other_model_runs_as_it_is_written_and_says_why() -> None:
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
def test_a_model_that_changes_is_left_alone(change: Any, reason: str) -> None:
    graph = bibliography()
    model = model_of(graph)
    engine = graphbraid.compile(model, graph, node_type="paper")
    change(model)
    assert isinstance(engine, Engine)
    assert engine.why is not None
    assert reason in str(engine.why)


def test_a_graph_that_does_not_fit_the_model_is_refused_by_the_model() -> None:
    graph = bibliography()
    model = model_of(graph)
    other = Graph.from_relations(
        {CITES: graph.to_edge_indices()[CITES]}, {"paper": PAPERS}, x={"paper": graph.nodes_of("paper").x}
    )
    engine = graphbraid.compile(model, other, nodes=[0])
    assert "the graph has no relation" in engine.explain()
    with pytest.raises(DataError, match=r"edges must have all relations|need features"):
        engine()


def test_node_type_says_whose_outputs_are_wanted() -> None:
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


def test_hetero_data_run_as_a_graph_with_types_does_and_changes_of_them_are_noticed() -> None:
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


def test_the_engine_runs_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake device is made of the host, and records only what the twins run."""
    monkeypatch.setattr(native, "kernels", lambda: None)
    graph = small()
    model, ids = model_of(graph, num_bases=2), graph.nodes_of("a").split("train")
    engine = graphbraid.compile(model, graph, device=FakeDevice())
    assert isinstance(engine, Engine)
    assert_alike(model, graph, engine, ids)
    assert "recorded" in engine.explain()


def test_edge_types_that_a_layer_does_not_have_are_refused() -> None:
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
