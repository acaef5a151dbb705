"""PyG's own models over node types, compiled: HeteroConv and to_hetero, equal to PyG in double precision."""

import copy
import warnings
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.beside_pyg import pyg
from tests.fullgraph.fake_device import FakeDevice
from tests.fullgraph.test_typed_engine import assert_alike
from tests.fullgraph.typed_cases import (
    COUNTS,
    HETERO,
    LEFT_ALONE,
    TRAIN,
    TRANSFORMED,
    hetero,
    of,
    ready,
    untidy,
)
from tests.modules import module_of
from tests.suites import every, examples
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.utils.stateless import _reparametrize_module

import graphbraid
from graphbraid import native
from graphbraid.fullgraph import ALL, Engine, Uncompiled, estimated_bytes, lower
from graphbraid.graph import Graph

pytestmark = pytest.mark.filterwarnings("ignore:There exist node types")


class Twin:
    """A model as PyG runs it, in double precision."""

    def __init__(self, model: nn.Module, graph: Graph, node_type: str = "a") -> None:
        self.model, self._type = copy.deepcopy(model).double(), node_type
        self._x = {name: graph.nodes_of(name).x.double() for name in graph.node_types}  # type: ignore[union-attr]
        self._edges = graph.to_edge_indices()

    def __call__(self) -> Tensor:
        out = self.model(self._x, self._edges)
        rows = out[self._type] if isinstance(out, dict) else out
        assert isinstance(rows, Tensor)
        return rows


def compiled(model: nn.Module, graph: Graph, nodes: Tensor = TRAIN, **options: Any) -> Engine:
    engine = graphbraid.compile(model, graph, nodes=nodes, node_type=options.pop("node_type", "a"), **options)
    assert isinstance(engine, Engine), engine.explain()
    return engine


@pytest.mark.parametrize("nodes", every(2, ["some", "all"]))
@pytest.mark.parametrize("name", every(3, [*HETERO, *TRANSFORMED]))
def test_the_engine_equals_pyg(name, nodes):
    graph = untidy(only_sources=name in HETERO)
    model = ready((HETERO | TRANSFORMED)[name], graph)
    ids = TRAIN if nodes == "some" else torch.arange(COUNTS["a"]).flip(0)
    assert_alike(model, graph, compiled(model, graph, ids), ids, steps=2, plain=Twin(model, graph))


def test_outputs_of_another_type_side_by_side():
    graph = untidy()
    model, ids = ready(hetero(of(pyg.GraphConv), "cat"), graph), torch.tensor([8, 1])
    twin = Twin(model, graph, "b")
    assert twin().shape == (9, 6)
    assert_alike(model, graph, compiled(model, graph, ids, node_type="b"), ids, steps=1, plain=twin)


@pytest.mark.parametrize("without", every(3, sorted(ALL)))
def test_each_pass_can_be_left_out(without):
    graph = untidy(1)
    model = ready(HETERO["mixed, mean"], graph)
    engine = compiled(model, graph, passes=ALL - {without})
    assert_alike(model, graph, engine, TRAIN, steps=1, plain=Twin(model, graph))


KINDS = {
    "sage": of(pyg.SAGEConv),
    "sum": of(pyg.SAGEConv, aggr="sum", root_weight=False),
    "max": of(pyg.GraphConv, aggr="max"),
    "gat": of(pyg.GATConv, heads=2, concat=False, add_self_loops=False),
    "gatv2": of(pyg.GATv2Conv, add_self_loops=False),
}


@pytest.mark.slow
@settings(max_examples=examples(20))
@given(data=st.data())
def test_any_model_on_any_graph(data):
    graph = untidy(data.draw(st.integers(0, 99)))
    kinds = {one: data.draw(st.sampled_from(sorted(KINDS))) for one in graph.edge_types}
    width, layers = data.draw(st.sampled_from([1, 5, 16])), data.draw(st.integers(1, 3))
    aggr = data.draw(st.sampled_from(["sum", "mean", "cat"]))
    widths = (*[width] * (layers - 1), 3)
    make = hetero(lambda one, wide: KINDS[kinds[one]](one, wide), aggr, widths)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of types that nothing leads to
        model = ready(make, graph)
    node_type = data.draw(st.sampled_from(["a", "b", "c"]))
    ids = torch.randperm(COUNTS[node_type], generator=torch.Generator().manual_seed(width))[:4]
    passes = data.draw(st.sets(st.sampled_from(sorted(ALL))))
    engine = compiled(model, graph, ids, node_type=node_type, passes=passes)
    assert_alike(model, graph, engine, ids, steps=2, plain=Twin(model, graph, node_type))


@pytest.mark.filterwarnings("ignore:There exist node types:UserWarning")
def test_means_of_heads_where_pruning_leaves_no_rows():
    graph, ids = untidy(), torch.arange(4)
    model = ready(hetero(KINDS["gat"], "sum", (1, 3)), graph)
    engine = compiled(model, graph, ids, node_type="c", passes={"prune"})
    assert_alike(model, graph, engine, ids, steps=2, plain=Twin(model, graph, "c"))


def test_features_are_aggregated_once_and_only_what_is_needed_is_computed():
    graph = untidy()
    model = ready(HETERO["SAGEConv"], graph)
    lowered = lower(model, graph, TRAIN[:1], node_type="a")
    text = str(lowered)
    assert "computed once" in text
    assert "over a never c" not in text  # c's rows are read by b alone, a layer later than those of a
    assert [lowered.num_rows(2, part) for part in range(4)] == [1, 0, 0, 0]


def test_dropout_of_attention_has_new_masks_and_none_in_evaluation():
    graph = untidy()
    model = ready(hetero(of(pyg.GATConv, dropout=0.5, add_self_loops=False)), graph)
    engine = compiled(model, graph)
    first, second = engine().detach().clone(), engine().detach().clone()
    assert not torch.equal(first, second)
    model.eval()
    torch.testing.assert_close(engine(), engine.predict()[TRAIN])


@pytest.mark.slow
def test_the_engine_runs_on_a_device(monkeypatch):
    """The fake device is made of the host, and records only what the twins run."""
    monkeypatch.setattr(native, "kernels", lambda: None)
    graph = untidy()
    model = ready(HETERO["mixed, mean"], graph)
    engine = compiled(model, graph, device=FakeDevice())
    assert_alike(model, graph, engine, TRAIN, steps=2, plain=Twin(model, graph))


class WithRows(nn.Module):
    """Learned rows for the type without features."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.rows = nn.Embedding(graph.nodes_of("d").num_nodes, 5)
        self.conv = pyg.HeteroConv(
            {one: pyg.SAGEConv((-1, -1), 3) for one in graph.edge_types if one[0] != "c"}
        )

    def forward(self, x_dict: Any, edge_index_dict: Any, n_id_dict: Any) -> Any:
        return self.conv(x_dict | {"d": self.rows(n_id_dict["d"])}, edge_index_dict)


def test_learned_rows_of_a_type_without_features():
    whole = untidy()
    x = {name: whole.nodes_of(name).x for name in "ab"}
    edges = {one: ends for one, ends in whole.to_edge_indices().items() if "c" not in one}
    graph = Graph.from_relations(edges, {name: COUNTS[name] for name in "abd"}, x=x)
    torch.manual_seed(0)
    model, ids = WithRows(graph), {"d": torch.arange(COUNTS["d"])}
    model(x, edges, ids)  # makes the parameters
    engine = compiled(model, graph)
    torch.testing.assert_close(engine(), model(x, edges, ids)["a"][TRAIN], rtol=2e-4, atol=2e-5)
    engine().square().sum().backward()
    assert model.rows.weight.grad is not None
    found = model.rows.weight.grad.clone()
    model.zero_grad()
    model(x, edges, ids)["a"][TRAIN].square().sum().backward()
    torch.testing.assert_close(found, model.rows.weight.grad, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_what_is_left_alone_runs_as_it_is_written_and_says_why(name):
    make, reason = LEFT_ALONE[name]
    graph = untidy()
    model = ready(make, graph)
    node_type = "b" if name == "outputs of one type" else "a"
    engine = graphbraid.compile(model, graph, nodes=TRAIN[:1], node_type=node_type)
    assert isinstance(engine, Uncompiled)
    assert reason in engine.explain()
    if node_type == "a":
        twin = Twin(model, graph)
        torch.testing.assert_close(engine(), twin()[TRAIN[:1]].float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["SAGEConv", "HGTConv", "a subclass"])
def test_edges_and_features_changed_later_are_followed_also_by_a_model_left_alone(name):
    graph = untidy(only_sources=False)
    lowered = HETERO | TRANSFORMED
    model = ready(lowered[name] if name in lowered else LEFT_ALONE[name][0], graph)
    data = graph.to_pyg()
    engine = graphbraid.compile(model, data, nodes=TRAIN, node_type="a")
    assert isinstance(engine, Engine) == (name in lowered)
    for _ in range(2):
        expected = model(data.x_dict, data.edge_index_dict)
        expected = expected["a"] if isinstance(expected, dict) else expected
        torch.testing.assert_close(engine(), expected[TRAIN], rtol=1e-4, atol=1e-5)
        first = data.edge_types[0]
        data[first].edge_index = data[first].edge_index[:, ::2].contiguous()
        data["a"].x = data["a"].x + 1


@pytest.mark.parametrize("frozen", ["rel", "lin", "first", "skip.a"])
def test_attention_over_relations_with_frozen_parts_equals_pyg(frozen):
    graph = untidy(only_sources=False)
    model = ready(TRANSFORMED["HGTConv"], graph)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(frozen not in name)
    engine = compiled(model, graph)
    assert "attention over relations" in engine.explain()
    assert_alike(model, graph, engine, TRAIN, steps=2, plain=Twin(model, graph))
    assert estimated_bytes(model, graph, node_type="a") > 0


def test_attention_over_relations_has_the_derivatives_that_pyg_has():
    graph = untidy(only_sources=False)
    model, data = ready(TRANSFORMED["HGTConv"], graph), graph.to_pyg()
    engine = graphbraid.compile(model, data, nodes=TRAIN, node_type="a")
    layer, weight, found = model.second.kqv_lin.lins["a"], model.second.kqv_lin.lins["a"].weight, []
    for run in (engine, lambda: model(data.x_dict, data.edge_index_dict)["a"][TRAIN]):
        first = torch.autograd.grad(run().square().sum(), weight, create_graph=True)[0]
        found.append([first, *torch.autograd.grad(first.square().sum(), weight)])
        with forward_ad.dual_level(), torch.no_grad():
            dual = forward_ad.make_dual(weight.detach(), torch.ones_like(weight))
            with _reparametrize_module(layer, {"weight": dual}):
                found[-1].append(forward_ad.unpack_dual(run()).tangent)
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def test_a_layer_within_a_type_is_refused_between_two():
    graph = untidy()

    def forward(self: Any, x_dict: Any, edge_index_dict: Any) -> Any:
        return {"b": self.conv(x_dict["a"], edge_index_dict["a", "back", "b"])}

    wrong = module_of(forward, conv=pyg.SAGEConv(6, 3))
    engine = graphbraid.compile(wrong, graph, nodes=[0], node_type="b")
    assert "SAGEConv takes rows of 'a' for those of 'b'" in engine.explain()


def test_a_changed_model_is_read_anew():
    graph = untidy()
    model = ready(HETERO["SAGEConv"], graph)
    engine = compiled(model, graph)
    before = engine().detach().clone()
    model.layers[0].aggr = "mean"  # type: ignore[union-attr]
    assert engine.why is None
    assert not torch.allclose(engine(), before)
    torch.testing.assert_close(engine().double(), Twin(model, graph)()[TRAIN], rtol=2e-4, atol=2e-5)
    model.layers[1].register_forward_hook(lambda *_: None)
    assert "hooks" in str(engine.why)
