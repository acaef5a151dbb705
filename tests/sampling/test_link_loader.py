"""LinkNeighborLoader: batches of links are pure, resume anywhere, and leak nothing when asked not to."""

import numpy as np
import pytest
import torch
from tests.beside_pyg import Data, torch_geometric
from tests.sampling.test_loader import NUM_NODES, make_data, make_graph
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

from graphbraid.errors import ConfigError, DataError
from graphbraid.loader import LinkNeighborLoader
from graphbraid.ops import rng
from graphbraid.sampling import NegativeSampling

TENSORS = ("n_id", "input_id", "edge_index", "e_id", "x", "edge_label_index", "edge_label", "dst_neg_index")


def links_of(number=300, seed=4):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(NUM_NODES, (2, number), generator=generator)


def make(data=None, fanouts=(4, 3), **options):
    options = {"edge_label_index": links_of(), "batch_size": 40, "seed": 0, **options}
    return LinkNeighborLoader(make_data() if data is None else data, list(fanouts), **options)


def bits(batches):
    return [[batch[name].tolist() for name in TENSORS if name in batch] for batch in batches]


def test_it_is_a_torch_and_a_pyg_loader():
    data = make_data()
    loader = make(data, shuffle=True, num_workers=2)
    assert isinstance(loader, DataLoader)
    assert isinstance(loader, torch_geometric.loader.LinkNeighborLoader)
    assert str(loader) == "LinkNeighborLoader()"
    assert len(loader) == len(list(loader)) == 8
    assert loader.data is data
    assert loader.link_sampler.num_neighbors == [4, 3]
    assert isinstance(loader.sampler, RandomSampler)


def test_a_batch_has_the_links_their_ends_and_their_rows():
    data, links = make_data(), links_of()
    label = torch.arange(300)
    loader = make(data, edge_label=label, shuffle=True)
    for batch in loader:
        assert isinstance(batch, Data)
        assert torch.equal(batch.n_id[batch.edge_label_index], links[:, batch.input_id])
        assert torch.equal(batch.edge_label, label[batch.input_id])
        assert batch.batch_size == batch.input_id.numel()
        assert torch.equal(batch.x, data.x[batch.n_id])
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
        assert batch.n_id.unique().numel() == batch.n_id.numel()
        assert batch.num_sampled_nodes[0] == batch.edge_label_index.unique().numel()
        assert torch.equal(batch.seed_y, data.y[batch.n_id[: batch.num_sampled_nodes[0]]])
    seen = torch.cat([batch.input_id for batch in loader])
    assert torch.equal(seen.sort().values, torch.arange(300))


def test_negatives_follow_their_links_and_change_by_step_and_epoch():
    data, links = make_data(), links_of()
    loader = make(data, neg_sampling="binary", neg_sampling_ratio=0.5, shuffle=True)
    drawn = []
    for epoch in range(2):
        for batch in loader.batches(epoch):
            pairs, num = batch.n_id[batch.edge_label_index], batch.input_id.numel()
            assert torch.equal(pairs[:, :num], links[:, batch.input_id])
            assert pairs.shape[1] == num + -(-num // 2)
            assert batch.edge_label.tolist() == [1.0] * num + [0.0] * (pairs.shape[1] - num)
            drawn.append(tuple(pairs[0, num:].tolist()))
    assert len(set(drawn)) == len(drawn)


def test_triplets_stand_beside_their_links():
    data = make_data()
    edges = set(map(tuple, data.edge_index.t().tolist())) | set(map(tuple, links_of().t().tolist()))
    how = NegativeSampling("triplet", 3, reject_edges=True)
    for batch in make(data, neg_sampling=how):
        src, dst = batch.n_id[batch.src_index], batch.n_id[batch.dst_pos_index]
        assert torch.equal(torch.stack([src, dst]), links_of()[:, batch.input_id])
        assert batch.dst_neg_index.shape == (batch.input_id.numel(), 3)
        for source, others in zip(src.tolist(), batch.n_id[batch.dst_neg_index].tolist(), strict=True):
            assert not edges & {(source, other) for other in others}
        assert "edge_label_index" not in batch
        assert "edge_label" not in batch


@pytest.mark.parametrize("how", [True, "reverse"])
@pytest.mark.parametrize("fanouts", [(-1, -1), (2, 2)])
def test_excluded_links_are_never_among_the_neighbours(how, fanouts):
    """Edges that are repeated leak as much as the link itself, and are out as well."""
    data = make_data()
    data.edge_index = torch.cat([data.edge_index, data.edge_index[:, :50].flip(0)], 1)
    del data.edge_attr
    links = data.edge_index[:, ::9].contiguous()
    loader = make(data, fanouts, edge_label_index=links, exclude_seed_edges=how, num_workers=2)
    reached = 0
    for batch in loader:
        drawn = set(map(tuple, data.edge_index[:, batch.e_id].t().tolist()))
        ends = links[:, batch.input_id]
        assert not drawn & set(map(tuple, ends.t().tolist()))
        assert how is True or not drawn & set(map(tuple, ends.flip(0).t().tolist()))
        reached += len(drawn)
    assert reached
    leaking = make(data, (-1,), edge_label_index=links)
    assert all(
        set(map(tuple, links[:, batch.input_id].t().tolist()))
        <= set(map(tuple, data.edge_index[:, batch.e_id].t().tolist()))
        for batch in leaking
    )


def test_nodes_without_an_excluded_edge_draw_as_before():
    data = make_data()
    links = data.edge_index[:, :40]
    free, held = (
        next(iter(make(data, (3,), edge_label_index=links, exclude_seed_edges=how))) for how in (False, True)
    )
    ends = set(links[1].tolist())
    for batch in (free, held):
        batch.rows = {
            node: sorted(batch.e_id[batch.edge_index[1] == place].tolist())
            for place, node in enumerate(batch.n_id[: batch.num_sampled_nodes[0]].tolist())
            if node not in ends
        }
    assert free.rows == held.rows
    assert free.rows


def test_disjoint_trees_share_no_node():
    links = links_of()
    for batch in make(disjoint=True, neg_sampling="binary", neg_sampling_ratio=1.5):
        num = batch.input_id.numel()
        pairs = batch.edge_label_index
        assert torch.equal(pairs, torch.arange(pairs.numel()).view(2, -1))
        assert torch.equal(batch.n_id[pairs][:, :num], links[:, batch.input_id])
        assert torch.equal(batch.batch[pairs], (torch.arange(pairs.shape[1]) % num).expand(2, -1))
        src, dst = batch.edge_index
        assert torch.equal(batch.batch[src], batch.batch[dst])


@pytest.mark.parametrize("face", ["graph", "data"])
def test_without_links_all_edges_are_the_links(face):
    graph, data = make_graph(), make_data()
    loader = make(graph if face == "graph" else data, edge_label_index=None, batch_size=1000)
    edges = graph.to_edge_index(original_order=True) if face == "graph" else data.edge_index
    for batch in loader:
        assert torch.equal(batch.n_id[batch.edge_label_index], edges[:, batch.input_id])


def test_orders_and_calls_as_other_loaders_have_them():
    expected = bits(make().batches(0))
    assert bits(make(sampler=SequentialSampler(range(300)))) == expected
    assert bits(make(batch_size=1, batch_sampler=[range(40), range(40, 60)]))[0] == expected[0]
    loader = make(neg_sampling="triplet")
    batch = loader([7, 3, 7])
    assert torch.equal(batch.n_id[batch.src_index], links_of()[0, [7, 3, 7]])
    assert loader([]).src_index.numel() == 0
    with pytest.raises(ConfigError, match=r"positions in edge_label_index\[1\] is 300"):
        loader([0, 300])


def test_layout_blocks_ends_at_the_links_ends():
    for batch in make(layout="blocks", neg_sampling="binary"):
        assert len(batch.blocks) == 2
        assert batch.blocks[-1].num_dst == batch.num_sampled_nodes[0]
        assert int(batch.edge_label_index.max()) < batch.num_sampled_nodes[0]


def test_attributes_of_the_datas_own_do_not_hide_the_batchs():
    data = make_data()
    data.edge_label_index, data.edge_label = data.edge_index.flip(0), torch.zeros(data.num_edges)
    batch = next(iter(make(data, neg_sampling="binary")))
    moved = batch.to("cpu")
    assert torch.equal(moved.n_id[moved.edge_label_index][:, :40], links_of()[:, :40])
    assert moved.edge_label.tolist() == [1.0] * 40 + [0.0] * 40
    assert "edge_label_index" not in next(iter(make(data, neg_sampling="triplet")))


def test_changed_data_are_read_again():
    data = make_data()
    loader = make(data, exclude_seed_edges=True)
    before = bits(loader.batches(0))
    data.x = data.x + 1
    after = next(iter(loader.batches(0)))
    assert torch.equal(after.x, data.x[after.n_id])
    data.x = data.x - 1
    assert len(bits(loader.batches(0))) == len(before)
    loader = make(data, edge_label_index=None)
    data.edge_index, data.edge_attr = data.edge_index[:, :100], data.edge_attr[:100]
    with pytest.raises(ConfigError, match="edge_label_index has 100 entries now"):
        next(iter(loader))


@pytest.mark.parametrize("number", [0, 1])
def test_few_or_no_links(number):
    links = torch.zeros((2, number), dtype=torch.int64)
    for options in ({}, {"neg_sampling": "triplet"}, {"shuffle": True}, {"disjoint": True}):
        loader = make(edge_label_index=links, **options)
        assert len(loader) == len(list(loader)) == number


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"edge_label_index": torch.tensor([[0, -1], [1, 0]])}, ConfigError, "the source of link 1 is -1"),
        (
            {"edge_label_index": torch.zeros(3, 4, dtype=torch.int64)},
            ConfigError,
            r"must be a \(2, num_links\)",
        ),
        ({"edge_label_index": torch.zeros(2, 4)}, ConfigError, "tensor of node ids"),
        ({"edge_label_index": ("a", "to", "b")}, ConfigError, "for heterogeneous graphs"),
        ({"edge_label": torch.zeros(299)}, DataError, "one label for each of the 300 links"),
        (
            {"edge_label": torch.zeros(300), "neg_sampling": "triplet"},
            ConfigError,
            "does not go with negatives",
        ),
        ({"neg_sampling": "pairs"}, ConfigError, "mode of NegativeSampling"),
        ({"neg_sampling_ratio": -1}, ConfigError, "neg_sampling_ratio must be"),
        ({"exclude_seed_edges": "both"}, ConfigError, "exclude_seed_edges must be True, False or 'reverse'"),
        ({"time_attr": "time"}, ConfigError, "'edge_label_time' is not set"),
        ({"input_id": torch.zeros(3)}, ConfigError, r"an entry per link, shape \(300,\)"),
        ({"input_id": "1"}, ConfigError, "a tensor with an entry per link; got '1'"),
        ({"sampler": 3}, ConfigError, "sampler must be an iterable of positions of the inputs; got 3"),
        ({"batch_sampler": torch.tensor(1)}, ConfigError, "batch_sampler must be an iterable of positions"),
        ({"shuffle": "yes"}, ConfigError, "shuffle must be True or False"),
        ({"time_attr": ["t"], "edge_label_time": torch.zeros(300)}, ConfigError, "the name of an attribute"),
        ({"plan": "cpu"}, ConfigError, "leave out plan="),
        ({"topology": "lists"}, ConfigError, "topology must be a source of adjacency lists"),
        ({"tiers": [1]}, ConfigError, "tiers must be 'auto', a source of feature rows or None; got"),
    ],
)
def test_what_makes_no_sense_is_refused_before_work(options, error, message):
    with pytest.raises(error, match=message):
        make(**options)


def test_negatives_of_a_loader_are_those_of_the_keys_of_its_steps():
    loader = make(neg_sampling="triplet", shuffle=True, seed=9)
    batches = list(loader.batches(3))
    for step in (0, 4):
        number = np.arange(40)
        keys = rng.row_keys(rng.batch_key(9, 3, step), 255, number)
        expected = rng.wide_bounded(rng.wide_draw(keys, 0), NUM_NODES)
        assert batches[step].n_id[batches[step].dst_neg_index].tolist() == expected.tolist()
