"""Typed draws that are constrained, by trees, times and excluded edges: compiled against reference, and both
against the definition."""

import itertools

import numpy as np
import pytest
import torch
from scipy import stats
from tests.extras import NO_KERNELS
from tests.graph.typed_cases import AUTHORS, CITES, PAPERS, WRITES, bibliography
from tests.sampling.typed.test_sampler import FANOUTS, assert_same, config_of

from graphbraid import native
from graphbraid.errors import DataError
from graphbraid.graph import Graph
from graphbraid.graph.types import edges_of, only_types
from graphbraid.loader import LoaderOptions
from graphbraid.loader.times import read_times
from graphbraid.sampling import SamplerConfig, rng
from graphbraid.sampling.batch_seeds import Constraints
from graphbraid.sampling.cpu import make_pipeline
from graphbraid.sampling.reference import sample_checked
from graphbraid.sampling.source import BatchSource

TIMED = {"edges": {WRITES, CITES}, "nodes": {"paper", "author"}, "papers": {"paper"}}
"""What has times: relations, node types, or one of these, so that some edges have none."""


def timed(graph, which, *, last=False):
    """The graph with its relations sorted by times, many of them equal, and these."""
    draw = torch.Generator().manual_seed(3)
    nodes, edges = {}, {}
    for name in graph.node_types:
        nodes[name] = {"t": torch.randint(20, (graph.nodes_of(name).num_nodes,), generator=draw)}
    for one in graph.edge_types:
        edges[one] = {"t": torch.randint(20, (graph.edges_of(one).num_edges,), generator=draw)}
    source = BatchSource(
        graph=graph,
        node_attrs={name: attrs if name in TIMED[which] else {} for name, attrs in nodes.items()},
        edge_attrs={one: attrs if one in TIMED[which] else {} for one, attrs in edges.items()},
    )
    strategy = "last" if last else "uniform"
    times = read_times(
        source, LoaderOptions(num_neighbors=[1], time_attr="t", temporal_strategy=strategy), graph
    )
    return times.source.graph, times.edge_times


def seeds_of_all_types(graph):
    """Ids in the whole graph, some of them twice."""
    return torch.from_numpy(np.random.default_rng(1).integers(0, graph.num_nodes, 12))


def constraints_of(graph, seeds, *, disjoint, with_times, with_excluded):
    numbers = np.random.default_rng(5)
    times = torch.from_numpy(numbers.integers(-1, 22, len(seeds))) if with_times else None
    excluded = np.flatnonzero(numbers.random(graph.num_edges) < 0.3)
    return Constraints(
        disjoint=disjoint, times=times, excluded=torch.from_numpy(excluded) if with_excluded else None
    )


def assert_same_trees(got, expected):
    assert_same(got, expected)
    assert (got.trees_by_type is None) == (expected.trees_by_type is None)
    assert got.trees_by_type is None or all(map(torch.equal, got.trees_by_type, expected.trees_by_type))


@pytest.mark.parametrize(
    ("disjoint", "which"), [(False, None), (True, None), (True, "edges"), (True, "nodes"), (True, "papers")]
)
@pytest.mark.parametrize("with_excluded", [False, True])
@pytest.mark.parametrize(("weighted", "replace"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("layout", ["subgraph", "blocks"])
def test_compiled_equals_reference_bit_for_bit(layout, weighted, replace, with_excluded, disjoint, which):
    if native.kernels() is None:
        pytest.skip(NO_KERNELS)
    plain = bibliography(weighted=weighted)
    for fanouts, last in itertools.product(FANOUTS.values(), [False, True] if which else [False]):
        if replace and any(
            -1 in hops for hops in (fanouts.values() if isinstance(fanouts, dict) else [fanouts])
        ):
            continue
        graph, edge_times = timed(plain, which, last=last) if which else (plain, None)
        config = config_of(graph, fanouts, replace=replace, weighted=weighted, layout=layout)
        rows = [torch.rand(PAPERS, 5), None, None]
        pipeline = make_pipeline(graph, config, rows, num_threads=2, depth=2, edge_times=edge_times)
        seeds = seeds_of_all_types(graph)
        constraints = constraints_of(
            graph, seeds, disjoint=disjoint, with_times=which is not None, with_excluded=with_excluded
        )
        for asked in (None, constraints):  # threads keep their tables from one to the other
            [got] = pipeline.begin(seeds, 7, 2, 3, asked)
            key = rng.batch_key(7, 2, 3)
            expected = sample_checked(
                graph.types, config, None, seeds, key, constraints=asked, edge_times=edge_times
            )
            assert_same_trees(got.sampled, expected)
            assert torch.equal(got.x[0], rows[0][expected.n_id_by_type[0]])


@pytest.mark.parametrize("disjoint", [False, True])
def test_one_type_and_one_relation_draw_the_bits_of_a_graph_without_types(disjoint):
    edges = torch.randint(60, (2, 900), generator=torch.Generator().manual_seed(0))
    plain, typed = (
        Graph.from_edge_index(edges, 60),
        Graph.from_relations({("v", "to", "v"): edges}, {"v": 60}),
    )
    options = SamplerConfig(fanouts=(4, 3), return_edge_id=True)
    seeds, key = torch.tensor([3, 9, 3, 50]), rng.batch_key(1, 2, 3)
    limits = Constraints(disjoint=disjoint, excluded=torch.arange(0, 900, 3))
    expected = sample_checked(only_types(plain.csc), options, 0, seeds, key, constraints=limits)
    config = options
    got = sample_checked(typed.types, config, None, seeds, key, constraints=limits)
    assert torch.equal(got.n_id_by_type[0], expected.n_id)
    assert torch.equal(got.edges_by_relation[0][0].positions, expected.edges[0].positions)
    assert not disjoint or torch.equal(got.trees_by_type[0], expected.trees)


@pytest.mark.parametrize("which", TIMED)
@pytest.mark.parametrize("last", [False, True])
def test_all_early_edges_and_no_others_are_drawn(which, last):
    """One hop of all neighbours, or of the latest: by a search over each seed's edges."""
    graph, edge_times = timed(bibliography(), which, last=last)
    fanout = 3 if last else -1
    seeds = torch.arange(graph.num_nodes)
    until = torch.from_numpy(np.random.default_rng(2).integers(0, 20, len(seeds)))
    pipeline = make_pipeline(graph, config_of(graph, [fanout]), num_threads=1, depth=1, edge_times=edge_times)
    [batch] = pipeline.begin(seeds, 0, 0, 0, Constraints(disjoint=True, times=until))
    number = {name: place for place, name in enumerate(graph.node_types)}
    first = graph.types.first_ids
    for relation in graph.types.relations():
        [edges] = batch.sampled.edges_by_relation[relation.number]
        has_times = relation.number not in edge_times.untimed
        positions, indptr = edges_of(graph.types, relation)
        for node in range(edges.indptr.numel() - 1):
            got = edges.positions[edges.indptr[node] : edges.indptr[node + 1]].tolist()
            own = positions[indptr[node] : indptr[node + 1]]
            if has_times:
                seed = first[number[relation.edge_type[2]]] + node
                own = own[edge_times.time[own] <= until[seed]]
            if last and has_times:
                assert got == own[max(len(own) - fanout, 0) :].tolist()
            elif not last:
                assert got == own.tolist()
            else:
                assert set(got) <= set(own.tolist())
                assert len(got) == min(len(own), fanout)


@pytest.mark.parametrize("which", TIMED)
def test_no_node_of_a_tree_is_reached_by_a_later_edge_at_any_hop(which):
    graph, edge_times = timed(bibliography(num_edges=400), which)
    seeds, until = torch.arange(10), torch.arange(10) + 5
    pipeline = make_pipeline(
        graph, config_of(graph, [3, 3, 2]), num_threads=1, depth=1, edge_times=edge_times
    )
    [batch] = pipeline.begin(seeds, 0, 0, 0, Constraints(disjoint=True, times=until))
    number = {name: place for place, name in enumerate(graph.node_types)}
    for relation in graph.types.relations():
        [edges] = batch.sampled.edges_by_relation[relation.number]
        rows = torch.repeat_interleave(torch.arange(edges.indptr.numel() - 1), edges.indptr.diff())
        trees = batch.sampled.trees_by_type[number[relation.edge_type[2]]][rows]
        assert torch.equal(
            trees, batch.sampled.trees_by_type[number[relation.edge_type[0]]][edges.indices.long()]
        )
        if relation.number not in edge_times.untimed:
            assert (edge_times.time[edges.positions] <= until[trees]).all()


@pytest.mark.parametrize("replace", [False, True])
def test_each_early_edge_is_equally_likely_in_every_relation(replace):
    """Two relations into one type, their times in other orders; of 12 in-edges of each node 8 are early."""
    copies, degree, early, fanout = 60, 12, 8, 3
    numbers = np.random.default_rng(0)
    edges, times = {}, {}
    for name in ("one", "two"):
        dst = np.repeat(np.arange(copies), degree)
        edges["a", name, "b"] = np.stack([numbers.integers(0, 50, len(dst)), dst])
        times["a", name, "b"] = {"t": torch.from_numpy(np.tile(numbers.permutation(degree), copies))}
    plain = Graph.from_relations(edges, {"a": 50, "b": copies})
    source = BatchSource(graph=plain, node_attrs={"a": {}, "b": {}}, edge_attrs=times)
    read = read_times(source, LoaderOptions(num_neighbors=[1], time_attr="t"), plain)
    graph, edge_times = read.source.graph, read.edge_times
    config = config_of(graph, [fanout], replace=replace)
    seeds, until = torch.arange(50, 50 + copies), torch.full((copies,), early - 1)
    pipeline = make_pipeline(graph, config, num_threads=1, depth=1, edge_times=edge_times)
    counts, trials = np.zeros((2, degree)), 40
    for step in range(trials):
        [batch] = pipeline.begin(seeds, 3, 0, step, Constraints(disjoint=True, times=until))
        for number, [drawn] in enumerate(batch.sampled.edges_by_relation):
            counts[number] += np.bincount(edge_times.time[drawn.positions].numpy(), minlength=degree)
    assert (counts[:, early:] == 0).all()
    assert (counts.sum(1) == trials * copies * fanout).all()
    # Draws of one row without replacement repel each other, so the statistic is below chi-square.
    assert all(stats.chisquare(of_relation[:early]).pvalue > 1e-4 for of_relation in counts)


def test_excluded_edges_are_never_drawn_and_the_others_are_alike():
    """40 in-edges of one node, of which 10 stay out: the other 30 by chi-square."""
    same = {("a", name, "b"): [list(range(40)), [0] * 40] for name in ("one", "two")}
    graph = Graph.from_relations(same, {"a": 40, "b": 1})
    relation = graph.types.relation(("a", "two", "b"))
    positions, _ = edges_of(graph.types, relation)
    excluded, counts = positions[::4].contiguous(), np.zeros(graph.num_edges)
    pipeline = make_pipeline(graph, config_of(graph, [5]), seed_type="b", num_threads=1, depth=1)
    for step in range(600):
        [batch] = pipeline.begin(torch.tensor([0]), 1, 0, step, Constraints(excluded=excluded))
        for [edges] in batch.sampled.edges_by_relation:
            np.add.at(counts, edges.positions.numpy(), 1)
    assert not counts[excluded.numpy()].any()
    allowed = np.setdiff1d(positions.numpy(), excluded.numpy())
    assert stats.chisquare(counts[allowed]).pvalue > 1e-4
    others = np.setdiff1d(np.arange(graph.num_edges), positions.numpy())
    assert stats.chisquare(counts[others]).pvalue > 1e-4


def test_the_native_entry_refuses_what_does_not_fit():
    if native.kernels() is None:
        pytest.skip(NO_KERNELS)
    graph = bibliography()
    pipeline = make_pipeline(graph, config_of(graph, [2]), num_threads=1, depth=1)
    seeds = torch.tensor([0, PAPERS + AUTHORS])
    with pytest.raises(ValueError, match="seeds must be nodes in"):
        pipeline.begin(torch.tensor([graph.num_nodes]), 0, 0, 0)
    with pytest.raises(ValueError, match="times need disjoint trees, and the edges' time"):
        pipeline.begin(seeds, 0, 0, 0, Constraints(disjoint=True, times=torch.tensor([1, 2])))
    for excluded in ([3, 3], [graph.num_edges]):
        with pytest.raises(ValueError, match="excluded must be positions of edges, rising"):
            pipeline.begin(seeds, 0, 0, 0, Constraints(excluded=torch.tensor(excluded)))
    with pytest.raises(DataError, match="no node type 'venue'"):
        make_pipeline(graph, config_of(graph, [2]), seed_type="venue", num_threads=1, depth=1)
