"""PyG's HGTConv inside a model as it is written: run by our attention and equal to PyG's, or left alone."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.beside_pyg import pyg
from tests.fullgraph.typed_cases import untidy
from torch import Tensor, nn

from graphbraid.errors import DataError
from graphbraid.fullgraph.program import NotLoweredError
from graphbraid.fullgraph.reading import relational
from graphbraid.fullgraph.reading.relational import check_hgt, fused_layers
from graphbraid.graph import Graph

GRAPH = untidy(only_sources=False)
"""Its type c gets one relation with edges and one without; isolated nodes, loops and repeated edges."""
X = {name: rows for name in GRAPH.node_types if isinstance(rows := GRAPH.nodes_of(name).x, Tensor)}
EDGES = GRAPH.to_edge_indices()


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The edges of each call of the attention: one for each type that gets some."""
    calls: list[Any] = []
    own = relational.dot_attention
    monkeypatch.setattr(relational, "dot_attention", lambda csc, *rest: calls.append(csc) or own(csc, *rest))
    return calls  # type: ignore[return-value]


def layer(
    heads: int = 2, width: int = 8, graph: Graph = GRAPH, kind: type[pyg.HGTConv] = pyg.HGTConv
) -> pyg.HGTConv:
    """A layer all of whose parameters are drawn, so that none is 1 by chance of its start."""
    torch.manual_seed(0)
    wide = {name: graph.nodes_of(name).x.shape[1] for name in graph.node_types}  # type: ignore[union-attr]
    found = kind(wide, width, (list(graph.node_types), list(graph.edge_types)), heads)
    for parameter in (*found.skip.parameters(), *found.p_rel.parameters()):
        nn.init.normal_(parameter)
    return found


def assert_equal_to_pyg(model: nn.Module, x: Any, edges: Any, **tolerance: float) -> None:
    """Outputs, and gradients of rows and parameters, beside PyG's own."""
    results = []
    for is_fused in (False, True):
        given = {name: rows.clone().requires_grad_() for name, rows in x.items()}
        model.zero_grad()
        if is_fused:
            with fused_layers(model):
                outs = model(given, edges)
        else:
            outs = model(given, edges)
        sum(
            (out * torch.linspace(-1, 2, out.numel()).view(out.shape)).sum() for out in outs.values()
        ).backward()
        grads = {name: p.grad for name, p in model.named_parameters()}
        results.append((outs, {name: rows.grad for name, rows in given.items()}, grads))
    torch.testing.assert_close(results[1], results[0], **tolerance)
    assert list(results[0][0]) == list(results[1][0])


@pytest.mark.parametrize(("heads", "width"), [(1, 8), (4, 8), (2, 6)])
def test_outputs_and_gradients_equal_pyg(heads, width, fused):
    assert_equal_to_pyg(layer(heads, width), X, EDGES, rtol=1e-4, atol=1e-5)
    assert len(fused) == 3


def test_in_double_precision_they_are_equal_to_its_rounding(fused):
    model = layer().double()
    x = {name: rows.double() for name, rows in X.items()}
    own = vars(model)
    own["forward"] = lambda *given: relational.run_hgt(model, *given)
    outs = model(x, EDGES)
    del own["forward"]
    torch.testing.assert_close(outs, model(x, EDGES), rtol=1e-12, atol=1e-12)
    assert len(fused) == 3


def test_types_that_get_nothing_and_relations_that_are_missing(fused):
    graph = untidy()  # its type d is only a source
    model = layer(graph=graph)
    x = {name: graph.nodes_of(name).x for name in graph.node_types}
    assert_equal_to_pyg(model, x, graph.to_edge_indices(), rtol=1e-4, atol=1e-5)
    some = {one: ends for one, ends in graph.to_edge_indices().items() if one[0] != "b"}
    assert_equal_to_pyg(model, x, some, rtol=1e-4, atol=1e-5)
    assert len(fused) == 6


def test_relations_are_joined_once_and_anew_if_an_edge_list_changes(fused):
    model, edges = layer(), {one: ends.clone() for one, ends in EDGES.items()}
    with fused_layers(model):
        model(X, edges)
        model(X, edges)
        assert fused[0] is fused[3]
        edges["b", "to", "a"][0] = 0
        changed = model(X, edges)
        edges["b", "to", "a"] = edges["b", "to", "a"].clone()
        model(X, edges)
    torch.testing.assert_close(changed, model(X, edges), rtol=1e-4, atol=1e-5)
    assert len({id(csc) for csc in fused}) == 5


def test_an_id_out_of_range_is_refused():
    model = layer()
    with (
        fused_layers(model),
        pytest.raises(DataError, match=r"destinations of \('b', 'again', 'c'\) must be"),
    ):
        model(X, EDGES | {("b", "again", "c"): torch.tensor([[0], [10**6]])})


def test_other_calls_run_as_they_are_written(fused):
    model = layer()
    turned = dict(reversed(EDGES.items()))
    with fused_layers(model):
        found = model(X, turned)
        with torch.autocast("cpu"):
            model(X, EDGES)
    torch.testing.assert_close(found, model(X, turned), rtol=0, atol=0)
    assert not fused


class OwnLayer(pyg.HGTConv):
    """A subclass, which may do anything."""


def _with_hook(kind: str) -> pyg.HGTConv:
    model = layer()
    getattr(model, kind)(lambda *_: None)
    return model


def _with_other_maps() -> pyg.HGTConv:
    model = layer()
    model.k_rel.register_forward_hook(lambda *_: None)
    return model


REFUSED = {
    "a subclass": (lambda: layer(kind=OwnLayer), "OwnLayer is a subclass of HGTConv"),
    "a hook": (lambda: _with_hook("register_forward_hook"), "it has hooks"),
    "a hook on messages": (lambda: _with_hook("register_message_forward_hook"), "it has hooks"),
    "a hook on its maps": (_with_other_maps, "it has hooks"),
    "a parameter to be made": (
        lambda: pyg.HGTConv(-1, 8, GRAPH.to_pyg().metadata()),
        "made by the model's first run",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_layers_that_are_anything_else_run_as_they_are_written(name, fused):
    make, reason = REFUSED[name]
    model = make()
    with pytest.raises(NotLoweredError, match=reason):
        check_hgt("layer", model)
    with fused_layers(model):
        model(X, EDGES)
    assert not fused


def test_the_model_is_left_as_it_was_found_even_by_an_error():
    model = layer()
    before = dict(vars(model))
    with pytest.raises(ValueError, match="non-empty"), fused_layers(model):
        model({}, EDGES)
    assert vars(model) == before
