"""The benchmark of typed sampling at a tiny size: its generated graph, and our side."""

import torch
from benchmarks.sampling import timed, typed_graphs

from graphbraid.loader import NeighborLoader


def test_the_generated_graph_goes_through_its_folder(tmp_path):
    path = typed_graphs.make(tmp_path, "mag-like", tmp_path, 0.001)
    graph, seed_type, seeds = typed_graphs.read(path)
    graph.validate()
    assert seed_type == "paper"
    assert torch.equal(seeds.sort().values, torch.arange(736))
    assert len(graph.edge_types) == 2 * len(typed_graphs.MAG_EDGES)
    assert graph.num_edges == 2 * sum(int(count * 0.001) for count in typed_graphs.MAG_EDGES.values())
    made = typed_graphs.mag_like(0.001).to_edge_indices()
    for edge_type, pairs in graph.to_edge_indices().items():
        assert torch.equal(pairs, made[edge_type])


def test_our_side_counts_what_it_samples(tmp_path):
    graph, seed_type, seeds = typed_graphs.read(typed_graphs.make(tmp_path, "mag-like", tmp_path, 0.001))
    loader = NeighborLoader(
        graph, [3, 2], (seed_type, seeds[:64]), batch_size=32, layout="blocks", return_edge_id=False, seed=0
    )
    _, nodes, edges = timed.epoch(loader)
    batches = list(loader.batches(0))
    assert nodes == sum(batch.num_nodes for batch in batches)
    assert edges == sum(
        csc.num_edges for batch in batches for layer in batch.blocks for csc in layer.values()
    )
