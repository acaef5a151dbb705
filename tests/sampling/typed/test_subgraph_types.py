"""Induced and bidirectional edges of graphs with types are PyG's."""

import pytest
import torch
from tests.sampling.graphs import drawn_data
from torch_geometric.sampler import HeteroSamplerOutput

from graphbraid.errors import ConfigError
from graphbraid.loader import LinkNeighborLoader, NeighborLoader

TYPES = {"author": 60, "paper": 90, "venue": 4}
RELATIONS = {
    ("author", "writes", "paper"): 260,
    ("paper", "rev_writes", "author"): 240,  # not quite the reverses
    ("paper", "cites", "paper"): 300,
    ("paper", "in", "venue"): 90,
    ("venue", "has", "paper"): 90,
}


def make_data(relations=RELATIONS):
    return drawn_data(TYPES, relations)


def batches(kind, data, **options):
    options = {"batch_size": 10, "seed": 0, "shuffle": True, **options}
    return list(NeighborLoader(data, [3, 2], "paper", subgraph_type=kind, **options))


def pairs(edges):
    return sorted(map(tuple, torch.stack(tuple(edges)).t().tolist()))


@pytest.mark.parametrize("workers", [0, 3])
def test_induced_batches_have_all_edges_between_their_nodes(workers):
    data = make_data()
    for batch, drawn in zip(batches("induced", data, num_workers=workers), batches(None, data), strict=True):
        for one in TYPES:
            assert torch.equal(batch[one].n_id, drawn[one].n_id)
            assert "num_sampled_nodes" not in batch[one]
        for one in RELATIONS:
            whole = data[one].edge_index
            inside = torch.isin(whole[0], batch[one[0]].n_id) & torch.isin(whole[1], batch[one[2]].n_id)
            assert torch.equal(batch[one].e_id.sort().values, inside.nonzero().flatten())
            src, dst = batch[one].edge_index
            mapped = torch.stack([batch[one[0]].n_id[src], batch[one[2]].n_id[dst]])
            assert torch.equal(mapped, whole[:, batch[one].e_id])
            assert torch.equal(batch[one].edge_attr, data[one].edge_attr[batch[one].e_id])


@pytest.mark.parametrize("left_out", [None, ("paper", "rev_writes", "author"), ("venue", "has", "paper")])
@pytest.mark.filterwarnings("ignore:Cannot convert to bidirectional")
@pytest.mark.filterwarnings("ignore:edges of .* stay as they were drawn")
def test_bidirectional_batches_are_pygs(left_out):
    data = make_data({one: count for one, count in RELATIONS.items() if one != left_out})
    given = batches("bidirectional", data), batches("directional", data)
    for batch, drawn in zip(*given, strict=True):
        expected = HeteroSamplerOutput(
            node={one: drawn[one].n_id for one in TYPES},
            row={one: drawn[one].edge_index[0] for one in data.edge_types},
            col={one: drawn[one].edge_index[1] for one in data.edge_types},
            edge={one: drawn[one].e_id for one in data.edge_types},
        ).to_bidirectional()
        for one in data.edge_types:
            assert pairs(batch[one].edge_index) == pairs((expected.row[one], expected.col[one])), one
            assert bool((batch[one].edge_index[1].diff() >= 0).all())
            assert "e_id" not in batch[one]
            assert "edge_attr" not in batch[one]
        for one in TYPES:
            assert torch.equal(batch[one].n_id, drawn[one].n_id)


def test_a_relation_without_a_known_reverse_is_told():
    relations = {**RELATIONS, ("venue", "also", "paper"): 20}
    with pytest.warns(UserWarning, match=r"edges of \('paper', 'in', 'venue'\) stay as they were drawn"):
        batches("bidirectional", make_data(relations))


def test_induced_edges_stay_within_trees_and_times():
    data = make_data()
    for one, count in TYPES.items():
        data[one].time = torch.arange(count) % 20
    options = {"time_attr": "time", "disjoint": True, "input_nodes": ("paper", torch.arange(30))}
    loader = NeighborLoader(data, [3, 2], subgraph_type="induced", batch_size=10, seed=0, **options)
    for batch in loader:
        for one in RELATIONS:
            src, dst = batch[one].edge_index
            trees = batch[one[2]].batch[dst]
            assert torch.equal(batch[one[0]].batch[src], trees)
            assert bool((batch[one[0]].time[src] <= batch["paper"].time[:10][trees]).all())


@pytest.mark.parametrize("kind", ["induced", "bidirectional"])
@pytest.mark.filterwarnings("ignore:edges of .* stay as they were drawn")
def test_links_that_are_kept_out_are_in_no_batch(kind):
    data = make_data()
    one = ("author", "writes", "paper")
    options = {"exclude_seed_edges": "reverse", "subgraph_type": kind, "seed": 0}
    for batch in LinkNeighborLoader(data, [4, 4], edge_label_index=one, batch_size=20, **options):
        held = set(pairs(batch[one].edge_index))
        assert not held & set(pairs(batch[one].edge_label_index))
        turned = {(dst, src) for src, dst in pairs(batch["paper", "rev_writes", "author"].edge_index)}
        assert not turned & set(pairs(batch[one].edge_label_index))


def test_layouts_by_layer_have_no_other_edges():
    with pytest.raises(ConfigError, match="needs layout='subgraph'"):
        NeighborLoader(make_data(), [2], "paper", subgraph_type="induced", layout="blocks")
