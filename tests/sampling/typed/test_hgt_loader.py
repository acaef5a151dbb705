"""HGTLoader: budget sampling in compiled code equals its twin to the bit, and has PyG's distribution."""

import itertools

import numpy as np
import pytest
import torch
from tests.beside_pyg import Data, HeteroData
from tests.sampling.graphs import drawn_data
from torch_geometric import loader as pyg

from graphbraid import native
from graphbraid.errors import ConfigError
from graphbraid.graph import Graph
from graphbraid.loader import HGTLoader
from graphbraid.ops import rng
from graphbraid.sampling.config import SamplerConfig
from graphbraid.sampling.cpu import sample_budget

TYPES = {"author": 120, "paper": 200, "venue": 7, "lonely": 5}
RELATIONS = {
    ("author", "writes", "paper"): 700,
    ("paper", "rev_writes", "author"): 700,
    ("paper", "cites", "paper"): 900,
    ("paper", "in", "venue"): 600,  # more than 50 papers in each venue
    ("venue", "rev_in", "paper"): 200,
}


def make_data(seed=0):
    data = drawn_data(TYPES, RELATIONS, seed)
    data["paper"].y = torch.arange(TYPES["paper"]) % 4
    data["paper"].train_mask = torch.arange(TYPES["paper"]) % 3 == 0
    return data


def each(counts):
    return {one: list(counts) for one in TYPES}


@pytest.mark.parametrize("num_samples", [[20, 10], [5], each([8, 0, 4]) | {"venue": [1, 1, 1]}])
def test_batches_are_those_of_the_twin_to_the_bit(num_samples):
    data = make_data()
    loader = HGTLoader(data, num_samples, ("paper", data["paper"].train_mask), batch_size=16, seed=3)
    types, seeds = loader.graph.all_types, data["paper"].train_mask.nonzero().flatten()
    config = SamplerConfig.for_budget(
        loader.graph.node_types, loader.graph.edge_types, num_samples, return_edge_id=True
    )
    assert native.kernels() is None or type(loader._batches._running()).__name__ == "_NativePipeline"
    for epoch in range(2):
        for step, batch in enumerate(loader):
            key = rng.batch_key(3, epoch, step)
            number = list(types.nodes).index("paper")
            twin = sample_budget(types, config, number, seeds[16 * step :][:16], key)
            for one, ids in zip(types.nodes, twin.n_id_by_type, strict=True):
                assert torch.equal(batch[one].n_id, ids)
                assert torch.equal(batch[one].x, data[one].x[ids])
            for one, [edges] in zip(types.edges, twin.edges_by_relation, strict=True):
                rows = torch.repeat_interleave(edges.indptr.diff())
                assert torch.equal(batch[one].edge_index, torch.stack([edges.indices.long(), rows]))


def test_a_batch_has_the_counts_asked_for_and_all_edges_between_its_nodes():
    data = make_data()
    loader = HGTLoader(data, [6, 5], ("paper", torch.arange(30)), batch_size=10, seed=0)
    assert isinstance(loader, pyg.HGTLoader)
    assert len(loader) == 3
    for batch in loader:
        assert isinstance(batch, HeteroData)
        assert batch["paper"].batch_size == 10
        assert torch.equal(batch["paper"].n_id[:10], batch["paper"].input_id)
        assert torch.equal(batch["paper"].y, data["paper"].y[batch["paper"].n_id])
        sizes = {one: batch[one].num_nodes for one in TYPES}
        assert sizes == {"author": 11, "paper": 21, "venue": 7, "lonely": 0}  # of seven venues, all
        assert "num_sampled_nodes" not in batch["paper"]
        for one in RELATIONS:
            assert len(batch[one[0]].n_id.unique()) == sizes[one[0]]
            ends = data[one].edge_index
            src, dst = batch[one].edge_index
            mapped = torch.stack([batch[one[0]].n_id[src], batch[one[2]].n_id[dst]])
            assert torch.equal(mapped, ends[:, batch[one].e_id])
            assert torch.equal(batch[one].edge_attr, data[one].edge_attr[batch[one].e_id])
            inside = torch.isin(ends[0], batch[one[0]].n_id) & torch.isin(ends[1], batch[one[2]].n_id)
            if one != ("paper", "in", "venue"):  # whose destinations have more than 50 in-edges
                assert set(batch[one].e_id.tolist()) == set(inside.nonzero().flatten().tolist())
            else:
                assert set(batch[one].e_id.tolist()) <= set(inside.nonzero().flatten().tolist())


def star(shares):
    """One seed whose in-neighbours, of one type, have budgets in the ratio of ``shares``, all whole numbers.

    ``shares[i]`` seeds, each with one in-edge, have node ``i`` as their source.
    """
    ids = torch.arange(len(shares)).repeat_interleave(torch.tensor(shares))
    data = HeteroData()
    data["seed"].num_nodes, data["node"].num_nodes = len(ids), len(shares)
    data["node", "to", "seed"].edge_index = torch.stack([ids, torch.arange(len(ids))])
    return data


def counts_of(shares, number, trials):
    data = star(shares)
    graph = Graph.from_pyg(data)
    config = SamplerConfig.for_budget(graph.node_types, graph.edge_types, [number])
    seeds, found = torch.arange(sum(shares)), np.zeros(len(shares))
    for trial in range(trials):
        made = sample_budget(graph.all_types, config, graph.node_types.index("seed"), seeds, rng.mix(trial))
        found[made.n_id_by_type[graph.node_types.index("node")].numpy()] += 1
    return found


def test_a_node_is_drawn_in_proportion_to_the_square_of_its_budget():
    shares, trials = [1, 2, 3, 4], 600
    expected = trials * np.square(shares) / np.square(shares).sum()
    found = counts_of(shares, 1, trials)
    assert ((found - expected) ** 2 / expected).sum() < 21.1  # 3 degrees of freedom: 1e-4


def test_nodes_are_drawn_one_after_the_other_without_replacement():
    shares, trials = [1, 2, 3], 600
    weight = np.square(shares) / np.square(shares).sum()
    expected = np.zeros(3)
    for first, second in itertools.permutations(range(3), 2):
        expected[[first, second]] += weight[first] * weight[second] / (1 - weight[first])
    found = counts_of(shares, 2, trials) / trials
    assert np.abs(found - expected).max() < 4.5 * 0.5 / np.sqrt(trials)


def test_budgets_are_of_normalised_degrees_and_of_all_relations():
    """A seed's two in-edges give a half each; the other relation's one in-edge gives one."""
    data = HeteroData()
    data["seed"].num_nodes, data["node"].num_nodes = 1, 3
    data["node", "a", "seed"].edge_index = torch.tensor([[0, 1], [0, 0]])
    data["node", "b", "seed"].edge_index = torch.tensor([[2], [0]])
    graph, found, trials = Graph.from_pyg(data), np.zeros(3), 600
    config = SamplerConfig.for_budget(graph.node_types, graph.edge_types, [1])
    for trial in range(trials):
        made = sample_budget(
            graph.all_types, config, graph.node_types.index("seed"), torch.zeros(1).long(), trial
        )
        found[made.n_id_by_type[graph.node_types.index("node")].numpy()] += 1
    expected = trials * np.array([1 / 6, 1 / 6, 4 / 6])
    assert ((found - expected) ** 2 / expected).sum() < 18.4  # 2 degrees of freedom: 1e-4


def test_of_many_in_edges_fifty_are_read():
    data = HeteroData()
    data["seed"].num_nodes, data["node"].num_nodes = 1, 80
    data["node", "to", "seed"].edge_index = torch.stack([torch.arange(80), torch.zeros(80).long()])
    batch = next(iter(HGTLoader(data, [80], "seed", seed=0)))
    assert batch["node"].num_nodes == 50
    assert batch["node", "to", "seed"].edge_index.shape[1] < 50  # of 50 others, those that are there
    assert len(batch["node"].n_id.unique()) == 50


def test_repeated_seeds_keep_rows_and_no_seeds_give_an_empty_batch():
    data = make_data()
    loader = HGTLoader(data, [3, 3], ("paper", torch.arange(20)), seed=0)
    batch = loader([4, 4, 9])
    assert batch["paper"].n_id[:3].tolist() == [4, 4, 9]
    assert 1 not in batch["paper", "cites", "paper"].edge_index[0]
    empty = loader([])
    assert all(empty[one].num_nodes == 0 for one in TYPES)


def test_positions_name_pygs_arguments():
    data = make_data()
    loader = HGTLoader(data, [4], "paper", False, len, None, None, batch_size=5)
    assert loader.transform is len
    assert next(iter(loader)) == 4 or isinstance(next(iter(loader)), int)
    with pytest.raises(TypeError, match="multiple values"):
        HGTLoader(data, [4], "paper", False, len, transform=len)
    with pytest.raises(TypeError, match="by position"):
        HGTLoader(data, [4], "paper", False, len, None, None, None)


@pytest.mark.parametrize(
    ("num_samples", "message"),
    [
        ({"paper": [1]}, "no numbers for the node type 'author'; name every type, 0 for none"),
        (each([1]) | {"papers": [1]}, "names an unknown node type 'papers'.*Did you mean"),
        (each([1]) | {"paper": [1, 2]}, "as many for each type"),
        ([3, -1], "whole numbers"),
        ([3, 0.5], "num_samples|fanout"),
        (7, "num_samples must be a list"),
        ([1] * 65, "at most 64"),
    ],
)
def test_numbers_that_are_none_are_refused(num_samples, message):
    with pytest.raises(ConfigError, match=message):
        HGTLoader(make_data(), num_samples, "paper")


def test_data_without_types_and_foreign_hooks_are_refused():
    with pytest.raises(ConfigError, match="draws nodes by type"):
        HGTLoader(Data(edge_index=torch.zeros(2, 1).long(), num_nodes=2), [3], None)
    with pytest.raises(ConfigError, match="does not support transform_sampler_output"):
        HGTLoader(make_data(), [3], "paper", transform_sampler_output=print)
    with pytest.raises(ConfigError, match="takes no argument 'replace'"):
        HGTLoader(make_data(), [3], "paper", replace=True)
