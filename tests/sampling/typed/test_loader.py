"""NeighborLoader over HeteroData and graphs with types: PyG's cases, its batches, and what is refused."""

import copy

import numpy as np
import pytest
import torch
from tests.beside_pyg import HeteroData, torch_geometric
from tests.extras import to_hetero
from tests.graph.typed_cases import ABOUT, CITES, FIELDS, PAPERS, WRITES, bibliography
from tests.modules import module_of
from tests.sampling.test_pyg_batches import KINDS, same_as_pygs
from torch_geometric.loader.utils import filter_hetero_data
from torch_geometric.nn import GraphConv, HeteroConv, SAGEConv
from torch_geometric.sampler import NumNeighbors

from graphbraid.errors import ConfigError, DataError
from graphbraid.loader import LinkNeighborLoader, NeighborLoader

PAPER_PAPER, PAPER_AUTHOR, AUTHOR_PAPER = (
    ("paper", "to", "paper"),
    ("paper", "to", "author"),
    ("author", "to", "paper"),
)


def random_edges(num_src, num_dst, num_edges, dtype=torch.int64):
    return torch.stack(
        [torch.randint(num_src, (num_edges,), dtype=dtype), torch.randint(num_dst, (num_edges,), dtype=dtype)]
    )


def papers_and_authors(dtype=torch.int64):
    data = HeteroData()
    data["paper"].x, data["author"].x = torch.arange(100), torch.arange(100, 300)
    for (src, _, dst), (first, count) in {
        PAPER_PAPER: (0, 500),
        PAPER_AUTHOR: (500, 1000),
        AUTHOR_PAPER: (1500, 1000),
    }.items():
        sizes = {"paper": 100, "author": 200}
        data[src, "to", dst].edge_index = random_edges(sizes[src], sizes[dst], count, dtype)
        data[src, "to", dst].edge_attr = torch.arange(first, first + count)
    return data


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_hetero_neighbor_loader_basic(dtype):
    torch.manual_seed(12345)
    data = papers_and_authors(dtype)
    with pytest.raises(ConfigError, match="a fanout for each hop"):
        NeighborLoader(
            data,
            {PAPER_PAPER: [-1], PAPER_AUTHOR: [-1, -1], AUTHOR_PAPER: [-1, -1]},
            input_nodes="paper",
            batch_size=20,
        )
    loader = NeighborLoader(data, [10] * 2, input_nodes="paper", batch_size=20)
    assert isinstance(loader, torch_geometric.loader.NeighborLoader)
    assert (str(loader), len(loader)) == ("NeighborLoader()", 5)
    for step, batch in enumerate(loader):
        assert isinstance(batch, HeteroData)
        assert batch.validate()
        assert len(batch) == len(next(iter(loader))) > 0
        assert set(batch.node_types) == {"paper", "author"}
        assert set(batch.edge_types) == {PAPER_PAPER, PAPER_AUTHOR, AUTHOR_PAPER}
        papers = batch["paper"]
        assert papers.batch_size == papers.input_id.numel() == 20
        assert torch.equal(papers.x[:20], torch.arange(20 * step, 20 * (step + 1)))
        assert papers.n_id.size() == (papers.num_nodes,)
        for edge_type in batch.edge_types:
            store, whole = batch[edge_type], data[edge_type]
            assert store.e_id.numel() == store.edge_index.size(1) == store.edge_attr.numel()
            assert torch.equal(store.edge_attr, whole.edge_attr[store.e_id])
            ends = [batch[end].n_id[row] for end, row in zip(edge_type[::2], store.edge_index, strict=True)]
            assert torch.equal(torch.stack(ends), whole.edge_index[:, store.e_id].long())
        reached = {"paper": torch.arange(20), "author": torch.empty(0, dtype=torch.int64)}
        for src, name, dst in batch.edge_types:  # there are no isolated nodes
            reached[src] = torch.cat([reached[src], batch[src, name, dst].edge_index[0]])
        for node_type, found in reached.items():
            assert found.unique().numel() == batch[node_type].num_nodes


def test_hetero_neighbor_loader_on_cora():
    """All neighbours give a model the same rows as the whole graph does."""
    torch.manual_seed(0)
    data = HeteroData()
    data["paper"].x, data["paper"].n_id = torch.randn(200, 16), torch.arange(200)
    data["paper", "paper"].edge_index = random_edges(200, 200, 900)
    data["paper", "paper"].edge_weight = torch.rand(900)
    loader = NeighborLoader(data, [-1, -1], input_nodes=("paper", torch.arange(5, 8)), batch_size=3)
    batch = next(iter(loader))
    model = HeteroConv({PAPER_PAPER: GraphConv(16, 4)})
    deeper = HeteroConv({PAPER_PAPER: GraphConv(4, 4)})

    def run(data):
        weights = data.edge_weight_dict
        x = model(data.x_dict, data.edge_index_dict, edge_weight_dict=weights)
        return deeper({k: v.relu() for k, v in x.items()}, data.edge_index_dict, edge_weight_dict=weights)

    torch.testing.assert_close(run(batch)["paper"][:3], run(data)["paper"][5:8], atol=1e-5, rtol=1e-5)


def test_hetero_neighbor_loader_sampled_info():
    edges = torch.tensor([[2, 3, 4, 5, 7, 7, 10, 11, 12, 13], [0, 1, 2, 3, 2, 3, 7, 7, 7, 7]])
    data = HeteroData()
    data["paper"].num_nodes = data["author"].num_nodes = 14
    for src, name, dst in (PAPER_PAPER, PAPER_AUTHOR, AUTHOR_PAPER):
        data[src, name, dst].edge_index = edges
    batch = next(iter(NeighborLoader(data, [1, 2, 4], input_nodes="paper", batch_size=2, shuffle=False)))
    assert batch.num_sampled_nodes_dict == {"paper": [2, 2, 3, 4], "author": [0, 2, 3, 4]}
    assert batch.num_sampled_edges_dict == {
        PAPER_PAPER: [2, 4, 4],
        PAPER_AUTHOR: [0, 4, 4],
        AUTHOR_PAPER: [2, 4, 4],
    }


@pytest.mark.parametrize("replace", [False, True])
def test_weighted_hetero_neighbor_loader(replace):
    """Edges of weight 0 are never drawn; a relation without weights is drawn from evenly."""
    data = HeteroData()
    data["paper"].num_nodes, data["author"].num_nodes = 5, 5
    weight = torch.tensor([0.0, 1.0, 0.0, 1.0, 0.0, 1.0])
    edges = torch.tensor([[1, 3, 0, 4, 4, 2], [0, 0, 1, 1, 2, 2]])
    data["author", "paper"].edge_index, data["author", "paper"].edge_weight = edges, weight
    data["paper", "paper"].edge_index = torch.tensor([[3, 4], [0, 0]])
    loader = NeighborLoader(
        data,
        [1],
        ("paper", torch.tensor([0, 1, 2])),
        batch_size=3,
        weight_attr="edge_weight",
        replace=replace,
    )
    firsts = set()
    for _ in range(20):
        batch = next(iter(loader))
        assert batch["author"].n_id[batch["author", "paper"].edge_index[0]].tolist() == [3, 4, 2]
        firsts.add(int(batch["paper"].n_id[batch["paper", "paper"].edge_index[0]]))
    assert firsts == {3, 4}


def test_batches_have_all_attributes_restricted_and_the_rest_unchanged():
    data = bibliography(weighted=True).to_pyg()
    data["paper"].title = np.array([f"{i}" for i in range(PAPERS)]).astype(np.int64)
    data["field"].note, data.source = "a constant", "somewhere"
    loader = NeighborLoader(
        data,
        NumNeighbors({"author__writes__paper": [2, 2], CITES: [3, 1]}, default=[0, 1]),
        ("paper", data["paper"].train_mask),
        batch_size=6,
        shuffle=True,
        num_workers=2,
        seed=3,
    )
    for batch in loader:
        ids = batch["paper"].n_id
        for name in ("x", "y", "train_mask", "time"):
            assert torch.equal(batch["paper"][name], data["paper"][name][ids])
        assert torch.equal(batch["paper"].title, ids)
        assert batch["author"].x.dtype == torch.float16
        assert (batch["field"].note, batch.source) == ("a constant", "somewhere")
        assert batch["field"].num_nodes == batch["field"].n_id.numel()
        cites = batch[CITES]
        assert torch.equal(cites.edge_attr, data[CITES].edge_attr[cites.e_id])
        assert torch.equal(batch[WRITES].edge_weight, data[WRITES].edge_weight[batch[WRITES].e_id])
        assert data["paper"].train_mask[batch["paper"].input_id].all()
        assert torch.equal(batch["paper"].input_id, ids[:6][: batch["paper"].batch_size])
    assert data["paper"].x.shape == (PAPERS, 5)


def test_a_graph_and_its_hetero_data_give_the_same_batches():
    graph = bibliography()
    options = {"num_neighbors": [3, 2], "batch_size": 7, "shuffle": True, "seed": 5}
    ours = NeighborLoader(graph, input_nodes=("paper", "train"), **options)
    theirs = NeighborLoader(graph.to_pyg(), input_nodes=("paper", torch.arange(20)), **options)
    for a, b in zip(ours, theirs, strict=True):
        assert a.node_types == b.node_types
        for node_type in a.node_types:
            assert torch.equal(a[node_type].n_id, b[node_type].n_id)
        for edge_type in a.edge_types:
            assert torch.equal(a[edge_type].edge_index, b[edge_type].edge_index)
            assert torch.equal(a[edge_type].e_id, b[edge_type].e_id)
        assert torch.equal(a["paper"].x, b["paper"].x)
        assert torch.equal(a[CITES].edge_attr, b[CITES].edge_attr)


def test_threads_restarts_and_calls_do_not_change_batches():
    graph = bibliography()
    options = {"num_neighbors": [3, 2], "input_nodes": "paper", "batch_size": 6, "shuffle": True, "seed": 5}

    def ids(batches):
        return [[batch[t].n_id.tolist() for t in batch.node_types] for batch in batches]

    loader = NeighborLoader(graph, **options)
    whole = ids(loader)
    assert ids(NeighborLoader(graph, num_workers=3, **options)) == whole
    assert ids(NeighborLoader(graph, gather=False, **options).batches(0, 3)) == whole[3:]
    assert ids(loader) != whole  # the next epoch
    assert ids(copy.copy(loader).batches(0)) == whole
    order = [list(range(6)), [3, 3, 1]]
    picked = list(NeighborLoader(graph, [3, 2], "paper", batch_sampler=order, seed=5))
    assert [
        batch["paper"].n_id[: len(part)].tolist() for batch, part in zip(picked, order, strict=True)
    ] == order
    assert loader([4, 2])["paper"].n_id[:2].tolist() == [4, 2]


def test_changed_data_are_read_again():
    data = bibliography().to_pyg()
    loader = NeighborLoader(data, [1], "paper", batch_size=PAPERS)
    data["paper"].x = torch.full((PAPERS, 2), 7.0)
    assert next(iter(loader))["paper"].x.unique().tolist() == [7.0]
    data["paper"].x = torch.zeros(3, 2)
    data["paper"].num_nodes = 3
    with pytest.raises((ConfigError, DataError)):
        next(iter(loader))


def test_blocks_compute_what_the_next_layer_reads():
    """Blocks give a mean over all neighbours in two layers the rows of the whole graph."""
    graph = bibliography()
    loader = NeighborLoader(graph, [-1, -1], ("field", [1, 4]), batch_size=2, layout="blocks")
    [batch] = loader
    x = {"paper": graph.nodes_of("paper").x, "author": torch.ones(25, 5), "field": torch.zeros(FIELDS, 5)}

    def layer(x, relations, sizes):
        out = {node_type: torch.zeros(size, 5) for node_type, size in sizes.items()}
        for (src, _, dst), csc in relations.items():
            rows = x[src][csc.indices.long()]
            out[dst].index_add_(0, csc.destinations().long(), rows)
        return out

    whole = {one: graph.relation(one) for one in graph.edge_types}
    sizes = {node_type: len(rows) for node_type, rows in x.items()}
    expected = layer(layer(x, whole, sizes), whole, sizes)["field"][[1, 4]]
    found = {node_type: x[node_type][batch.n_id_dict[node_type]] for node_type in x}
    for relations in batch.blocks:
        num_dst = {dst: csc.num_dst for (_, _, dst), csc in relations.items()}
        found = layer(found, relations, {node_type: num_dst.get(node_type, 0) for node_type in x})
    torch.testing.assert_close(found["field"], expected)
    with pytest.raises(ConfigError, match=r"edge list per layer.*layout='subgraph'"):
        _ = batch.edge_index_dict


def sage():
    return module_of(
        lambda self, x, edge_index: self.second(self.first(x, edge_index).relu(), edge_index),
        first=SAGEConv((-1, -1), 16),
        second=SAGEConv((-1, -1), 3),
    )


class Conv(torch.nn.Module):
    def __init__(self, edge_types):
        super().__init__()
        self.layers = torch.nn.ModuleList(
            HeteroConv({one: SAGEConv((-1, -1), width) for one in edge_types}) for width in (16, 3)
        )

    def forward(self, x, edge_index):
        x = {node_type: rows.relu() for node_type, rows in self.layers[0](x, edge_index).items()}
        return self.layers[1](x, edge_index)


@pytest.mark.parametrize(
    "make", [lambda data: to_hetero(sage(), data.metadata()), lambda data: Conv(data.edge_types)]
)
def test_models_of_pyg_train_unchanged(make):
    """Only the authors' features tell a paper's class: 120 papers of 3 classes, as het_acm has."""
    torch.manual_seed(0)
    classes = torch.arange(120) % 3
    data = HeteroData()
    data["paper"].x, data["paper"].y = torch.rand(120, 4), classes
    data["author"].x = torch.eye(3)[torch.arange(60) % 3] + 0.1 * torch.rand(60, 3)
    author = (torch.randint(20, (360,)) * 3) + classes.repeat(3)
    data["author", "paper"].edge_index = torch.stack([author, torch.arange(120).repeat(3)])
    data["paper", "author"].edge_index = data["author", "paper"].edge_index.flip(0)
    loader = NeighborLoader(
        data, [4, 4], ("paper", torch.arange(90)), batch_size=30, shuffle=True, seed=0, num_workers=2
    )
    model = make(data)
    first = next(iter(loader))
    model(first.x_dict, first.edge_index_dict)  # lazy parameters
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(12):
        for batch in loader:
            size = batch["paper"].batch_size
            out = model(batch.x_dict, batch.edge_index_dict)["paper"][:size]
            loss = torch.nn.functional.cross_entropy(out, batch["paper"].y[:size])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        rest = model(data.x_dict, data.edge_index_dict)["paper"][90:].argmax(1)
    assert (rest == classes[90:]).float().mean() > 0.9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input_nodes": None}, "must name a node type, or be a pair"),
        ({"input_nodes": torch.arange(3)}, "must name a node type, or be a pair"),
        ({"input_nodes": "papers"}, "names the node type 'papers'.*Did you mean 'paper'"),
        ({"input_nodes": ("paper", [PAPERS])}, r"ids in \[0, 40\)"),
        ({"input_nodes": ("paper", torch.ones(3, dtype=torch.bool))}, r"'paper' must have shape \(40,\)"),
        ({"input_nodes": ("paper", "validation")}, "no split 'validation'; they have train, test"),
        ({"num_neighbors": {ABOUT: [1]}}, r"no fanouts for the relation \('author', 'writes', 'paper'\)"),
        ({"num_neighbors": {("a", "b"): [1]}}, "the graph does not have"),
        ({"plan": "cpu"}, "takes no plan='cpu': plans are made for graphs of one node type"),
        ({"src_degree": True}, "takes no src_degree=True"),
        (
            {"time_attr": "time"},
            r"'time' names times of nodes \(paper\) and of edges \(author__writes__paper\)",
        ),
        ({"time_attr": "when"}, "time_attr='when' is neither an attribute of the nodes nor"),
    ],
)
def test_what_cannot_be_done_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        NeighborLoader(bibliography(), **{"num_neighbors": [2], "input_nodes": "paper", **options})


def test_data_that_do_not_fit_are_refused():
    data = papers_and_authors()
    data["paper", "author"].edge_index[0, 3] = 100
    with pytest.raises(DataError, match=r"'to', 'author'\): sources, of type 'paper',.*holds 100"):
        NeighborLoader(data, [1], "paper")
    data = papers_and_authors()
    with pytest.raises(ConfigError, match="no relation of the data has it"):
        NeighborLoader(data, [1], "paper", weight_attr="w")
    data["author"].name = [str(i) for i in range(200)]
    with pytest.raises(DataError, match="is a list by node"):
        NeighborLoader(data, [1], "paper")


def test_pyg_tells_what_a_batch_has_by_node_and_by_edge_also_where_it_was_asked_of_the_data_before():
    data = papers_and_authors()
    data["paper"].title, data[PAPER_PAPER].note = "of all", "of the relation"
    held = [
        store.node_attrs() if type(store._key) is str else store.edge_attrs() for store in data.stores[1:]
    ]
    assert held == [["x"]] * 2 + [["edge_index", "edge_attr"]] * 3
    for by_edge, names in ((True, ["edge_index", "edge_attr", "e_id"]), (False, ["edge_index"])):
        batch = next(
            iter(NeighborLoader(data, [3, 2], input_nodes="paper", batch_size=5, return_edge_id=by_edge))
        )
        assert batch["paper"].node_attrs() == batch["author"].node_attrs() == ["x", "n_id"]
        assert [batch[one].edge_attrs() for one in data.edge_types] == [names] * 3
        assert (batch["paper"].title, batch[PAPER_PAPER].note) == ("of all", "of the relation")
    assert "n_id" not in data["paper"] and data[PAPER_PAPER].edge_attr.numel() == 500


class Library(HeteroData):
    """A user's kind of data."""


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize("kind", KINDS)
def test_attributes_keep_what_pygs_loaders_keep(kind):
    data, make = Library(), KINDS[kind]
    data["paper"].x, data["paper"].more, data["author"].num_nodes = make(30), make(30), 20
    for edge_type, sizes in {PAPER_AUTHOR: (30, 20), AUTHOR_PAPER: (20, 30)}.items():
        data[edge_type].edge_index, data[edge_type].edge_attr = random_edges(*sizes, 90), make(90)
    nodes = NeighborLoader(data, [3, 2], input_nodes="paper", batch_size=5, seed=0)
    links = LinkNeighborLoader(data, [3, 2], edge_label_index=PAPER_AUTHOR, batch_size=5, seed=0)
    for loader in (nodes, links):
        batch = next(iter(loader))
        assert type(batch) is Library
        edges = batch.e_id_dict
        wanted = filter_hetero_data(data, batch.n_id_dict, edges, dict(edges), dict(edges))
        for key, name in (("paper", "x"), ("paper", "more"), (PAPER_AUTHOR, "edge_attr")):
            assert same_as_pygs(batch[key][name], wanted[key][name]), (key, name)
