"""Tiers and scores made for another graph of the same shape are refused, wherever they are taken."""

import pickle

import pytest
import torch
from tests.features.tables import stored_graph

import graphbraid
from graphbraid import Graph, Trainer
from graphbraid.datasets import open_store, save_store
from graphbraid.errors import DataError
from graphbraid.features import HostTiers, TieredFeatures, TieredTopology, reorder, score
from graphbraid.graph.csc import Csc
from graphbraid.loader import NeighborLoader

REFUSED = "made for another graph.*Make them anew from this graph"


def others(graph, folder):
    """Graphs of the same shape: with other features, and renumbered ones with other edges, too."""
    twice = graph.replace(x=graph.x * 2)
    moved = reorder(graph, torch.arange(graph.num_nodes).flip(0)).graph
    return [open_store(save_store(one, folder / str(i))) for i, one in enumerate((twice, moved))]


def takers(graph):
    """All that take rows with a graph."""
    model = graphbraid.nn.GraphSAGE(graph.num_features, 4, graph.num_classes, num_layers=2)
    return {
        "loader": lambda tiers: NeighborLoader(graph, [2], tiers=tiers),
        "trainer": lambda tiers: Trainer(model, graph, fanouts=(2, 2), tiers=tiers, mode="sampled"),
        "compile": lambda tiers: graphbraid.compile(model, graph, tiers=tiers),
    }


@pytest.mark.parametrize("name", ["loader", "trainer", "compile"])
def test_rows_of_another_graph_are_refused(graph, name, tmp_path):
    take = takers(graph)[name]
    for other in others(graph, tmp_path):
        with pytest.raises(DataError, match=REFUSED):
            take(TieredFeatures.build(other, host=0))
        if name != "compile":
            with pytest.raises(DataError, match=REFUSED):  # rows in memory, and a copy of tiers
                take(pickle.loads(pickle.dumps(TieredFeatures.build(other, hot="4KiB"))))
    again = open_store(save_store(graph, tmp_path / "again"))
    take(TieredFeatures.build(again, host=0))
    take(pickle.loads(pickle.dumps(TieredFeatures.build(again, host=0))))


def test_lists_of_another_graph_are_refused(graph, tmp_path):
    csc = graph.csc
    heavy = Csc(csc.indptr, csc.indices, csc.num_src, torch.ones(csc.num_edges))
    weighted = open_store(save_store(graph.replace(csc=heavy), tmp_path / "w"))
    for other in (others(graph, tmp_path)[1], weighted):
        for host in (0, "all"):
            with pytest.raises(DataError, match=f"topology's tiers were {REFUSED}"):
                NeighborLoader(graph, [2], topology=TieredTopology.build(other, host=host))
    again = HostTiers.build(open_store(save_store(graph, tmp_path / "again")), host=0)
    copy = pickle.loads(pickle.dumps(again.topology))
    for topology in (again.topology, copy):
        NeighborLoader(graph, [2], tiers=again.features, topology=topology)


def test_features_changed_in_place_after_the_tiers_were_made_are_refused(tmp_path):
    graph = stored_graph(tmp_path)
    tiers = TieredFeatures.build(graph, host=0)
    graph.x[7] += 1  # which the file does not have
    with pytest.raises(DataError, match=REFUSED):
        NeighborLoader(graph, [2], tiers=tiers)


def test_features_changed_in_place_between_epochs_are_refused():
    """Devices would keep the rows of before, and the host give those of now."""
    graph = Graph.from_edge_index(
        [[0, 1, 2, 3], [1, 2, 3, 0]], 4, x=torch.rand(4, 3), splits={"train": torch.arange(4)}
    )
    tiers = TieredFeatures.build(graph, hot="1KiB")
    loader = NeighborLoader(graph, [2], input_nodes="train", tiers=tiers)
    list(loader)
    graph.x.mul_(2)
    with pytest.raises(DataError, match=REFUSED):
        list(loader)


def test_scores_of_another_graph_are_refused(graph, tmp_path):
    twice, moved = others(graph, tmp_path)
    for made_for, is_same in ((graph, True), (twice, True), (moved, False)):  # features do not count
        found = score(made_for, "degree")
        for build in (
            TieredFeatures.build,
            lambda g, host, score: HostTiers.build(g, host=host, row_reads=score),
        ):
            if is_same:
                build(graph, host="all", score=found)
                continue
            with pytest.raises(DataError, match=f"scores were {REFUSED}"):
                build(graph, host="all", score=found)
