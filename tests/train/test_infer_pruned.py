"""Exact inference of some nodes computes the rows that their outputs are made of, and no others."""

import pytest
import torch
from tests.train.communities import random_graph

from graphbraid import nn as gnn
from graphbraid.features.rows.row_stream import ScratchRows
from graphbraid.fullgraph.batches import layer_wise
from graphbraid.graph import Graph
from graphbraid.train import Trainer

SMALL = 1 << 16


def ring(num_nodes: int, width: int = 8) -> Graph:
    """Each node reads the one before it."""
    ids = torch.arange(num_nodes)
    return Graph.from_edge_index(
        torch.stack([ids, (ids + 1) % num_nodes]),
        num_nodes,
        x=torch.rand(num_nodes, width, generator=torch.Generator().manual_seed(0)),
        y=ids % 3,
        splits={"train": ids[:10], "test": ids[-5:]},
    )


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of the activations that are kept."""
    found: list[int] = []

    class Spy(ScratchRows):
        def __init__(self, num_nodes: int, *args: object, **kwargs: object) -> None:
            found.append(num_nodes)
            super().__init__(num_nodes, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(layer_wise, "ScratchRows", Spy)
    return found


def trainer_of(graph: Graph, name: str = "sage", layers: int = 3) -> Trainer:
    torch.manual_seed(0)
    model = gnn.MODELS[name](graph.num_features, 16, graph.num_classes, layers)
    return Trainer(model, graph, fanouts=(3,) * layers, memory_budget_bytes=SMALL)


def test_each_layer_is_computed_for_what_the_next_ones_read(sizes):
    graph = ring(1500)
    whole = trainer_of(graph).predict()
    assert sizes == [1500, 1500, 1500], "the last layer sums products of three columns"
    sizes.clear()
    nodes = torch.tensor([700, 5, 1499, 5])
    some = trainer_of(graph).predict(nodes)
    assert sizes == [9, 6, 6], "each of three nodes reads one more node a layer"
    torch.testing.assert_close(some, whole[nodes], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", list(gnn.MODELS))
@pytest.mark.parametrize("weighted", [False, True])
def test_outputs_of_some_nodes_are_those_of_all(name, weighted, sizes):
    graph = random_graph(3000, 2, 12)
    if weighted:
        graph.csc.weight = torch.rand(graph.num_edges, generator=torch.Generator().manual_seed(1)) + 0.1
    nodes = torch.randperm(3000, generator=torch.Generator().manual_seed(2))[:40]
    whole = trainer_of(graph, name).predict()
    sizes.clear()
    some = trainer_of(graph, name).predict(nodes)
    assert sizes == sorted(sizes, reverse=True)
    assert name == "mlp" or 40 < sizes[-1] < sizes[0] < 1000
    torch.testing.assert_close(some, whole[nodes], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_all_rows_are_computed_where_most_are_read(sizes):
    graph = random_graph(800, 20, 12)
    trainer = trainer_of(graph)
    trainer.predict(torch.arange(100))
    assert sizes == [800, 800, 800]
    scores = trainer.evaluate("test")
    whole = Trainer(trainer.model, graph, fanouts=(3, 3, 3)).evaluate("test")
    assert scores["accuracy"] == whole["accuracy"]


def test_what_is_read_does_not_depend_on_how_its_edges_are_divided(sizes, monkeypatch):
    graph = random_graph(3000, 2, 12)
    nodes = torch.arange(0, 3000, 100)
    trainer_of(graph).predict(nodes)
    found = list(sizes)
    sizes.clear()
    monkeypatch.setattr(layer_wise, "_EDGE_BYTES", 1 << 14)  # a few edges at a time
    trainer_of(graph).predict(nodes)
    assert sizes == found
