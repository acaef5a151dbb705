"""PyG's own tests of its LinkNeighborLoader, with graphbraid's import; and why some have no twin.

The cases are written anew after what PyG's ``test/loader/test_link_neighbor_loader.py`` checks of the loader.
"""

import pytest
import torch
from tests.beside_pyg import Data
from tests.sampling.test_pyg_cases import pairs, random_edges
from torch_geometric.sampler import NegativeSampling

from graphbraid.loader import LinkNeighborLoader

WITHOUT_TWIN = {
    "test_custom_hetero_link_neighbor_loader": "reads feature and graph stores, which are refused",
}
"""PyG's cases that have no twin below or in ``typed/test_pyg_link_cases.py``, and why."""


@pytest.mark.parametrize("subgraph_type", ["directional", "bidirectional"])
@pytest.mark.parametrize("ratio", [None, 1.0])
@pytest.mark.parametrize("filter_per_worker", [None, True, False])
def test_homo_link_neighbor_loader_basic(subgraph_type, ratio, filter_per_worker):
    inside, outside = random_edges(50, 500), random_edges(50, 500) + 50
    links = torch.cat([inside, outside], 1)
    label = torch.cat([torch.ones(500), torch.zeros(500)])
    data = Data(edge_index=inside, x=torch.arange(100), edge_attr=torch.arange(500))
    loader = LinkNeighborLoader(
        data,
        num_neighbors=[-1] * 2,
        batch_size=20,
        edge_label_index=links,
        edge_label=label if ratio is None else None,
        subgraph_type=subgraph_type,
        neg_sampling_ratio=ratio,
        shuffle=True,
        filter_per_worker=filter_per_worker,
    )
    assert str(loader) == "LinkNeighborLoader()"
    assert len(loader) == 50
    assert {0, 10} == set(loader([0, 10]).input_id.tolist())
    for batch in loader:
        assert isinstance(batch, Data)
        assert batch.n_id.size() == (batch.num_nodes,)
        assert batch.e_id.size() == (batch.num_edges,)
        assert batch.x.size(0) <= 100
        assert batch.input_id.numel() == 20
        assert batch.edge_index.min() >= 0
        assert batch.edge_index.max() < batch.num_nodes
        assert torch.equal(batch.edge_attr, batch.e_id)
        local = pairs(batch.edge_index)
        if ratio is None:
            assert batch.edge_label_index.size(1) == 20
            assert pairs(batch.edge_label_index[:, batch.edge_label == 1]) <= local
            assert not pairs(batch.edge_label_index[:, batch.edge_label == 0]) & local
        else:
            assert batch.edge_label_index.size(1) == 40
            assert batch.edge_label.tolist() == [1] * 20 + [0] * 20
        positive = batch.edge_label_index[:, batch.edge_label >= 1]
        assert pairs(positive, batch.n_id) <= pairs(links)


@pytest.mark.parametrize("label", [None, torch.ones(500, dtype=torch.long)])
def test_link_neighbor_loader_edge_label(label):
    data = Data(edge_index=random_edges(100, 500), x=torch.arange(100))
    loader = LinkNeighborLoader(data, [-1] * 2, batch_size=10, edge_label=label, neg_sampling_ratio=1.0)
    for batch in loader:
        assert batch.edge_label.dtype == (torch.float if label is None else torch.long)
        assert batch.edge_label.tolist() == [1] * 10 + [0] * 10


def test_labels_from_0_are_raised_by_1():
    data = Data(edge_index=random_edges(30, 60), num_nodes=30)
    label = torch.arange(60) % 3
    loader = LinkNeighborLoader(data, [2], batch_size=60, edge_label=label, neg_sampling="binary")
    assert torch.equal(
        next(iter(loader)).edge_label, torch.cat([label + 1, torch.zeros(60, dtype=torch.long)])
    )


@pytest.mark.parametrize("least", [0.25, -0.5, -1.0, float("nan")])
def test_labels_that_begin_near_0_stay_as_they_are(least):
    data = Data(edge_index=random_edges(30, 60), num_nodes=30)
    label = (torch.arange(60) % 3 + least).requires_grad_()
    loader = LinkNeighborLoader(data, [2], batch_size=60, edge_label=label, neg_sampling="binary")
    found = next(iter(loader)).edge_label
    torch.testing.assert_close(found, torch.cat([label, torch.zeros(60)]), equal_nan=True)
    found.sum().backward()
    assert label.grad is not None


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.bool])
def test_negatives_beside_links_that_are_negatives_already_are_warned_of(dtype):
    data = Data(edge_index=random_edges(30, 60), num_nodes=30)
    label = (torch.arange(60) % 2).to(dtype)
    with pytest.warns(UserWarning, match="0 and 1 become 1 and 2"):
        loader = LinkNeighborLoader(data, [2], batch_size=60, edge_label=label, neg_sampling="binary")
    assert next(iter(loader)).edge_label.tolist() == [1, 2] * 30 + [0] * 60
    LinkNeighborLoader(data, [2], batch_size=60, edge_label=label)  # no negatives: nothing to say


@pytest.mark.parametrize("batch_size", [1, 7])
def test_temporal_homo_link_neighbor_loader(batch_size):
    data = Data(x=torch.randn(10, 5), edge_index=random_edges(10, 123), time=torch.arange(10))
    times = data.time[data.edge_index].max(0).values  # both ends are there by then
    loader = LinkNeighborLoader(
        data,
        num_neighbors=[-1],
        time_attr="time",
        edge_label=torch.ones(data.num_edges),
        edge_label_time=times,
        batch_size=batch_size,
        shuffle=True,
        drop_last=True,
    )
    for batch in loader:
        assert batch.edge_label_index.size() == (2, batch_size)
        assert batch.edge_label_time.size() == (batch_size,)
        assert batch.edge_label.size() == (batch_size,)
        assert (batch.time <= batch.edge_label_time[batch.batch]).all()


def test_homo_link_neighbor_loader_no_edges():
    links = random_edges(100, 100)
    loader = LinkNeighborLoader(Data(num_nodes=100), [1], batch_size=20, edge_label_index=links)
    for batch in loader:
        assert isinstance(batch, Data)
        assert batch.input_id.numel() == batch.edge_label_index.size(1) == 20
        assert batch.num_nodes == batch.edge_label_index.unique().numel()
    loader = LinkNeighborLoader(Data(num_nodes=100), [], batch_size=20, edge_label_index=links)
    for batch in loader:
        assert batch.num_nodes == batch.edge_label_index.unique().numel()
        assert (batch.num_sampled_nodes, batch.num_sampled_edges) == ([batch.num_nodes], [])


@pytest.mark.parametrize(("disjoint", "temporal"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("amount", [1, 2])
@pytest.mark.parametrize("form", ["dict", "class"])
def test_homo_link_neighbor_loader_triplet(disjoint, temporal, amount, form):
    data = Data(x=torch.arange(100), edge_index=random_edges(100, 400))
    data.edge_label_index = random_edges(100, 500)
    data.edge_attr = torch.arange(400)
    options = {}
    if temporal:
        data.time = torch.arange(100)
        options = {
            "time_attr": "time",
            "edge_label_time": data.time[data.edge_label_index].max(0).values + 50,
        }
    how = {"mode": "triplet", "amount": amount}
    loader = LinkNeighborLoader(
        data,
        num_neighbors=[-1] * 2,
        batch_size=20,
        edge_label_index=data.edge_label_index,
        disjoint=disjoint,
        neg_sampling=how if form == "dict" else NegativeSampling(**how),
        shuffle=True,
        **options,
    )
    assert len(loader) == 25
    seeds = 40 + 20 * amount
    for batch in loader:
        assert torch.equal(batch.x[batch.src_index], data.edge_label_index[0, batch.input_id])
        assert torch.equal(batch.x[batch.dst_pos_index], data.edge_label_index[1, batch.input_id])
        assert batch.dst_neg_index.size() == ((20,) if amount == 1 else (20, amount))
        assert 0 <= int(batch.dst_neg_index.min()) <= int(batch.dst_neg_index.max()) < batch.num_nodes
        if disjoint:  # the seeds come first: sources, destinations, negatives
            assert torch.equal(batch.src_index, torch.arange(20))
            assert torch.equal(batch.dst_pos_index, torch.arange(20, 40))
            assert batch.dst_neg_index.flatten().sort().values.tolist() == list(range(40, seeds))
            assert torch.equal(batch.batch[:seeds], torch.arange(20).repeat(2 + amount))
            assert batch.batch.max() == 19
        if temporal:
            assert (batch.time <= batch.seed_time[batch.batch]).all()


def test_link_neighbor_loader_mapping():
    edges = torch.tensor([[0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 3, 5], [1, 2, 3, 4, 5, 8, 6, 7, 9, 10, 6, 11]])
    data = Data(edge_index=edges, num_nodes=12)
    loader = LinkNeighborLoader(data, edge_label_index=edges, num_neighbors=[1], batch_size=2, shuffle=True)
    for batch in loader:
        assert torch.equal(batch.n_id[batch.edge_index], edges[:, batch.e_id])
