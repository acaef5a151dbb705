"""ShaDowKHopSampler: PyG's arguments and batches; ego networks with all edges between their nodes."""

import pytest
import torch
from tests.beside_pyg import Batch, Data
from torch_geometric.nn import GCNConv, global_mean_pool
from torch_geometric.utils import k_hop_subgraph

from graphbraid import Graph
from graphbraid.errors import ConfigError
from graphbraid.loader import ShaDowKHopSampler


def make_data(num_nodes=60, num_edges=400, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return Data(
        x=torch.arange(num_nodes),
        y=torch.arange(num_nodes) * 10,
        edge_index=torch.randint(num_nodes, (2, num_edges), generator=draw),
        edge_attr=torch.arange(num_edges),
        train_mask=torch.arange(num_nodes) < 25,
        name="of the whole graph",
    )


def parts_of(batch):
    """Each subgraph's nodes and edges, both by global ids, and the ids of its edges."""
    src, dst = batch.n_id[batch.edge_index]
    owner = batch.batch[batch.edge_index[1]]
    for tree in range(batch.num_graphs):
        nodes = batch.n_id[batch.ptr[tree] : batch.ptr[tree + 1]]
        own = owner == tree
        yield nodes, torch.stack([src[own], dst[own]]), batch.e_id[own]


def test_a_batch_is_pygs_with_one_subgraph_after_another():
    """The checks of PyG's own case: attributes by node, by edge and by root, ``ptr`` and ``batch``."""
    data = make_data()
    loader = ShaDowKHopSampler(
        data, depth=2, num_neighbors=3, node_idx=data.train_mask, batch_size=10, seed=1
    )
    assert str(loader) == "ShaDowKHopSampler()"
    assert len(loader) == 3
    roots = []
    for batch in loader:
        assert isinstance(batch, Batch)
        assert batch.num_graphs == batch.ptr.numel() - 1 == batch.root_n_id.numel()
        assert torch.equal(batch.batch, batch.batch.sort().values)
        assert torch.equal(batch.batch.bincount(), batch.ptr.diff())
        assert batch.num_nodes == batch.n_id.numel()
        assert torch.equal(batch.x, batch.n_id)
        assert torch.equal(batch.train_mask, data.train_mask[batch.n_id])
        assert torch.equal(batch.edge_attr, batch.e_id)
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
        assert torch.equal(batch.y, batch.n_id[batch.root_n_id] * 10)
        assert torch.equal(*batch.batch[batch.edge_index])
        assert batch.name == "of the whole graph"
        roots += batch.n_id[batch.root_n_id].tolist()
    assert roots == list(range(25))
    assert torch.equal(batch.input_id, torch.arange(20, 25))


def test_subgraphs_have_all_edges_between_their_nodes():
    data = make_data()
    for batch in ShaDowKHopSampler(data, 2, 3, batch_size=16, shuffle=True, seed=0):
        for nodes, edges, e_id in parts_of(batch):
            assert nodes.unique().numel() == nodes.numel()
            inside = torch.isin(data.edge_index, nodes).all(0)
            assert torch.equal(e_id.sort().values, inside.nonzero().flatten())
            assert torch.equal(data.edge_index[:, e_id], edges)


def test_all_neighbours_give_the_whole_neighbourhood():
    data = make_data()
    for batch in ShaDowKHopSampler(data, depth=2, num_neighbors=-1, batch_size=20):
        for tree, (nodes, _, e_id) in enumerate(parts_of(batch)):
            root = int(batch.n_id[batch.root_n_id[tree]])
            expected, _, _, mask = k_hop_subgraph(root, 2, data.edge_index, num_nodes=60)
            assert nodes.sort().values.tolist() == expected.tolist()
            induced = torch.isin(data.edge_index, expected).all(0)
            assert torch.equal(e_id.sort().values, induced.nonzero().flatten())
            assert bool(induced[mask].all())


def test_no_node_draws_more_than_asked():
    data = make_data(num_edges=2000)
    for batch in ShaDowKHopSampler(data, depth=1, num_neighbors=4, batch_size=60):
        assert int(batch.ptr.diff().max()) <= 5
        assert int(batch.ptr.diff().min()) >= 3  # the root, and at most one repeat or loop among four


def test_graphs_splits_and_sparse_matrices_are_taken():
    data = make_data()
    graph = Graph.from_pyg(
        Data(edge_index=data.edge_index, x=data.x[:, None].float(), train_mask=data.train_mask)
    )
    batches = list(ShaDowKHopSampler(graph, 1, 3, "train", batch_size=5, seed=0))
    assert sum(batch.num_graphs for batch in batches) == 25
    assert torch.equal(batches[0].x[:, 0].long(), batches[0].n_id)
    pairs = data.edge_index.flip(0).unique(dim=1)
    adj_t = torch.sparse_coo_tensor(pairs, torch.ones(pairs.shape[1]), (60, 60), check_invariants=True)
    [batch] = ShaDowKHopSampler(Data(adj_t=adj_t.coalesce(), x=data.x), 1, 3, batch_size=60, seed=0)
    assert batch.adj_t.shape == (batch.num_nodes, batch.num_nodes)


def test_what_a_loader_of_pyg_draws_afterwards_is_changed_by_transform_and_calls():
    data = make_data()
    loader = ShaDowKHopSampler(data, 1, 2, batch_size=4, transform=lambda batch: (batch, batch.num_graphs))
    assert [number for _, number in loader] == [4] * 15
    batch, _ = loader([3, 8])
    assert batch.n_id[batch.root_n_id].tolist() == [3, 8]


def test_a_model_of_pyg_learns_on_the_batches():
    torch.manual_seed(0)
    data = make_data()
    data.x = torch.nn.functional.one_hot(torch.arange(60) % 2, 2).float()
    data.y = torch.arange(60) % 2
    conv, head = GCNConv(2, 8), torch.nn.Linear(16, 2)
    optimizer = torch.optim.Adam([*conv.parameters(), *head.parameters()], lr=0.05)
    loader = ShaDowKHopSampler(data, 2, 3, batch_size=20, shuffle=True, seed=0)
    for _ in range(15):
        for batch in loader:
            h = conv(batch.x, batch.edge_index).relu()
            out = head(torch.cat([h[batch.root_n_id], global_mean_pool(h, batch.batch)], 1))
            loss = torch.nn.functional.cross_entropy(out, batch.y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert float(loss.detach()) < 0.5


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((0, 3), {}, "depth"),
        ((2, -2), {}, "num_neighbors"),
        ((2, 2.5), {}, "num_neighbors"),
        ((2, 3), {"disjoint": False}, "takes no disjoint"),
        ((2, 3), {"subgraph_type": "directional"}, "takes no subgraph_type"),
        ((2, 3), {"layout": "blocks"}, "takes no layout"),
        ((2, 3), {"plan": "cpu"}, "plan"),
        ((2, 3), {"node_idx": torch.tensor([60])}, r"node_idx\[0\] is 60"),
        ((2, 3), {"bach_size": 3}, "takes no argument 'bach_size'.*batch_size"),
    ],
)
def test_bad_arguments_are_refused(arguments, options, message):
    with pytest.raises(ConfigError, match=message):
        ShaDowKHopSampler(make_data(), *arguments, **options)


def test_graphs_with_types_are_refused():
    graph = Graph.from_relations({("a", "to", "b"): [[0], [0]]})
    with pytest.raises(ConfigError, match="one node type"):
        ShaDowKHopSampler(graph, 1, 1)
