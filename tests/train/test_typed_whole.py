"""Trainer with mode="full" on graphs with types: R-GCN and PyG's by the engine, others as written."""

from pathlib import Path

import pytest
import torch
from tests.modules import module_of
from tests.train.recorded import losses
from tests.train.test_typed_trainer import OPTIONS, pyg_model, rgcn, with_venue_features
from tests.train.typed_communities import bibliography
from torch import nn

from graphbraid.train import Trainer


@pytest.mark.slow
def test_rgcn_learns_on_the_whole_graph_by_the_engine() -> None:
    graph = bibliography()
    trainer = Trainer(rgcn(graph), graph, **OPTIONS | {"mode": "full", "epochs": 40})
    result = trainer.fit()
    assert trainer.uncompiled_reason == ""
    assert trainer.runner.engine is not None
    assert result.test["accuracy"] > 0.75  # a third by chance
    outputs = trainer.predict()
    model = trainer.model.eval()
    x = {name: graph.nodes_of(name).x for name in ("author", "paper")}
    with torch.no_grad():
        expected = model(x, {one: graph.relation(one) for one in graph.edge_types})
    torch.testing.assert_close(outputs, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_whole_graph_run_resumes_to_the_same_losses(tmp_path: Path) -> None:
    graph = bibliography()
    options = OPTIONS | {"mode": "full", "patience": None}
    whole = losses(Trainer(rgcn(graph), graph, **options | {"epochs": 4}))
    first = Trainer(rgcn(graph), graph, **options | {"epochs": 2, "out_dir": tmp_path / "run"})
    begun = losses(first)
    more = Trainer(rgcn(graph), graph, **options | {"epochs": 4, "out_dir": tmp_path / "run", "resume": True})
    assert begun + losses(more) == whole


def test_a_model_of_ones_own_trains_on_the_whole_graph_as_it_is_written() -> None:
    graph = with_venue_features(bibliography())
    model = module_of(
        lambda self, x_dict, edge_index_dict: {"paper": self.paper(x_dict["paper"])}, paper=nn.Linear(12, 3)
    )
    trainer = Trainer(model, graph, **OPTIONS | {"mode": "full"})
    assert trainer.fit().status == "finished"
    assert "its outputs of 'paper' read no edges" in trainer.uncompiled_reason


@pytest.mark.slow
def test_a_model_of_pyg_learns_on_the_whole_graph_by_the_engine() -> None:
    graph = with_venue_features(bibliography())
    trainer = Trainer(pyg_model(graph, "HeteroConv"), graph, **OPTIONS | {"mode": "full", "epochs": 40})
    result = trainer.fit()
    assert trainer.uncompiled_reason == ""
    assert result.test["accuracy"] > 0.75
