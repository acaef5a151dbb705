"""PyG's own tests of its LinkNeighborLoader over HeteroData, with graphbraid's import.

The cases are written anew after what PyG's ``test/loader/test_link_neighbor_loader.py`` checks of the loader.
"""

import pytest
import torch
from tests.beside_pyg import HeteroData
from tests.sampling.test_pyg_cases import pairs
from tests.sampling.typed.test_loader import PAPER_AUTHOR, PAPER_PAPER, papers_and_authors, random_edges
from torch_geometric.sampler import NegativeSampling

from graphbraid.errors import ConfigError
from graphbraid.loader import LinkNeighborLoader


@pytest.mark.parametrize("ratio", [None, 1.0])
def test_hetero_link_neighbor_loader_basic(ratio):
    torch.manual_seed(12345)
    data = papers_and_authors()
    loader = LinkNeighborLoader(
        data,
        num_neighbors=[-1] * 2,
        edge_label_index=PAPER_AUTHOR,
        batch_size=20,
        neg_sampling_ratio=ratio,
        shuffle=True,
    )
    assert str(loader) == "LinkNeighborLoader()"
    assert len(loader) == 50
    whole = pairs(data[PAPER_AUTHOR].edge_index)
    for batch in loader:
        assert isinstance(batch, HeteroData)
        store, local = batch[PAPER_AUTHOR], pairs(batch[PAPER_AUTHOR].edge_index)
        assert store.input_id.numel() == 20
        if ratio is None:  # a link is one of the edges between its ends
            assert store.edge_label_index.size() == (2, 20)
            assert pairs(store.edge_label_index) <= local
            assert "edge_label" not in store
        else:
            assert store.edge_label_index.size() == (2, 40)
            assert int(store.edge_label_index.min()) >= 0
            assert store.edge_label_index[0].max() < batch["paper"].num_nodes
            assert store.edge_label_index[1].max() < batch["author"].num_nodes
            assert store.edge_label.tolist() == [1] * 20 + [0] * 20
        links = store.edge_label_index[:, :20]
        ends = torch.stack([batch["paper"].x[links[0]], batch["author"].x[links[1]] - 100])
        assert pairs(ends) <= whole


@pytest.mark.parametrize("ratio", [None, 1.0])
def test_hetero_link_neighbor_loader_loop(ratio):
    data = HeteroData()
    data["paper"].x, data["author"].x = torch.arange(100), torch.arange(100, 300)
    data["paper", "paper"].edge_index = random_edges(100, 100, 500)
    data["paper", "author"].edge_index = random_edges(100, 200, 1000)
    data["author", "paper"].edge_index = random_edges(200, 100, 1000)
    loader = LinkNeighborLoader(
        data, [-1] * 2, edge_label_index=("paper", "paper"), batch_size=20, neg_sampling_ratio=ratio
    )
    for batch in loader:
        store = batch[PAPER_PAPER]
        if ratio is None:
            assert pairs(store.edge_label_index) <= pairs(store.edge_index)
        else:
            assert store.edge_label_index.size() == (2, 40)
            assert store.edge_label.tolist() == [1] * 20 + [0] * 20


def test_temporal_hetero_link_neighbor_loader():
    data = HeteroData()
    data["paper"].x, data["author"].x = torch.arange(100), torch.arange(100, 300)
    data["paper"].time, data["author"].time = torch.arange(100) - 200, torch.arange(100, 300)
    data["paper", "paper"].edge_index = random_edges(100, 100, 500)
    data["paper", "author"].edge_index = random_edges(100, 200, 1000)
    data["author", "paper"].edge_index = random_edges(200, 100, 1000)
    options = {
        "num_neighbors": [-1] * 2,
        "edge_label_index": PAPER_AUTHOR,
        "batch_size": 32,
        "time_attr": "time",
    }
    with pytest.raises(ConfigError, match="'edge_label_time' is not set"):
        LinkNeighborLoader(data, **options)
    times = torch.arange(1000) + 300  # later than all nodes
    early = data["author"].time[data["paper", "author"].edge_index[1]]  # each when its author arose
    for given, amount in ((times, 0.5), (early, 0.5), (early, 2)):
        loader = LinkNeighborLoader(
            data, **options, edge_label_time=given, neg_sampling_ratio=amount, drop_last=True
        )
        for batch in loader:
            store = batch[PAPER_AUTHOR]
            assert store.edge_label_index.size(1) == store.edge_label_time.numel() == 32 + 32 * amount
            own = given[store.input_id]
            for name in ("paper", "author"):
                assert (batch[name].time <= own[batch[name].batch]).all()
            assert (batch["author"].time[store.edge_label_index[1]] <= store.edge_label_time).all()


def test_hetero_link_neighbor_loader_no_edges():
    links = random_edges(100, 100, 100)
    data = HeteroData(paper={"num_nodes": 100})
    with pytest.raises(ConfigError, match="without relations has nothing to draw from"):  # PyG takes it
        LinkNeighborLoader(data, [1], edge_label_index=(PAPER_PAPER, links))
    data["paper", "cites", "paper"].edge_index = torch.zeros(2, 0, dtype=torch.int64)
    for batch in LinkNeighborLoader(data, [1], edge_label_index=(PAPER_PAPER, links), batch_size=20):
        assert isinstance(batch, HeteroData)
        assert batch[PAPER_PAPER].input_id.numel() == batch[PAPER_PAPER].edge_label_index.size(1) == 20
        assert batch["paper"].num_nodes == batch[PAPER_PAPER].edge_label_index.unique().numel()


@pytest.mark.parametrize(("disjoint", "temporal"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("amount", [1, 2])
def test_hetero_link_neighbor_loader_triplet(disjoint, temporal, amount):
    data = papers_and_authors()
    options = {}
    if temporal:
        data["paper"].time, data["author"].time = torch.arange(100), torch.arange(200)
        options = {"time_attr": "time", "edge_label_time": torch.arange(1000) % 50 + 200}
    loader = LinkNeighborLoader(
        data,
        num_neighbors=[-1] * 2,
        batch_size=20,
        edge_label_index=PAPER_AUTHOR,
        disjoint=disjoint,
        neg_sampling=NegativeSampling("triplet", amount),
        shuffle=True,
        **options,
    )
    assert len(loader) == 50
    for batch in loader:
        papers, authors = batch["paper"], batch["author"]
        links = data[PAPER_AUTHOR].edge_index[:, batch[PAPER_AUTHOR].input_id]
        assert torch.equal(papers.x[papers.src_index], links[0])
        assert torch.equal(authors.x[authors.dst_pos_index] - 100, links[1])
        assert authors.dst_neg_index.size() == ((20,) if amount == 1 else (20, amount))
        assert 0 <= int(authors.dst_neg_index.min()) <= int(authors.dst_neg_index.max()) < authors.num_nodes
        assert "edge_label_index" not in batch[PAPER_AUTHOR]
        if disjoint:  # the seeds come first: sources; and destinations, negatives
            assert torch.equal(papers.src_index, torch.arange(20))
            assert torch.equal(authors.dst_pos_index, torch.arange(20))
            assert authors.dst_neg_index.flatten().sort().values.tolist() == list(range(20, 20 + 20 * amount))
            assert torch.equal(authors.batch[: 20 + 20 * amount], torch.arange(20).repeat(1 + amount))
            assert int(papers.batch.max()) == int(authors.batch.max()) == 19
        if temporal:
            for store in (papers, authors):
                assert (store.time <= store.seed_time[store.batch]).all()
