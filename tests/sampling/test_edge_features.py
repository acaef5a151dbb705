"""``edge_attr`` of a Graph in its mini-batches: the rows that PyG's loader cuts, wherever a batch is made."""

import dataclasses
import importlib

import pytest
import torch
from tests.collective.emulation import NUM_STEPS, make_context
from tests.extras import NO_PYG
from tests.sampling.test_loader import make_data

from graphbraid import Graph
from graphbraid.collective.hardware.process import ProcessBatching
from graphbraid.collective.run.stages import make_operator
from graphbraid.errors import ConfigError
from graphbraid.loader import BatchLoader, LoaderSettings, NeighborLoader
from graphbraid.sampling.source import BatchSource

OPTIONS = {"num_neighbors": [4, 3], "batch_size": 50, "seed": 0}


def make_featured_data():
    data = make_data()
    data.edge_attr = torch.randn(data.num_edges, 5, generator=torch.Generator().manual_seed(4))
    return data


@pytest.mark.parametrize("layout", ["subgraph", "blocks"])
@pytest.mark.parametrize("replace", [False, True])
def test_a_graphs_batches_have_the_rows_of_their_edges(layout, replace):
    data = make_featured_data()
    graph = Graph.from_pyg(data)
    assert not torch.equal(graph.edge_attr, data.edge_attr)  # kept in another order than the user's
    of_graph = NeighborLoader(graph, layout=layout, replace=replace, **OPTIONS)
    of_data = NeighborLoader(data, layout=layout, replace=replace, **OPTIONS)
    num_edges = 0
    for ours, theirs in zip(of_graph, of_data, strict=True):
        assert ours.edge_attr.shape == (ours.num_edges, 5)
        assert torch.equal(ours.edge_attr, data.edge_attr[ours.e_id])
        assert torch.equal(ours.edge_attr, theirs.edge_attr)
        num_edges += ours.num_edges
    assert num_edges > 400


def test_they_are_those_that_pygs_neighbor_loader_cuts_for_the_same_draws():
    """PyG's own loader, handed our draws: its samplers need compiled packages, what it cuts does not."""
    pytest.importorskip("torch_geometric", reason=NO_PYG)
    pyg = importlib.import_module("torch_geometric.loader")
    sampler = importlib.import_module("torch_geometric.sampler")
    data = make_featured_data()
    drawn = list(NeighborLoader(Graph.from_pyg(data), **OPTIONS))
    draws = iter(drawn)

    class Drawn(sampler.BaseSampler):
        edge_permutation = None

        def sample_from_edges(self, *_):
            raise NotImplementedError

        def sample_from_nodes(self, inputs, **_):
            batch = next(draws)
            row, col = batch.edge_index
            return sampler.SamplerOutput(
                node=batch.n_id,
                row=row,
                col=col,
                edge=batch.e_id,
                batch=None,
                num_sampled_nodes=batch.num_sampled_nodes,
                num_sampled_edges=batch.num_sampled_edges,
                metadata=(inputs.input_id, inputs.time),
            )

    theirs = list(pyg.NeighborLoader(data, num_neighbors=[4, 3], batch_size=50, neighbor_sampler=Drawn()))
    assert len(theirs) == len(drawn) == 16
    for batch, expected in zip(drawn, theirs, strict=True):
        for name in ("edge_attr", "e_id", "n_id", "edge_index", "x", "y"):
            assert torch.equal(batch[name], expected[name]), name


def test_they_are_gathered_when_they_are_read_and_need_edge_ids():
    graph = Graph.from_pyg(make_featured_data())
    batch = next(BatchLoader(graph, LoaderSettings(num_neighbors=[4], batch_size=9)).batches(0))
    assert "edge_attr" in batch.keys()  # noqa: SIM118
    held = batch.travelling_bytes
    assert batch.edge_attr is batch.edge_attr
    assert batch.travelling_bytes == held + batch.edge_attr.nbytes
    assert batch.to("meta").edge_attr.device.type == "meta"
    settings = LoaderSettings(num_neighbors=[4], batch_size=9, return_edge_id=False)
    without = next(BatchLoader(graph, settings).batches(0))
    assert "edge_attr" not in without.keys()  # noqa: SIM118
    with pytest.raises(ConfigError, match=r"batch.edge_attr needs edge ids; .*return_edge_id=True"):
        _ = without.edge_attr


def test_an_attribute_of_the_data_by_this_name_comes_first():
    data = make_featured_data()
    data.edge_attr = torch.arange(data.num_edges)  # no features a Graph holds
    batch = next(iter(NeighborLoader(data, **OPTIONS)))
    assert torch.equal(batch.edge_attr, batch.e_id)


def test_a_forked_process_gives_them_too():
    context = make_context(torch.device("cpu"), 1)
    graph = context.source.graph
    graph = graph.replace(edge_attr=torch.randn(graph.num_edges, 2))
    context = dataclasses.replace(
        context,
        source=BatchSource(graph=graph),
        sampler=dataclasses.replace(context.sampler, return_edge_id=True),
    )
    operator = ProcessBatching(context, start_method="fork")
    try:
        expected = make_operator("batching", "cpu", context)(0, NUM_STEPS - 1)
        batch = operator(0, NUM_STEPS - 1)
    finally:
        operator.close()
    assert torch.equal(batch.edge_attr, expected.edge_attr)
    assert torch.equal(batch.edge_attr, graph.edge_attr[batch.e_id])
