"""The Trainer compiles PyG's models for mini-batches: losses are those of the models as they are written."""

from typing import Any

import pytest
import torch
from tests.beside_pyg import pyg
from tests.extras import to_hetero
from tests.fullgraph.graphs import CHANNELS, CLASSES, make_graph
from tests.modules import module_of
from tests.train.test_typed_trainer import with_venue_features
from tests.train.typed_communities import bibliography
from torch import Tensor, nn

from graphbraid import Graph, Trainer
from graphbraid import nn as gnn

MODELS = {
    "GCN": lambda: pyg.GCN(CHANNELS, 16, 2, CLASSES),
    "SAGE": lambda: pyg.GraphSAGE(CHANNELS, 16, 2, CLASSES, norm="BatchNorm"),
    "GAT": lambda: pyg.GAT(CHANNELS, 16, 2, CLASSES, heads=2),
}


def trained(make: Any, graph: Graph | None = None, **options: Any) -> Trainer:
    """A short run on mini-batches."""
    torch.manual_seed(0)
    options = {"epochs": 3, "lr": 0.01, "fanouts": (4, 3), "batch_size": 16} | options
    trainer = Trainer(make(), graph or make_graph(), **options)
    trainer.fit()
    return trainer


def losses(trainer: Trainer) -> list[float]:
    """The losses of a run's epochs."""
    return [epoch["train_loss"] for epoch in trainer.progress.history]


@pytest.mark.parametrize("layout", ["subgraph", "blocks"])
@pytest.mark.parametrize("name", MODELS)
def test_losses_and_scores_are_those_of_the_model_as_written(name, layout):
    compiled = trained(MODELS[name], layout=layout)
    assert compiled.uncompiled_reason == ""
    if layout == "blocks":  # PyG's layers take no blocks
        return
    plain = trained(MODELS[name], compiled=False)
    assert losses(compiled) == pytest.approx(losses(plain), rel=1e-3)
    scores, expected = (one.evaluate("test", mode="sampled")["loss"] for one in (compiled, plain))
    assert scores == pytest.approx(expected, rel=1e-2)
    ours, theirs = (one.predict([1, 5, 7], mode="sampled") for one in (compiled, plain))
    torch.testing.assert_close(ours, theirs, rtol=5e-2, atol=2e-2)  # six steps of Adam on


@pytest.mark.parametrize("workers", [1, 3])
def test_a_run_has_the_same_bits_with_any_workers_and_when_it_resumes(workers, tmp_path):
    def make() -> nn.Module:
        return pyg.GraphSAGE(CHANNELS, 16, 2, CLASSES, dropout=0.5)

    whole = trained(make, epochs=4, workers=1)
    trained(make, epochs=2, workers=workers, out_dir=tmp_path / "run")
    resumed = trained(make, epochs=4, workers=workers, out_dir=tmp_path / "run", resume=True)
    for (name, ours), theirs in zip(resumed.model.named_parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(ours, theirs), name


def test_what_runs_as_written_is_said():
    def written() -> nn.Module:
        conv = pyg.SAGEConv(CHANNELS, CLASSES)
        return module_of(lambda self, x, edge_index: torch.fft.fft(self.conv(x, edge_index)).real, conv=conv)

    assert "fft" in trained(written, fanouts=(4,)).uncompiled_reason
    assert "autocast" in trained(written, fanouts=(4,), precision="bfloat16").uncompiled_reason
    assert trained(MODELS["SAGE"], precision="bfloat16").uncompiled_reason == ""
    assert trained(MODELS["SAGE"], compiled=False).uncompiled_reason == ""
    assert trained(lambda: gnn.GCN(CHANNELS, 8, CLASSES, 2)).uncompiled_reason == ""


def test_what_is_measured_on_the_model_does_not_become_the_reason_of_the_run():
    run = trained(lambda: pyg.SAGEConv(CHANNELS, CLASSES), fanouts=(4,))
    vars(run.runner).pop("widest", None)  # found once and kept
    assert run.runner.widest >= CLASSES  # seen by hooks, with which a model runs as written
    assert run.runner.uncompiled_reason == ""


def test_weights_go_to_models_that_take_them():
    graph = make_graph()
    weight = torch.rand(graph.num_edges) + 0.1
    graph = graph.replace(csc=type(graph.csc)(graph.csc.indptr, graph.csc.indices, graph.num_nodes, weight))
    for make in MODELS.values():  # GCN takes them, the others do not
        compiled, plain = trained(make, graph), trained(make, graph, compiled=False)
        assert compiled.uncompiled_reason == ""
        assert losses(compiled) == pytest.approx(losses(plain), rel=1e-3)


def of_types(make: Any) -> Any:
    """A maker of what ``to_hetero`` makes of a model, whose widths the first run fills in."""

    def forward(self: Any, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index).relu(), edge_index)

    graph = with_venue_features(bibliography())
    metadata = (list(graph.node_types), list(graph.edge_types))
    return lambda: to_hetero(module_of(forward, first=make(8), second=make(3)), metadata)


@pytest.mark.parametrize("layout", ["subgraph", "blocks"])
@pytest.mark.parametrize(
    "make",
    [
        of_types(lambda width: pyg.SAGEConv((-1, -1), width)),
        of_types(lambda width: pyg.GATConv((-1, -1), width, add_self_loops=False)),
    ],
)
def test_models_over_node_types_learn_the_same(make, layout):
    graph = with_venue_features(bibliography())
    if layout == "blocks":  # the first run, which fills in the widths, is of the model as it is written
        model = make()
        with torch.no_grad():
            model({one: graph.nodes_of(one).x for one in graph.node_types}, graph.to_edge_indices())
        assert trained(lambda: model, graph, layout=layout).uncompiled_reason == ""
        return
    compiled, plain = (trained(make, graph, compiled=compiled) for compiled in (True, False))
    assert compiled.uncompiled_reason == ""
    assert losses(compiled) == pytest.approx(losses(plain), rel=1e-3)
    ours, theirs = (one.predict([1, 5, 7], mode="sampled") for one in (compiled, plain))
    torch.testing.assert_close(ours, theirs, rtol=5e-2, atol=2e-2)
