"""The typed sampler: compiled against the reference bit for bit, the reference against the definition."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.extras import NO_KERNELS
from tests.graph.typed_cases import ABOUT, AUTHORS, CITES, FIELDS, PAPERS, REVISES, WRITES, bibliography

from graphbraid import native
from graphbraid.errors import ConfigError, DataError
from graphbraid.graph import Graph
from graphbraid.sampling import SamplerConfig, SeedSchedule, rng, sample_batch
from graphbraid.sampling.cpu import make_pipeline

FANOUTS = {
    "alike": [3, 2],
    "all": [-1, -1],
    "by relation": {WRITES: [2, 0, 20], CITES: [-1, 3, 1], ABOUT: [1, 1, 1], REVISES: [0, 0, 4]},
}


def config_of(graph, fanouts, **options):
    return SamplerConfig.for_relations(graph.edge_types, fanouts, **{"return_edge_id": True} | options)


def assert_same(got, expected):
    assert got.nodes_by_type == expected.nodes_by_type
    assert got.counts_by_relation == expected.counts_by_relation
    assert all(map(torch.equal, got.n_id_by_type, expected.n_id_by_type))
    for ours, theirs in zip(got.edges_by_relation, expected.edges_by_relation, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert torch.equal(a.indptr, b.indptr)
            assert torch.equal(a.indices, b.indices)
            assert (a.positions is None) == (b.positions is None)
            assert a.positions is None or torch.equal(a.positions, b.positions)


@pytest.mark.parametrize(("threads", "depth"), [(1, 1), (3, 4), (4, 1)])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("layout", ["subgraph", "blocks"])
def test_compiled_equals_reference_bit_for_bit(layout, replace, weighted, threads, depth):
    if native.kernels() is None:
        pytest.skip(NO_KERNELS)
    graph = bibliography(weighted=weighted, num_edges=300)
    rows = [torch.rand(PAPERS, 5), None, torch.rand(FIELDS, 3)]
    for (name, fanouts), seed_type in itertools.product(FANOUTS.items(), ["paper", "field"]):
        lists = fanouts.values() if isinstance(fanouts, dict) else [fanouts]
        if replace and any(-1 in hops for hops in lists):
            continue
        config = config_of(
            graph, fanouts, replace=replace, weighted=weighted, layout=layout, return_edge_id=name != "alike"
        )
        count = graph.nodes_of(seed_type).num_nodes
        seeds = torch.from_numpy(np.random.default_rng(1).integers(0, count, 30))  # some of them twice
        schedule = SeedSchedule(seeds=seeds, batch_size=8, shuffle=True, seed=5)
        pipeline = make_pipeline(graph, config, rows, seed_type=seed_type, num_threads=threads, depth=depth)
        steps = []
        for step, input_id, sampled, x in pipeline.run(schedule, 2, 0, schedule.num_steps):
            steps.append(step)
            key = rng.batch_key(5, 2, step)
            assert_same(sampled, sample_batch(graph, config, seeds[input_id], key, seed_type))
            assert torch.equal(input_id, schedule.positions_of(2, step))
            for table, ids, gathered in zip(rows, sampled.n_id_by_type, x, strict=True):
                assert (gathered is None) == (table is None)
                assert table is None or torch.equal(gathered, table[ids])
        assert steps == [0, 1, 2, 3]
        [one] = pipeline.begin(seeds[:5], 9, 1, 7)
        assert one.step == 7
        assert_same(one.sampled, sample_batch(graph, config, seeds[:5], rng.batch_key(9, 1, 7), seed_type))


@pytest.mark.parametrize("layout", ["subgraph", "blocks"])
def test_one_type_and_one_relation_draw_the_bits_of_a_graph_without_types(layout):
    edges = torch.randint(60, (2, 900), generator=torch.Generator().manual_seed(0))
    plain = Graph.from_edge_index(edges, 60)
    typed = Graph.from_relations({("v", "to", "v"): edges}, {"v": 60})
    seeds, key = torch.tensor([3, 9, 3, 50]), rng.batch_key(1, 2, 3)
    options = {"fanouts": (4, 3, 2), "layout": layout, "return_edge_id": True}
    expected = sample_batch(plain.csc, SamplerConfig(**options), seeds, key)
    config = SamplerConfig(**options)
    got = sample_batch(typed, config, seeds, key, "v")
    assert torch.equal(got.n_id_by_type[0], expected.n_id)
    for a, b in zip(got.edges_by_relation[0], expected.edges, strict=True):
        assert torch.equal(a.indptr, b.indptr)
        assert torch.equal(a.indices, b.indices)
        assert torch.equal(a.positions, b.positions)


@given(st.data())
def test_a_sample_is_what_it_says(data):
    graph = bibliography(seed=data.draw(st.integers(0, 9)), num_edges=data.draw(st.integers(0, 200)))
    hops = data.draw(st.integers(1, 3))
    fanouts = {
        one: data.draw(st.lists(st.integers(-1, 6), min_size=hops, max_size=hops)) for one in graph.edge_types
    }
    config = config_of(graph, fanouts)
    seeds = torch.tensor(data.draw(st.lists(st.integers(0, AUTHORS - 1), min_size=1, max_size=9)))
    sampled = sample_batch(graph, config, seeds, rng.batch_key(0, 0, data.draw(st.integers(0, 99))), "author")
    number = {name: place for place, name in enumerate(graph.node_types)}
    for name, place in number.items():
        start = len(seeds) if name == "author" else 0
        found = sampled.n_id_by_type[place][start:]
        assert len(found.unique()) == len(found)
        assert sum(sampled.nodes_by_type[place]) == len(sampled.n_id_by_type[place])
    assert torch.equal(sampled.n_id_by_type[number["author"]][: len(seeds)], seeds)
    lists = graph.to_edge_indices()
    for place, edge_type in enumerate(graph.edge_types):
        [edges] = sampled.edges_by_relation[place]
        src, dst = (sampled.n_id_by_type[number[end]] for end in (edge_type[0], edge_type[2]))
        row = torch.repeat_interleave(torch.arange(edges.indptr.numel() - 1), edges.indptr.diff())
        ids = graph.edge_id[edges.positions]
        assert torch.equal(lists[edge_type][0, ids], src[edges.indices.long()])
        assert torch.equal(lists[edge_type][1, ids], dst[row])
        degree = graph.relation(edge_type).degrees()[dst[: edges.indptr.numel() - 1]]
        bounds = np.cumsum([0, *sampled.nodes_by_type[number[edge_type[2]]]])
        for hop, fanout in enumerate(fanouts[edge_type]):
            rows = slice(bounds[hop], bounds[hop + 1])
            expected = degree[rows] if fanout < 0 else degree[rows].clamp(max=fanout)
            assert torch.equal(edges.indptr.diff()[rows], expected)
        assert sum(sampled.counts_by_relation[place]) == edges.indices.numel()


def test_the_same_node_draws_differently_by_relation_hop_and_step():
    same = {("a", name, "b"): [list(range(40)), [0] * 40] for name in ("one", "two")}
    graph = Graph.from_relations(same, {"a": 40, "b": 1})
    config = config_of(graph, [5])

    def drawn(step):
        key = rng.batch_key(0, 0, step)
        sampled = sample_batch(graph, config, torch.tensor([0]), key, "b")
        return [
            sampled.n_id_by_type[0][edges[0].indices.long()].tolist() for edges in sampled.edges_by_relation
        ]

    (one, two), later = drawn(0), drawn(1)
    assert one != two
    assert one != later[0]
    assert drawn(0) == [one, two]


def chi_square_scores(graph, config, seeds, fanout, trials):
    """Standardised chi-squares of how often in-neighbours are drawn, by relation and degree."""
    pipeline = make_pipeline(graph, config, seed_type="b", num_threads=2, depth=2)
    schedule = SeedSchedule(seeds=seeds.repeat(trials), batch_size=len(seeds), seed=fanout)
    counts = np.zeros(graph.num_edges)
    for _, _, sampled, _ in pipeline.run(schedule, 0, 0, trials):
        for [edges] in sampled.edges_by_relation:
            counts += np.bincount(edges.positions.numpy(), minlength=graph.num_edges)
    degrees = graph.types.rows.degrees().numpy()
    by_row = np.repeat(np.arange(len(degrees)), degrees)
    offset = np.arange(graph.num_edges) - graph.types.rows.indptr.numpy()[by_row]
    relation = by_row % len(graph.edge_types)
    for number, degree in itertools.product(range(len(graph.edge_types)), np.unique(degrees)):
        chosen = (relation == number) & (degrees[by_row] == degree)
        tries = chosen.sum() / degree * trials
        drawn = np.bincount(offset[chosen], counts[chosen], minlength=degree)
        if degree <= fanout:
            assert (drawn == tries).all()
            continue
        p = fanout / degree
        assert drawn.sum() == tries * fanout
        # Without replacement the counts are correlated: (d - 1) / d / (p (1 - p)) is the chi-square's scale.
        chi2 = ((drawn - tries * p) ** 2).sum() / (tries * p * (1 - p)) * (degree - 1) / degree
        yield (chi2 - (degree - 1)) / np.sqrt(2 * (degree - 1))


@pytest.mark.parametrize("fanouts", [(1, 3, 5), pytest.param(range(1, 20), marks=pytest.mark.slow)])
def test_neighbours_are_drawn_with_probability_fanout_over_degree_in_every_relation(fanouts):
    """Three relations into one type, each with nodes of degrees 2, 4, 7 and 19 in another order."""
    if native.kernels() is None:
        pytest.skip(NO_KERNELS)
    wanted, copies, trials = np.array([2, 4, 7, 19]), 100, 12
    edges = {}
    for shift in range(3):
        degrees = np.roll(np.repeat(wanted, copies), shift * copies)
        dst = np.repeat(np.arange(len(degrees)), degrees)
        edges["a", f"r{shift}", "b"] = np.stack([np.arange(len(dst)) % 500, dst])
    graph = Graph.from_relations(edges, {"a": 500, "b": len(wanted) * copies})
    seeds, worst = torch.arange(len(wanted) * copies), []
    for fanout in fanouts:
        worst += chi_square_scores(graph, config_of(graph, [fanout]), seeds, fanout, trials)
    assert max(worst) < 7.0  # an off-by-one bound, or relations that share their draws' places, give far more


@pytest.mark.parametrize(
    ("fanouts", "options", "message"),
    [
        ({WRITES: [1]}, {}, r"no fanouts for the relation \('paper', 'cites', 'paper'\)"),
        ({WRITES: [1, 2]}, {"default": [1]}, "a fanout for each hop; got 1 to 2 hops"),
        ({("paper", "cite", "paper"): [1]}, {"default": [1]}, None),
        (
            {("author", "cites", "field"): [1]},
            {"default": [1]},
            "does not have; it has author__",
        ),
        ([1, -2], {}, r"\('author', 'writes', 'paper'\): a fanout must be"),
        ([-1], {"replace": True}, "replace=True needs a fanout >= 0"),
        (5, {}, "fanouts must be a list with a fanout per hop"),
    ],
)
def test_bad_fanouts_say_why(fanouts, options, message):
    with pytest.raises(ConfigError, match=message or "Did you mean 'paper__cites__paper'"):
        SamplerConfig.for_relations(bibliography().edge_types, fanouts, **options)


def test_bad_seeds_and_types_are_refused():
    graph = bibliography()
    config = config_of(graph, [2])
    with pytest.raises(DataError, match="no node type 'venue'"):
        sample_batch(graph, config, torch.tensor([0]), 0, "venue")
    with pytest.raises(DataError, match=r"seeds must be node ids in \[0, 6\); position 1 holds 6"):
        sample_batch(graph, config, torch.tensor([0, FIELDS]), 0, "field")
    with pytest.raises(DataError, match="needs edge weights"):
        sample_batch(graph, config_of(graph, [2], weighted=True), torch.tensor([0]), 0, "field")
    with pytest.raises(DataError, match="x must have a row for each of the 40 nodes"):
        make_pipeline(graph, config, [torch.rand(3, 2), None, None], num_threads=1, depth=1)
    with pytest.raises(DataError, match="1 relations and fanouts for 4"):
        make_pipeline(Graph.from_edge_index([[0], [0]]), config, num_threads=1, depth=1)


def test_the_native_entry_refuses_what_does_not_fit():
    kernels = native.kernels()
    if kernels is None:
        pytest.skip(NO_KERNELS)
    graph = bibliography()
    given_ = {
        "indptr": graph.types.rows.indptr,
        "num_nodes": [PAPERS, AUTHORS, FIELDS],
        "relations": [[1, 0], [0, 0], [0, 2], [1, 0]],
        "fanouts": [[1]] * 4,
        "seed_type": 0,
    }
    types = kernels.Types(**given_)
    for change, message in [
        ({"indptr": graph.csc.indptr}, "indptr must have"),
        ({"indptr": graph.types.rows.indptr.int()}, "indptr must be int64"),
        ({"num_nodes": [PAPERS, AUTHORS]}, "a type must lie in"),
        ({"relations": [[1, 0]] * 3}, "fanouts must be those of each relation"),
        ({"relations": [[1]] * 4}, "a relation is a pair of types"),
        ({"fanouts": [[-2]] * 4}, "a fanout must lie in"),
        ({"seed_type": 3}, "seed_type must lie in"),
    ]:
        with pytest.raises((TypeError, ValueError), match=message):
            kernels.Types(**given_ | change)
    with pytest.raises(ValueError, match="x must have"):
        types.gather(0, torch.rand(3, 2))
    threads = {"num_threads": 1, "depth": 1, "refill": 0}
    arrays = {"indptr": graph.csc.indptr, "indices": graph.csc.indices, "weight": None, "x": None}
    flags = {"replace": False, "blocks": False, "keep_edges": False}
    with pytest.raises(ValueError, match="a fanout per hop"):
        kernels.Pipeline(**arrays, **flags, **threads, fanouts=[1, 1], types=types)
    with pytest.raises(ValueError, match="types must be those of indptr"):
        other = torch.zeros(3, dtype=torch.int64)
        kernels.Pipeline(
            **arrays | {"indptr": other, "indices": torch.zeros(0, dtype=torch.int32)},
            **flags,
            **threads,
            fanouts=[1],
            types=types,
        )
