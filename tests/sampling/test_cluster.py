"""ClusterLoader: PyG's batches of the same clusters; pure, for any number of threads, from any step."""

import numpy as np
import pytest
import torch
from tests.beside_pyg import Data, HeteroData
from tests.sampling.test_shadow import make_data as shadow_data
from torch_geometric import loader as pyg

from graphbraid import Graph
from graphbraid.errors import ConfigError, DataError
from graphbraid.loader import ClusterData, ClusterLoader

NODES, EDGES, PARTS = 50, 300, 5


def make_data(seed=0):
    return shadow_data(NODES, EDGES, seed)


def pygs(data, clusters, monkeypatch):
    """PyG's clusters, divided as ours are: PyG's own METIS need not be installed."""
    part_of = clusters.partition.part_of.long()
    monkeypatch.setattr(pyg.ClusterData, "_metis", lambda *_: part_of)
    return pyg.ClusterData(data, PARTS, log=False)


def contents(batch):
    """Rows of nodes, and edges with their attributes, by ids of the whole graph: PyG's order is not told."""
    edges = batch.x[batch.edge_index]
    listed = sorted(zip(*edges.tolist(), batch.edge_attr.tolist(), strict=True))
    return sorted(zip(batch.x.tolist(), batch.y.tolist(), batch.train_mask.tolist(), strict=True)), listed


def test_batches_and_clusters_are_pygs(monkeypatch):
    data = make_data()
    clusters = ClusterData(data, PARTS)
    theirs = pygs(data, clusters, monkeypatch)
    assert len(clusters) == len(theirs) == PARTS
    assert repr(clusters) == repr(theirs)
    for own, other in zip(clusters, theirs, strict=True):
        assert contents(own) == contents(other)
    own, other = ClusterLoader(clusters, batch_size=2), pyg.ClusterLoader(theirs, batch_size=2)
    assert len(own) == len(other) == 3
    for batch, expected in zip(own, other, strict=True):
        assert isinstance(batch, Data)
        assert contents(batch) == contents(expected)
        assert batch.num_nodes == expected.num_nodes
        assert batch.name == expected.name
        assert torch.equal(batch.x, batch.n_id)
        assert torch.equal(batch.edge_attr, batch.e_id)


def test_an_epoch_has_every_node_once_and_all_edges_within_its_batches():
    data = make_data()
    clusters = ClusterData(data, PARTS, strategy="random", seed=3)
    part_of = clusters.partition.part_of
    seen = []
    for batch in ClusterLoader(clusters, batch_size=2, shuffle=True, seed=0):
        assert set(part_of[batch.n_id].tolist()) == set(batch.input_id.tolist())
        inside = torch.isin(data.edge_index, batch.n_id).all(0).nonzero().flatten()
        assert torch.equal(batch.e_id.sort().values, inside)
        seen.append(batch.n_id)
    assert torch.equal(torch.cat(seen).sort().values, torch.arange(NODES))


def test_a_graph_is_divided_as_its_data_are():
    data = make_data()
    graph = Graph.from_edge_index(data.edge_index, NODES, x=data.x.float()[:, None], y=data.y)
    for own, other in zip(
        ClusterLoader(ClusterData(graph, PARTS)), ClusterLoader(ClusterData(data, PARTS)), strict=True
    ):
        assert torch.equal(own.n_id, other.n_id)
        assert torch.equal(own.edge_index, other.edge_index)
        assert torch.equal(own.x[:, 0], other.x.float())


def test_samplers_choose_the_clusters():
    clusters = ClusterData(make_data(), PARTS)
    chosen = [batch.input_id.tolist() for batch in ClusterLoader(clusters, sampler=[4, 1], batch_size=1)]
    assert chosen == [[4], [1]]
    chosen = [batch.input_id.tolist() for batch in ClusterLoader(clusters, batch_sampler=[[0, 3], [2]])]
    assert chosen == [[0, 3], [2]]
    assert ClusterLoader(clusters)([2, 0]).input_id.tolist() == [2, 0]


def test_clusters_are_kept_and_read_again(tmp_path):
    first = ClusterData(make_data(), PARTS, save_dir=tmp_path, strategy="random", seed=1)
    again = ClusterData(make_data(), PARTS, save_dir=tmp_path, strategy="random", seed=2)
    assert torch.equal(first.partition.part_of, again.partition.part_of)
    other = make_data()
    other.edge_index = (other.edge_index + 1) % NODES
    with pytest.raises(DataError, match=r"clusters\.npz were made for another graph: its edges"):
        ClusterData(other, PARTS, save_dir=tmp_path)
    other.num_nodes, other.x = NODES + 1, torch.zeros(NODES + 1, 2)
    with pytest.raises(DataError, match=r"clusters\.npz must hold the cluster of each of 51 nodes"):
        ClusterData(other, PARTS, save_dir=tmp_path)
    file = tmp_path / f"part_{PARTS}" / "clusters.npz"
    content = file.read_bytes()
    file.write_bytes(content.replace(b"\1\0\0\0", b"\2\0\0\0", 1))
    with pytest.raises(DataError, match=r"clusters\.npz is damaged"):
        ClusterData(make_data(), PARTS, save_dir=tmp_path)
    with file.open("wb") as stream:
        np.save(stream, np.zeros(NODES, np.int32))
    with pytest.raises(DataError, match=r"clusters\.npz holds no clusters with a checksum"):
        ClusterData(make_data(), PARTS, save_dir=tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"recursive": True}, "does not support recursive=True: the partitioner takes"),
        ({"sparse_format": "coo"}, "sparse_format must be"),
        ({"num_parts": 0}, "num_parts must be"),
        ({"data": HeteroData()}, "one node type"),
        ({"save_dir": [1 << 64]}, "save_dir must be a path"),
    ],
)
def test_what_cannot_be_divided_is_named(options, message):
    with pytest.raises(ConfigError, match=message):
        ClusterData(**{"data": make_data(), "num_parts": PARTS} | options)


def test_loaders_options_that_do_not_fit_are_named():
    clusters = ClusterData(make_data(), PARTS)
    with pytest.raises(ConfigError, match="cluster_data must be a ClusterData"):
        ClusterLoader(make_data())
    with pytest.raises(ConfigError, match="ClusterLoader takes no argument 'num_neighbors'"):
        ClusterLoader(clusters, num_neighbors=[2])
    with pytest.raises(ConfigError, match="batch_size"):
        ClusterLoader(clusters, batch_size=0)
    with pytest.raises(IndexError, match="there are 5 clusters; got 5"):
        clusters[PARTS]
