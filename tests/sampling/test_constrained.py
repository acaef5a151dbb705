"""Draws that are constrained: disjoint trees, times, excluded edges; compiled against reference, and both
against the definition, in graphs of one type and of several."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from tests.graph.typed_cases import CITES, WRITES, bibliography
from tests.kernels import needs_kernels
from tests.sampling.graphs import power_law_csc, star_csc
from tests.sampling.test_sampler import TYPED_FANOUTS, assert_same, config_of, is_unlimited

from graphbraid.errors import DataError
from graphbraid.graph import Graph
from graphbraid.graph.types import edges_of
from graphbraid.loader import LoaderOptions
from graphbraid.loader.times import read_times
from graphbraid.ops import rng
from graphbraid.sampling import SamplerConfig
from graphbraid.sampling.batch_seeds import Constraints, EdgeTimes
from graphbraid.sampling.cpu import make_pipeline
from graphbraid.sampling.reference import sample_checked
from graphbraid.sampling.source import BatchSource

FANOUTS = [(5, 3), (-1, 2), (20, 60)]
TIMED = {"edges": {WRITES, CITES}, "nodes": {"paper", "author"}, "papers": {"paper"}}
"""What has times: relations, node types, or one of these, so that some edges have none."""


def timed_csc(csc, *, seed=0, last=False, most=50):
    """Times of the edges, rising in each row; many are equal."""
    time = torch.from_numpy(np.random.default_rng(seed).integers(0, most, csc.num_edges))
    order = torch.from_numpy(np.lexsort((time.numpy(), csc.destinations().numpy())))
    return EdgeTimes(time=time[order], last=last)


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


def constraints_of(graph, seeds, *, disjoint, with_times, with_excluded, latest=22):
    numbers = np.random.default_rng(5)
    times = torch.from_numpy(numbers.integers(-1, latest, len(seeds))) if with_times else None
    excluded = torch.from_numpy(np.flatnonzero(numbers.random(graph.num_edges) < 0.25))
    return Constraints(disjoint=disjoint, times=times, excluded=excluded if with_excluded else None)


def assert_same_trees(got, expected):
    assert_same(got, expected)
    assert (got.trees_by_type is None) == (expected.trees_by_type is None)
    assert got.trees_by_type is None or all(map(torch.equal, got.trees_by_type, expected.trees_by_type))


def assert_compiled_equals_reference(graph, config, edge_times, **limits):
    """Threads keep their tables from one batch to the next, so a free one is drawn before."""
    seeds = torch.from_numpy(np.random.default_rng(1).integers(0, graph.num_nodes, 16))  # some of them twice
    rows = [torch.rand(graph.nodes_of(graph.node_types[0]).num_nodes, 5)] + [None] * (
        len(graph.node_types) - 1
    )
    pipeline = make_pipeline(graph, config, rows, num_threads=2, depth=2, edge_times=edge_times)
    for asked in (None, constraints_of(graph, seeds, **limits)):
        [got] = pipeline.begin(seeds, 7, 2, 3, asked)
        expected = reference(graph, config, seeds, asked, edge_times)
        assert_same_trees(got.sampled, expected)
        assert (got.sampled.trees_by_type is not None) == (asked is not None and asked.disjoint)
        assert torch.equal(got.x[0], rows[0][expected.n_id_by_type[0]])


def reference(graph, config, seeds, constraints, edge_times):
    key = rng.batch_key(7, 2, 3)
    return sample_checked(
        graph.all_types, config, None, seeds, key, constraints=constraints, edge_times=edge_times
    )


@pytest.mark.parametrize(("disjoint", "with_times"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("with_excluded", [False, True])
@pytest.mark.parametrize(
    ("weighted", "replace"), [(False, False), (True, False), (False, True), (True, True)]
)
@pytest.mark.parametrize("layout", ["subgraph", "blocks"])
@pytest.mark.pairs
@needs_kernels
def test_compiled_equals_reference_bit_for_bit(
    layout, weighted, replace, with_excluded, disjoint, with_times
):
    limits = {"disjoint": disjoint, "with_times": with_times, "with_excluded": with_excluded}
    options = {"replace": replace, "layout": layout, "weighted": weighted}
    orders = [False, True] if with_times else [False]
    for (nodes, edges, wide), fanouts, last in itertools.product(
        [(50, 400, False), (600, 3000, True)], FANOUTS, orders
    ):
        if not (replace and is_unlimited(fanouts)):
            csc = power_law_csc(nodes, edges, wide=wide, weighted=weighted)
            edge_times = timed_csc(csc, last=last) if with_times else None
            graph = Graph(csc=csc)
            config = config_of(graph, fanouts, **options)
            assert_compiled_equals_reference(graph, config, edge_times, **limits, latest=55)
    plain = bibliography(weighted=weighted)
    for fanouts, which, last in itertools.product(TYPED_FANOUTS, TIMED if with_times else [None], orders):
        if not (replace and is_unlimited(fanouts)):
            graph, edge_times = (plain, None) if which is None else timed(plain, which, last=last)
            assert_compiled_equals_reference(
                graph, config_of(graph, fanouts, **options), edge_times, **limits
            )


@pytest.mark.slow
def test_a_constraint_that_allows_everything_changes_nothing():
    graph = Graph(csc=power_law_csc(300, 3000))
    seeds = torch.arange(0, 60)
    for fanouts in FANOUTS:
        config = SamplerConfig(fanouts=fanouts, return_edge_id=True)
        free = reference(graph, config, seeds, None, None)
        assert_same(reference(graph, config, seeds, Constraints(), None), free)


@given(st.data())
def test_a_constrained_sample_is_what_it_says(data):
    num_nodes = data.draw(st.integers(1, 40))
    csc = power_law_csc(num_nodes, data.draw(st.integers(0, 200)), seed=data.draw(st.integers(0, 99)))
    edge_times = timed_csc(csc, last=data.draw(st.booleans()), most=data.draw(st.sampled_from([2, 30])))
    seeds = torch.tensor(data.draw(st.lists(st.integers(0, num_nodes - 1), min_size=1, max_size=6)))
    times = torch.tensor([data.draw(st.integers(-1, 31)) for _ in seeds])
    edges = list(range(csc.num_edges))
    excluded = sorted(data.draw(st.lists(st.sampled_from(edges), unique=True, max_size=20)) if edges else [])
    constraints = Constraints(
        disjoint=True, times=times, excluded=torch.tensor(excluded, dtype=torch.int64) if excluded else None
    )
    fanout = data.draw(st.integers(-1, 6))
    config = SamplerConfig(fanouts=(fanout, fanout), layout="subgraph", return_edge_id=True)
    sampled = reference(Graph(csc=csc), config, seeds, constraints, edge_times)
    assert torch.equal(sampled.n_id[: len(seeds)], seeds)
    assert torch.equal(sampled.trees[: len(seeds)], torch.arange(len(seeds)))
    pairs = set(zip(sampled.trees.tolist(), sampled.n_id.tolist(), strict=True))
    assert len(pairs) == len(sampled.n_id)  # no node twice in a tree
    [drawn] = sampled.edges
    for row in range(drawn.indptr.numel() - 1):
        node, tree = int(sampled.n_id[row]), int(sampled.trees[row])
        got = drawn.positions[drawn.indptr[row] : drawn.indptr[row + 1]]
        sources = drawn.indices[drawn.indptr[row] : drawn.indptr[row + 1]].long()
        assert torch.equal(sampled.n_id[sources], csc.indices[got].long())
        assert torch.equal(sampled.trees[sources], torch.full_like(sources, tree))
        allowed = [
            position
            for position in range(int(csc.indptr[node]), int(csc.indptr[node + 1]))
            if int(edge_times.time[position]) <= int(times[tree]) and position not in excluded
        ]
        assert set(got.tolist()) <= set(allowed)
        assert (
            len(set(got.tolist())) == len(got) == (len(allowed) if fanout < 0 else min(fanout, len(allowed)))
        )
        if edge_times.last and fanout >= 0:
            assert got.tolist() == allowed[len(allowed) - len(got) :]  # exactly the most recent


def drawn_positions(csc, fanout, trials, constraints, edge_times, *, replace=False):
    """How often each edge of node 0 is drawn, over batches of different keys."""
    counts = np.zeros(csc.num_edges, dtype=np.int64)
    config = SamplerConfig(fanouts=(fanout,), replace=replace, return_edge_id=True)
    for step in range(trials):
        sampled = sample_checked(
            Graph(csc=csc).all_types,
            config,
            None,
            torch.tensor([0]),
            rng.batch_key(3, 0, step),
            constraints=constraints,
            edge_times=edge_times,
        )
        np.add.at(counts, sampled.edges[0].positions.numpy(), 1)
    return counts


@pytest.mark.slow
@pytest.mark.parametrize(("degree", "fanout"), [(7, 3), (20, 5)])
@pytest.mark.parametrize("kind", ["excluded", "times"])
@pytest.mark.parametrize("replace", [False, True])
def test_every_allowed_edge_is_equally_likely(kind, degree, fanout, replace):
    csc = star_csc(degree)
    edge_times, trials = EdgeTimes(time=torch.arange(degree)), 1500
    if kind == "excluded":
        constraints = Constraints(excluded=torch.tensor([0, degree // 2]))
        allowed = [e for e in range(degree) if e not in (0, degree // 2)]
    else:
        constraints = Constraints(disjoint=True, times=torch.tensor([degree - 3]))
        allowed = list(range(degree - 2))
    counts = drawn_positions(csc, fanout, trials, constraints, edge_times, replace=replace)
    assert counts.sum() == trials * fanout == counts[allowed].sum()
    # Draws of one row without replacement repel each other, so the statistic is below chi-square.
    assert stats.chisquare(counts[allowed]).pvalue > 1e-4


def test_trees_draw_independently_of_each_other():
    csc = star_csc(40)
    seeds = torch.zeros(30, dtype=torch.int64)
    config = SamplerConfig(fanouts=(4,), return_edge_id=True)
    sampled = reference(Graph(csc=csc), config, seeds, Constraints(disjoint=True), None)
    drawn = sampled.edges[0].positions.view(30, 4).tolist()
    assert len({tuple(row) for row in drawn}) > 25


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


@pytest.mark.parametrize("graph", [Graph(csc=star_csc(3)), bibliography()], ids=["one type", "types"])
@needs_kernels
def test_the_compiled_run_refuses_constraints_that_do_not_fit(graph):
    config, seeds = config_of(graph, [2]), torch.tensor([0, graph.num_nodes - 1])
    time = EdgeTimes(time=torch.zeros(graph.num_edges, dtype=torch.int64))
    untimed, timed_ = (
        make_pipeline(graph, config, num_threads=1, depth=1, edge_times=times) for times in (None, time)
    )
    with pytest.raises(ValueError, match="seeds must be nodes in"):
        untimed.begin(torch.tensor([graph.num_nodes]), 0, 0, 0)
    many = torch.tensor([1, 2])
    for pipeline, limits, message in (
        (untimed, {"disjoint": True, "times": many}, "times need disjoint trees, and the edges' time"),
        (timed_, {"times": many}, "times need disjoint trees"),
        (timed_, {"disjoint": True, "times": many[:1]}, "times must have length 2; got 1"),
        *(
            (timed_, {"excluded": torch.tensor(wrong)}, "excluded must be positions of edges, rising")
            for wrong in ([1, 0], [1, 1], [graph.num_edges], [-1])
        ),
    ):
        with pytest.raises(ValueError, match=message):
            pipeline.begin(seeds, 0, 0, 0, Constraints(**limits))
    with pytest.raises(DataError, match="no node type 'venue'"):
        make_pipeline(graph, config, seed_type="venue", num_threads=1, depth=1)
