"""Estimates of runs on labels of edges and of graphs: what is counted, and how it grows."""

from typing import Any

import pytest
import torch
from tests.train.labelled_edges import own_model, people

import graphbraid
from graphbraid import GraphSet, Trainer, datasets
from graphbraid import nn as gnn
from graphbraid.graph.graph_set import JoinedAttribute

QUICK: dict[str, Any] = {"epochs": 2, "batch_size": 64, "times": False}


def needs(found: Any) -> dict[str, int]:
    """Bytes of each need of the run on mini-batches."""
    host = found.modes[0].host
    return {need.name: need.nbytes for need in (*host.held, *host.phases)}


def rings(num: int = 200, size: int = 6, width: int = 5) -> GraphSet:
    """Rings and paths of ``size`` nodes; every other one is a ring."""
    counts = torch.full((num,), size)
    edges = torch.stack([torch.arange(size), torch.arange(size).roll(-1)]).repeat(1, num)
    starts = torch.arange(num + 1) * size
    drawn = torch.Generator().manual_seed(0)
    x = torch.randn(num * size, width, generator=drawn)
    arrays = {
        "edge_index": JoinedAttribute(values=edges, starts=starts, dim=1, steps=counts),
        "x": JoinedAttribute(values=x, starts=starts),
    }
    y = (x.view(num, -1).mean(1) > 0).long()
    return datasets.split_graphs(GraphSet(arrays, counts, y=y), "0.6,0.2")


def model_of(graphs: GraphSet, hidden: int = 16) -> gnn.PooledModel:
    encoder = gnn.GIN(graphs.num_features, hidden, hidden, num_layers=2)
    return gnn.PooledModel(encoder, torch.nn.Linear(hidden, 2))


@pytest.mark.slow
def test_a_run_on_labels_of_edges_is_counted_and_its_model_stays():
    model, graph = own_model(), people()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    options = {"task": "edge", "fanouts": (5, 5)} | QUICK
    found = graphbraid.estimate(model, graph, **options)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert found.mode == "sampled"
    assert not found.modes[1].fits
    assert "not labels of edges" in found.modes[1].reason
    of = needs(found)
    assert "scores" not in of  # of negatives, which edges with labels do not have
    assert of["model"] >= sum(value.nbytes for value in before.values())
    assert of["links"] > 0
    assert of["test"] > 60 * 16 * 4  # the encoder's rows
    larger = needs(graphbraid.estimate(model, graph, **options | {"batch_size": 300}))
    assert larger["step"] > 2 * of["step"]
    Trainer(model, graph, **{name: value for name, value in options.items() if name != "times"}).fit()


@pytest.mark.slow
def test_a_run_on_labels_of_graphs_is_counted():
    graphs = rings()
    found = graphbraid.estimate(model_of(graphs), graphs, task="graph", **QUICK)
    of, sizes = needs(found), "384 nodes, 384 edges"
    batches = next(need for need in found.modes[0].host.held if need.name == "batches")
    assert sizes in batches.why  # 64 graphs of six nodes
    assert of["attributes"] == 2 * 8 * 6 * len(graphs)
    assert of["features"] == 4 * 5 * 6 * len(graphs)
    assert "not labels of graphs" in found.modes[1].reason
    wide = needs(graphbraid.estimate(model_of(graphs, 64), graphs, task="graph", **QUICK))
    assert 2 * of["step"] < wide["step"] < 8 * of["step"]
    assert wide["validation"] > of["validation"]
    timed = graphbraid.estimate(model_of(graphs), graphs, task="graph", epochs=2, batch_size=64)
    assert timed.modes[0].seconds is not None
    assert timed.modes[0].seconds.train.known > 0


@pytest.mark.slow
def test_the_step_of_many_graphs_takes_what_was_estimated():
    from graphbraid.estimates.machine import allocation_of
    from graphbraid.estimates.trial import Trial
    from graphbraid.train import TrainConfig

    graphs = rings()
    config = TrainConfig(task="graph", batch_size=64, mode="sampled")
    trial = Trial(model_of(graphs), graphs, config)
    batch = graphs.batch(trial.nodes[:64])
    trial.step(batch)
    trial.forget_gradients()
    taken = allocation_of(lambda: trial.step(batch), trial.device).peak
    step = needs(graphbraid.estimate(model_of(graphs), graphs, task="graph", **QUICK))["step"]
    assert step == pytest.approx(taken, rel=0.2)
