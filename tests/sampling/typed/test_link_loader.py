"""LinkNeighborLoader over HeteroData and graphs with types: batches, negatives, leakage, what is refused."""

import copy
import pickle

import numpy as np
import pytest
import torch
from scipy import stats
from tests.beside_pyg import HeteroData, torch_geometric
from tests.graph.typed_cases import ABOUT, AUTHORS, CITES, FIELDS, PAPERS, REVISES, WRITES, bibliography
from torch_geometric.sampler import EdgeSamplerInput, HeteroSamplerOutput
from torch_geometric.sampler import NegativeSampling as PygNegatives
from torch_geometric.sampler.neighbor_sampler import edge_sample

from graphbraid.errors import ConfigError, DataError
from graphbraid.graph import Graph
from graphbraid.loader import LinkNeighborLoader
from graphbraid.sampling import NegativeSampling

COUNTS = {"paper": PAPERS, "author": AUTHORS, "field": FIELDS}


def loader_of(data=None, edge_label_index=WRITES, **options):
    data = bibliography() if data is None else data
    return LinkNeighborLoader(
        data,
        **{"num_neighbors": [3, 2], "batch_size": 16, "seed": 5} | options,
        edge_label_index=edge_label_index,
    )


def ends_of(batch, edge_type, pairs):
    """Ids within their types of pairs of local ids."""
    return torch.stack([batch[end].n_id[row] for end, row in zip(edge_type[::2], pairs, strict=True)])


def contents(batch):
    return {(store._key, name): value for store in batch.stores for name, value in store.items()}


def assert_equal_batches(got, expected):
    got, expected = contents(got), contents(expected)
    assert got.keys() == expected.keys()
    for key, value in got.items():
        same = (
            torch.equal(value, expected[key]) if isinstance(value, torch.Tensor) else value == expected[key]
        )
        assert same, key


@pytest.mark.parametrize("edge_type", [WRITES, CITES, ABOUT])
@pytest.mark.parametrize("mode", ["binary", "triplet"])
@pytest.mark.parametrize("disjoint", [False, True])
def test_local_ids_are_those_of_pygs_own_rule(edge_type, mode, disjoint):
    """PyG's edge_sample, given a sampler that returns the seeds alone, has the same seeds and local ids."""
    graph, amount = bibliography(), 2
    batch = next(
        iter(loader_of(graph, edge_type, neg_sampling={"mode": mode, "amount": amount}, disjoint=disjoint))
    )
    src, dst, links = batch[edge_type[0]], batch[edge_type[2]], graph.to_edge_indices()[edge_type][:, :16]
    if mode == "binary":
        pairs = ends_of(batch, edge_type, batch[edge_type].edge_label_index)
        drawn = pairs[:, 16:]
    else:
        negative = dst.n_id[dst.dst_neg_index]  # PyG gives them to the links in another order without trees
        drawn = (negative.t() if disjoint else negative).reshape(1, -1)
    asked = iter(drawn)

    class Drawn(PygNegatives):
        def sample(self, *_, **__):
            return next(asked)

    def only_seeds(seeds, _):
        number, trees = 0, {}
        for name, ids in seeds.items():
            trees[name] = torch.arange(number, number + ids.numel())
            number += ids.numel()
        return HeteroSamplerOutput(node=seeds, row={}, col={}, edge={}, batch=trees if disjoint else None)

    inputs = EdgeSamplerInput(torch.arange(16), *links, input_type=edge_type)
    out = edge_sample(inputs, only_seeds, COUNTS, disjoint, None, Drawn(mode, amount))
    for name, seeds in out.node.items():
        assert torch.equal(batch[name].n_id[: seeds.numel()], seeds)
        assert batch[name].num_sampled_nodes[0] == seeds.numel()
        assert not disjoint or torch.equal(batch[name].batch[: seeds.numel()], out.batch[name])
    if mode == "binary":
        assert torch.equal(batch[edge_type].edge_label_index, out.metadata[1])
        assert torch.equal(batch[edge_type].edge_label, out.metadata[2])
    else:
        assert torch.equal(src.src_index, out.metadata[1])
        assert torch.equal(dst.dst_pos_index, out.metadata[2])
        assert torch.equal(dst.dst_neg_index, out.metadata[3])
    assert torch.equal(batch[edge_type].input_id, torch.arange(16))


def test_batches_have_all_attributes_restricted_and_all_neighbours():
    """With all neighbours, a batch has every in-edge of what it knew a hop before."""
    graph = bibliography()
    data = graph.to_pyg()
    data[WRITES].edge_label = torch.arange(7)  # the data's own, of all links: not the batch's
    loader = loader_of(data, WRITES, num_neighbors=[-1], batch_size=5, transform=lambda batch: (batch, 1))
    assert isinstance(loader, torch_geometric.loader.LinkNeighborLoader)
    assert (str(loader), len(loader)) == ("LinkNeighborLoader()", 30)
    for step, (batch, _) in enumerate(loader):
        assert isinstance(batch, HeteroData)
        assert batch.validate()
        links = data[WRITES].edge_index[:, 5 * step : 5 * step + 5]
        assert torch.equal(ends_of(batch, WRITES, batch[WRITES].edge_label_index), links)
        assert "edge_label" not in batch[WRITES]
        seeds = {"author": links[0].unique(), "paper": links[1].unique(), "field": links[0][:0]}
        for name, ids in seeds.items():
            assert torch.equal(batch[name].n_id[: len(ids)], ids)
        assert torch.equal(batch["paper"].x, data["paper"].x[batch["paper"].n_id])
        for edge_type in batch.edge_types:
            store, whole = batch[edge_type], data[edge_type].edge_index
            assert torch.equal(ends_of(batch, edge_type, store.edge_index), whole[:, store.e_id])
            into = torch.isin(whole[1], seeds[edge_type[2]])
            assert store.e_id.sort().values.tolist() == into.nonzero().flatten().tolist()
        assert torch.equal(batch[CITES].edge_attr, data[CITES].edge_attr[batch[CITES].e_id])


def test_threads_restarts_calls_and_forms_of_data_do_not_change_batches():
    graph = bibliography()
    options = {"shuffle": True, "neg_sampling": "binary", "exclude_seed_edges": "reverse"}
    loader = loader_of(graph, **options)
    whole = list(loader)
    for others in (
        loader_of(graph, num_workers=3, **options),
        loader_of(graph, gather=False, filter_per_worker=True, **options),
        pickle.loads(pickle.dumps(loader_of(graph, **options))),
        loader_of(graph, (WRITES, graph.to_edge_indices()[WRITES]), **options),
        loader_of(graph, ["author", "writes", "paper"], **options),
        loader_of(graph, num_neighbors={one: [3, 2] for one in graph.edge_types}, **options),
    ):
        for got, expected in zip(others, whole, strict=True):
            assert_equal_batches(got, expected)
    for got, expected in zip(loader_of(graph, **options).batches(0, 4, 7), whole[4:7], strict=True):
        assert_equal_batches(got, expected)
    assert [batch[WRITES].input_id.tolist() for batch in loader] != [
        batch[WRITES].input_id.tolist() for batch in whole
    ]  # the next epoch
    assert_equal_batches(next(iter(copy.copy(loader).batches(0))), whole[0])
    called = loader([3, 9])
    assert called[WRITES].input_id.tolist() == [3, 9]
    own = loader_of(graph, input_id=torch.arange(150) + 1000)
    assert next(iter(own))[WRITES].input_id.tolist() == list(range(1000, 1016))


@pytest.mark.parametrize("reverse", [False, True])
def test_links_stay_out_of_the_neighbours(reverse):
    """Also repeated ones; edges of other relations between the same nodes stay, unless they lead back."""
    edges = {
        ("user", "rates", "movie"): [[0, 0, 1, 2], [0, 0, 0, 1]],
        ("user", "sees", "movie"): [[0], [0]],
        ("movie", "of", "user"): [[0, 0, 1], [0, 1, 0]],
        ("movie", "with", "user"): [[0], [0]],
    }
    graph = Graph.from_relations(edges, {"user": 3, "movie": 2})
    rates = ("user", "rates", "movie")
    loader = loader_of(
        graph,
        (rates, torch.tensor([[0], [0]])),
        num_neighbors=[-1],
        exclude_seed_edges="reverse" if reverse else True,
    )
    [batch] = loader
    left = {one: sorted(map(tuple, ends_of(batch, one, batch[one].edge_index).t().tolist())) for one in edges}
    assert left[rates] == [(1, 0)]
    assert left["user", "sees", "movie"] == [(0, 0)]
    assert left["movie", "of", "user"] == ([(1, 0)] if reverse else [(0, 0), (1, 0)])
    assert left["movie", "with", "user"] == ([] if reverse else [(0, 0)])


def test_links_within_a_type_stay_out_both_ways():
    graph = Graph.from_relations({("v", "to", "v"): [[0, 1, 2, 2], [1, 0, 1, 0]]}, {"v": 3})
    to = ("v", "to", "v")
    for exclusion, expected in ((True, [(1, 0), (2, 0), (2, 1)]), ("reverse", [(2, 0), (2, 1)])):
        loader = loader_of(
            graph, (to, torch.tensor([[0], [1]])), num_neighbors=[-1], exclude_seed_edges=exclusion
        )
        [batch] = loader
        assert sorted(map(tuple, ends_of(batch, to, batch[to].edge_index).t().tolist())) == expected


def drawn(loader, edge_type):
    counts = np.zeros((COUNTS[edge_type[0]], COUNTS[edge_type[2]]), dtype=np.int64)
    for batch in loader:
        if "edge_label_index" in batch[edge_type]:
            label = batch[edge_type].edge_label
            pairs = ends_of(batch, edge_type, batch[edge_type].edge_label_index[:, label == 0])
        else:
            dst = batch[edge_type[2]]
            negative = dst.dst_neg_index.view(len(dst.dst_pos_index), -1)
            sources = batch[edge_type[0]].n_id[batch[edge_type[0]].src_index]
            pairs = torch.stack([sources.repeat_interleave(negative.shape[1]), dst.n_id[negative.flatten()]])
        np.add.at(counts, tuple(pairs.numpy()), 1)
    return counts


@pytest.mark.parametrize("edge_type", [WRITES, REVISES])
@pytest.mark.parametrize("mode", ["binary", "triplet"])
def test_negatives_are_uniform_over_the_types_without_the_edges(edge_type, mode):
    graph, amount = bibliography(), 30
    how = NegativeSampling(mode, amount, reject_edges=True)
    links = graph.to_edge_indices()[edge_type]
    counts = drawn(
        loader_of(graph, edge_type, num_neighbors=[0], neg_sampling=how, batch_size=150), edge_type
    )
    allowed = np.ones(counts.shape, dtype=bool)
    allowed[tuple(links.numpy())] = False
    assert counts.sum() == links.shape[1] * amount
    assert not counts[~allowed].any()
    if mode == "binary":
        assert stats.chisquare(counts[allowed]).pvalue > 1e-4
        return
    score, freedom = 0.0, 0
    for row, mask in zip(counts, allowed, strict=True):
        if row.sum() and mask.sum() > 1:
            score += stats.chisquare(row[mask]).statistic
            freedom += mask.sum() - 1
    assert stats.chi2.sf(score, freedom) > 1e-4


def test_negatives_are_drawn_by_weights_of_their_types():
    weight = torch.zeros(FIELDS)
    weight[[1, 4]] = torch.tensor([1.0, 3.0])
    counts = drawn(
        loader_of(
            edge_label_index=ABOUT,
            num_neighbors=[0],
            neg_sampling=PygNegatives(
                "binary", 20, src_weight=torch.arange(PAPERS).double(), dst_weight=weight
            ),
        ),
        ABOUT,
    )
    assert not counts[0].any()
    assert stats.chisquare(counts.sum(0)[[1, 4]], 3000 * np.array([0.25, 0.75])).pvalue > 1e-4
    counts = drawn(
        loader_of(edge_label_index=ABOUT, neg_sampling=NegativeSampling("binary", 20, None, "degree")), ABOUT
    )
    degree = torch.bincount(bibliography().to_edge_indices()[ABOUT][1], minlength=FIELDS).numpy()
    assert stats.chisquare(counts.sum(0), 3000 * degree / degree.sum()).pvalue > 1e-4


def test_links_of_a_relation_that_the_graph_does_not_have():
    """Links to predict may be of a new kind, as in PyG, between types that there are."""
    links = torch.tensor([[0, 5, 5], [1, 1, 2]])
    likes = ("author", "likes", "field")
    [batch] = loader_of(edge_label_index=(likes, links), neg_sampling="triplet", edge_label=None)
    assert torch.equal(batch["author"].n_id[batch["author"].src_index], links[0])
    assert torch.equal(batch["field"].n_id[batch["field"].dst_pos_index], links[1])
    [batch] = loader_of(edge_label_index=(("author", "field"), links), edge_label=torch.tensor([2, 0, 1]))
    assert batch["author", "to", "field"].edge_label.tolist() == [2, 0, 1]


def test_layout_blocks_has_links_and_their_blocks():
    graph = bibliography()
    [batch] = loader_of(
        graph, WRITES, num_neighbors=[-1, -1], layout="blocks", batch_size=150, neg_sampling="binary"
    )
    pairs = batch.edge_label_index[:, :150]
    ends = torch.stack([batch.n_id_dict["author"][pairs[0]], batch.n_id_dict["paper"][pairs[1]]])
    assert torch.equal(ends, graph.to_edge_indices()[WRITES])
    assert (batch.batch_size, batch.input_type, batch.seed_y) == (150, WRITES, None)
    last = batch.blocks[-1]
    assert (
        last[WRITES].num_dst
        == batch.num_sampled_nodes_dict["paper"][0]
        == len(batch.n_id_dict["paper"].unique())
    )


ONE_LINK = torch.tensor([[0], [1]])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"edge_label_index": (WRITES, ONE_LINK, 1)}, ConfigError, "must name a relation, or be a pair"),
        ({"edge_label_index": (("author",), ONE_LINK)}, ConfigError, "got a relation"),
        ({"edge_label_index": (3, ONE_LINK)}, ConfigError, "got a relation 3"),
        (
            {"edge_label_index": ("autor", "writes", "paper")},
            ConfigError,
            "type 'autor'.*Did you mean 'author'",
        ),
        ({"edge_label_index": (("author", "writes", "book"), ONE_LINK)}, ConfigError, "the node type 'book'"),
        (
            {"edge_label_index": (WRITES, torch.ones(2, 3))},
            ConfigError,
            "a .2, num_links. tensor of node ids",
        ),
        (
            {"num_neighbors": {WRITES: [1]}},
            ConfigError,
            r"no fanouts for the relation \('paper', 'cites', 'paper'\)",
        ),
        (
            {"edge_label_index": (("author", "to", "field"), ONE_LINK), "exclude_seed_edges": True},
            ConfigError,
            "edges of the relation author__to__field, which the graph does not have",
        ),
        ({"neg_sampling": NegativeSampling("binary", 1, torch.ones(PAPERS))}, DataError, r"shape \(25,\)"),
        ({"plan": "cpu"}, ConfigError, "takes no plan='cpu'"),
    ],
)
def test_what_cannot_be_done_is_refused(options, error, message):
    with pytest.raises(error, match=message):
        loader_of(**options)


def test_complete_relations_have_no_negatives():
    pairs = [(u, v) for u in range(3) for v in range(4)]
    to, how = ("a", "to", "b"), {"reject_edges": True}
    graph = Graph.from_relations({to: list(zip(*pairs, strict=True))}, {"a": 3, "b": 4})
    with pytest.raises(ConfigError, match="every pair of nodes is an edge"):
        loader_of(graph, to, neg_sampling={"mode": "binary"} | how)
    with pytest.raises(ConfigError, match="source, node 0, is linked to every node of the type"):
        loader_of(graph, to, neg_sampling={"mode": "triplet"} | how)
    graph = Graph.from_relations({to: list(zip(*pairs[:-1], strict=True))}, {"a": 3, "b": 4})
    batch = next(iter(loader_of(graph, to, neg_sampling={"mode": "binary", "amount": 2} | how, batch_size=3)))
    pairs = ends_of(batch, to, batch[to].edge_label_index[:, batch[to].edge_label == 0])
    assert pairs.unique(dim=1).tolist() == [[2], [3]]
