"""Subgraph types: induced and bidirectional edges are what their names say, whoever computes them."""

import numpy as np
import pytest
import torch
from tests.extras import NO_PYG
from tests.kernels import needs_kernels
from tests.ops.graphs import assert_same_bits_with_any_threads
from tests.sampling.graphs import power_law_csc

from graphbraid import Graph, native
from graphbraid.errors import ConfigError
from graphbraid.loader import LinkNeighborLoader, NeighborLoader
from graphbraid.sampling.config import as_subgraph_type
from graphbraid.sampling.sample import SampledEdges
from graphbraid.sampling.subgraph import both_ways, induced_edges

NUM_NODES = 200


def edges_of(batch):
    """The edges of a batch as pairs of global ids, with repeats, sorted."""
    return sorted(map(tuple, batch.n_id[batch.edge_index].t().tolist()))


def make_graph(seed=0, **fields):
    csc = power_law_csc(NUM_NODES, 1200, seed=seed)
    ids = torch.from_numpy(np.random.default_rng(seed).permutation(1200))
    return Graph(csc=csc, edge_id=ids, x=torch.arange(200.0)[:, None], y=torch.arange(200) % 3, **fields)


def make(kind, graph=None, seeds=None, **options):
    options = {"batch_size": 16, "seed": 0, "shuffle": True, **options}
    return NeighborLoader(
        make_graph() if graph is None else graph, [3, 2], seeds, subgraph_type=kind, **options
    )


def test_induced_batches_have_all_edges_between_their_nodes():
    graph = make_graph()
    whole = graph.to_edge_index(original_order=True)
    for batch in make("induced", graph):
        inside = torch.zeros(NUM_NODES, dtype=torch.bool)
        inside[batch.n_id] = True
        expected = inside[whole].all(0).nonzero().flatten()
        assert torch.equal(batch.e_id.sort().values, expected)  # repeats included
        assert torch.equal(batch.n_id[batch.edge_index], whole[:, batch.e_id])
        assert torch.equal(batch.x[:, 0], batch.n_id.float())


def test_bidirectional_batches_have_what_was_drawn_and_its_reverses_once():
    graph = make_graph()
    whole = graph.to_edge_index(original_order=True)
    for batch, drawn in zip(make("bidirectional", graph), make("directional", graph), strict=True):
        assert torch.equal(batch.n_id, drawn.n_id)
        pairs = set(edges_of(drawn))
        assert edges_of(batch) == sorted(pairs | {(v, u) for u, v in pairs})
        src, dst = batch.n_id[batch.edge_index]
        u, v = whole[:, batch.e_id]  # the edge itself, or the one that it reverses
        itself = (u == src) & (v == dst)
        assert bool((itself | ((u == dst) & (v == src))).all())
        assert bool(itself[[pair in pairs for pair in zip(src.tolist(), dst.tolist(), strict=True)]].all())
        assert set(batch.e_id.tolist()) <= set(drawn.e_id.tolist())
        assert torch.equal(batch.edge_index[1], batch.edge_index[1].sort().values)


def test_the_seeds_and_the_draws_are_those_of_directional_batches():
    for kind in ("induced", "bidirectional"):
        for batch, drawn in zip(make(kind), make("directional"), strict=True):
            assert torch.equal(batch.n_id, drawn.n_id)
            assert torch.equal(batch.input_id, drawn.input_id)
            assert set(edges_of(drawn)) <= set(edges_of(batch))
            assert torch.equal(batch.seed_y, drawn.seed_y)


def test_disjoint_trees_stay_apart():
    graph = make_graph()
    whole = graph.to_edge_index(original_order=True)
    for batch in make("induced", graph, torch.arange(40), disjoint=True):
        trees = batch.batch[batch.edge_index]
        assert torch.equal(trees[0], trees[1])
        for tree in range(batch.batch_size):
            inside = torch.zeros(NUM_NODES, dtype=torch.bool)
            inside[batch.n_id[batch.batch == tree]] = True
            expected = inside[whole].all(0).nonzero().flatten()
            assert torch.equal(batch.e_id[trees[0] == tree].sort().values, expected)


@pytest.mark.parametrize("kind", ["induced", "bidirectional"])
def test_no_edge_is_later_than_its_seed(kind):
    pytest.importorskip("torch_geometric", reason=NO_PYG)
    from torch_geometric.data import Data

    generator = torch.Generator().manual_seed(1)
    edges = torch.randint(50, (2, 600), generator=generator)
    data = Data(edge_index=edges, edge_time=torch.randint(100, (600,), generator=generator), num_nodes=50)
    options = {"input_time": torch.arange(50) * 2, "time_attr": "edge_time", "batch_size": 10}
    later = 0
    for batch in NeighborLoader(data, [4, 4], subgraph_type=kind, **options):
        bound = batch.seed_time[batch.batch[batch.edge_index[1]]]
        assert bool((batch.edge_time <= bound).all())
        inside = torch.isin(edges, batch.n_id).all(0)
        later += int((data.edge_time[inside] > batch.seed_time.max()).sum())
    assert later > 100  # edges that were there to be left out


def test_repeated_seeds_keep_rows_of_their_own_and_edges_name_the_first():
    graph = make_graph()
    [batch] = make("induced", graph, torch.tensor([0, 0, 1]), batch_size=3, shuffle=False)
    src, dst = batch.edge_index
    assert bool((dst == 1).any())
    assert not bool((src == 1).any())
    assert sorted(batch.e_id[dst == 0].tolist()) == sorted(batch.e_id[dst == 1].tolist())


def test_batches_have_neither_hops_nor_blocks():
    for kind in ("induced", "bidirectional"):
        batch = next(iter(make(kind)))
        assert "num_sampled_nodes" not in batch
        assert "num_sampled_edges" not in batch
        assert batch.num_edges == batch.edge_index.shape[1]
        with pytest.raises(ConfigError, match="blocks only with subgraph_type='directional'"):
            _ = batch.blocks


def test_weights_and_attributes_follow_the_edges():
    weight = torch.rand(1200, generator=torch.Generator().manual_seed(3))
    csc = power_law_csc(NUM_NODES, 1200)
    csc.weight = weight
    graph = Graph(csc=csc, edge_attr=torch.arange(2400.0).view(1200, 2))
    for kind in ("induced", "bidirectional"):
        for batch in make(kind, graph):
            assert torch.equal(batch.edge_weight, weight[batch.e_id])
            assert torch.equal(batch.edge_attr, graph.edge_attr[batch.e_id])
        plain = next(iter(make(kind, make_graph(), return_edge_id=False)))
        assert "e_id" not in plain


def test_graphs_without_edges_have_none():
    from graphbraid.graph.csc import Csc

    csc = Csc(torch.zeros(5, dtype=torch.int64), torch.empty(0, dtype=torch.int32), 4)
    for kind in ("induced", "bidirectional"):
        [batch] = make(kind, Graph(csc=csc), batch_size=4)
        assert batch.edge_index.shape == (2, 0)


# ---- Links


def test_excluded_links_do_not_come_back():
    graph = make_graph()
    whole = graph.to_edge_index(original_order=True)
    links = whole[:, :100]
    options = {"edge_label_index": links, "batch_size": 25, "seed": 0}
    for kind, exclude in (("induced", True), ("induced", "reverse"), ("bidirectional", "reverse")):
        loader = LinkNeighborLoader(
            graph, [-1, -1], subgraph_type=kind, exclude_seed_edges=exclude, **options
        )
        for batch in loader:
            own = set(map(tuple, links[:, batch.input_id].t().tolist()))
            there = set(edges_of(batch))
            assert not own & there
            if exclude == "reverse":
                assert not {(v, u) for u, v in own} & there
            assert there


def test_bidirectional_edges_beside_excluded_links_need_reverse():
    with pytest.raises(ConfigError, match="would bring links back as reverses"):
        LinkNeighborLoader(make_graph(), [2], subgraph_type="bidirectional", exclude_seed_edges=True)


# ---- The operators


@needs_kernels
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("with_trees", [False, True])
@pytest.mark.parametrize("num_dst", [0, 1, 7, 700])
def test_compiled_edges_are_those_of_the_reference(wide, with_trees, num_dst, monkeypatch):
    csc = power_law_csc(1000, 8000, seed=num_dst, wide=wide)
    draw = torch.Generator().manual_seed(num_dst)
    rows, sources = (torch.randint(1000, (n,), generator=draw) for n in (num_dst, 2 * num_dst // 3 + 1))
    trees = [torch.randint(5, (len(ids),), generator=draw) if with_trees else None for ids in (rows, sources)]
    made = induced_edges(csc, rows, sources, *trees)
    monkeypatch.setattr(native, "kernels", lambda: None)
    expected = induced_edges(csc, rows, sources, *trees)
    for name in ("indptr", "indices", "positions"):
        one, other = getattr(made, name), getattr(expected, name)
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    assert made.indptr.numel() == num_dst + 1


@needs_kernels
def test_compiled_edges_do_not_depend_on_the_number_of_threads():
    csc = power_law_csc(3000, 40000)
    ids = torch.randperm(3000, generator=torch.Generator().manual_seed(0))[:2000]

    def run():
        edges = induced_edges(csc, ids, ids)
        return [edges.indptr, edges.indices, edges.positions]

    assert_same_bits_with_any_threads(run)


@needs_kernels
def test_rows_outside_the_graph_are_refused():
    csc, ids = power_law_csc(10, 40), torch.tensor([3])
    for wrong in (torch.tensor([10]), torch.tensor([-1])):
        with pytest.raises(ValueError, match="rows must be rows that indptr has"):
            native.kernels().induced_edges(csc.indptr, csc.indices, wrong, None, ids, None)
    with pytest.raises(ValueError, match="row_trees must be given with source_trees"):
        native.kernels().induced_edges(csc.indptr, csc.indices, ids, ids, ids, None)


def test_both_ways_keeps_the_edge_itself_before_a_reverse():
    edges = SampledEdges(
        indptr=torch.tensor([0, 2, 3]),
        indices=torch.tensor([1, 2, 0], dtype=torch.int32),
        positions=torch.tensor([10, 11, 12]),
    )
    made = both_ways(edges, 3)
    assert made.indptr.tolist() == [0, 2, 3, 4]
    assert made.indices.tolist() == [1, 2, 0, 0]
    assert made.positions.tolist() == [10, 11, 12, 11]


# ---- Bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"subgraph_type": "indused"},
            "must be one of 'directional', 'bidirectional', 'induced'; got 'indused'.*induced",
        ),
        ({"subgraph_type": 3}, "subgraph_type must be one of"),
        ({"subgraph_type": "induced", "layout": "blocks"}, "needs layout='subgraph', not 'blocks'"),
        ({"subgraph_type": "induced", "plan": "cpu"}, "plans are made for the edges that are drawn"),
        ({"directed": False}, "subgraph_type='induced'"),
    ],
)
def test_what_does_not_fit_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        NeighborLoader(make_graph(), [2], **options)


def test_pygs_names_are_taken():
    sampler = pytest.importorskip("torch_geometric.sampler.base", reason=NO_PYG)
    for kind in sampler.SubgraphType:
        assert as_subgraph_type(kind) == kind.value
    assert as_subgraph_type(None) == "directional"
