"""The sampler, with types or without: compiled against reference, and this against the definition."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.extras import NO_KERNELS
from tests.graph.typed_cases import ABOUT, AUTHORS, CITES, FIELDS, PAPERS, REVISES, WRITES, bibliography
from tests.kernels import needs_kernels
from tests.sampling.graphs import power_law_csc, star_csc

from graphbraid import native
from graphbraid.errors import ConfigError, DataError
from graphbraid.graph import Graph
from graphbraid.ops import rng
from graphbraid.sampling import SamplerConfig, SeedSchedule, sample_batch
from graphbraid.sampling.batch_seeds import Constraints
from graphbraid.sampling.cpu import make_pipeline
from graphbraid.sampling.reference import sample_checked

FANOUTS = [(15, 10, 5), (3,), (-1, 2), (20, 60), (100, 0, 7), (-1, -1), (17, 8, 1)]
TYPED_FANOUTS = [
    [3, 2],
    [-1, -1],
    {WRITES: [2, 0, 20], CITES: [-1, 3, 1], ABOUT: [1, 1, 1], REVISES: [0, 0, 4]},
]


def config_of(graph, fanouts, **options):
    options = {"return_edge_id": True} | options
    if not graph.is_typed:
        return SamplerConfig(fanouts=fanouts, **options)
    return SamplerConfig.for_relations(graph.edge_types, fanouts, **options)


def is_unlimited(fanouts):
    return any(-1 in hops for hops in (fanouts.values() if isinstance(fanouts, dict) else [fanouts]))


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


def epoch_of(graph, config, schedule, *, num_threads=1, depth=2, epoch=2, last=None):
    if native.kernels() is None:
        pytest.skip(NO_KERNELS)
    pipeline = make_pipeline(graph, config, num_threads=num_threads, depth=depth)
    return list(pipeline.run(schedule, epoch, 0, schedule.num_steps if last is None else last))


def graphs_of(*, weighted):
    """Graphs with the types of their seeds and fanouts."""
    for nodes, edges, wide in (
        (50, 400, False),
        (1000, 8000, False),
        (1000, 8000, True),
        (3, 2, False),
        (5000, 100_000, False),
    ):
        yield Graph(csc=power_law_csc(nodes, edges, wide=wide, weighted=weighted)), None, FANOUTS
    typed = bibliography(weighted=weighted, num_edges=300)
    yield typed, "paper", TYPED_FANOUTS
    yield typed, "field", TYPED_FANOUTS


@pytest.mark.parametrize(
    ("threads", "depth"), [(1, 1), (3, 4), (4, 1)]
)  # (4, 1): idle threads share each batch
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("layout", ["subgraph", "blocks"])
@pytest.mark.pairs
@needs_kernels
def test_compiled_equals_reference_bit_for_bit(layout, replace, weighted, threads, depth):
    for graph, seed_type, all_fanouts in graphs_of(weighted=weighted):
        sizes = [graph.nodes_of(name).num_nodes for name in graph.node_types]
        rows = [None if place == 1 else torch.rand(size, 5 + place) for place, size in enumerate(sizes)]
        for number, fanouts in enumerate(all_fanouts):
            if replace and is_unlimited(fanouts):
                continue
            config = config_of(
                graph,
                fanouts,
                replace=replace,
                layout=layout,
                weighted=weighted,
                return_edge_id=number % 3 != 1,
            )
            count = sizes[0] if seed_type is None else graph.nodes_of(seed_type).num_nodes
            seeds = torch.from_numpy(np.random.default_rng(1).integers(0, count, 60))  # some of them twice
            schedule = SeedSchedule(seeds=seeds, batch_size=16, shuffle=True, seed=5)
            pipeline = make_pipeline(
                graph, config, rows, seed_type=seed_type, num_threads=threads, depth=depth
            )
            steps = []
            for step, input_id, sampled, x, *_ in pipeline.run(schedule, 2, 0, schedule.num_steps):
                steps.append(step)
                key = rng.batch_key(5, 2, step)
                assert torch.equal(input_id, schedule.positions_of(2, step))
                assert_same(sampled, sample_batch(graph, config, seeds[input_id], key, seed_type))
                for table, ids, gathered in zip(rows, sampled.n_id_by_type, x, strict=True):
                    assert (gathered is None) == (table is None)
                    assert table is None or torch.equal(gathered, table[ids])
            assert steps == [0, 1, 2, 3]
            [one] = pipeline.begin(seeds[:5], 9, 1, 7)
            assert one.step == 7
            expected = sample_batch(graph, config, seeds[:5], rng.batch_key(9, 1, 7), seed_type)
            assert_same(one.sampled, expected)


@pytest.mark.parametrize("layout", ["subgraph", "blocks"])
def test_large_batches_grow_every_buffer_and_keep_their_bits(layout):
    csc = power_law_csc(60_000, 900_000)
    config = SamplerConfig(fanouts=(15, 10, 5), layout=layout, return_edge_id=True)
    schedule = SeedSchedule(seeds=torch.arange(60_000), batch_size=9000, shuffle=True)
    for threads, depth in [(1, 1), (3, 1)]:
        for step, _, sampled, *_ in epoch_of(
            Graph(csc=csc), config, schedule, num_threads=threads, depth=depth, last=3
        ):
            assert_same(
                sampled, sample_batch(csc, config, schedule.seeds_of(2, step), rng.batch_key(0, 2, step))
            )


def test_a_long_pipeline_reuses_its_table_without_mixing_batches():
    csc = power_law_csc(300, 4000)
    config = SamplerConfig(fanouts=(4, 4))
    schedule = SeedSchedule(seeds=torch.arange(300).repeat(10), batch_size=3)
    for step, _, sampled, *_ in epoch_of(Graph(csc=csc), config, schedule, num_threads=1, depth=3):
        if step % 37 == 0:
            assert_same(
                sampled, sample_batch(csc, config, schedule.seeds_of(2, step), rng.batch_key(0, 2, step))
            )


@pytest.mark.parametrize(
    "limits", [None, Constraints(excluded=torch.arange(0, 900, 3)), Constraints(disjoint=True)]
)
@pytest.mark.parametrize("layout", ["subgraph", "blocks"])
def test_one_type_and_one_relation_draw_the_bits_of_a_graph_without_types(layout, limits):
    edges = torch.randint(60, (2, 900), generator=torch.Generator().manual_seed(0))
    plain = Graph.from_edge_index(edges, 60)
    typed = Graph.from_relations({("v", "to", "v"): edges}, {"v": 60})
    seeds, key = torch.tensor([3, 9, 3, 50]), rng.batch_key(1, 2, 3)
    config = SamplerConfig(fanouts=(4, 3, 2), layout=layout, return_edge_id=True)
    expected, got = (
        sample_checked(graph.all_types, config, 0, seeds, key, constraints=limits) for graph in (plain, typed)
    )
    assert_same(got, expected)
    if native.kernels() is not None:
        pipelines = (make_pipeline(graph, config, num_threads=1, depth=1) for graph in (plain, typed))
        for pipeline in pipelines:
            [batch] = pipeline.begin(seeds, 1, 2, 3, limits)
            assert_same(batch.sampled, expected)


@given(st.data())
def test_a_sample_is_what_it_says(data):
    num_nodes = data.draw(st.integers(1, 60))
    csc = power_law_csc(num_nodes, data.draw(st.integers(0, 300)), seed=data.draw(st.integers(0, 99)))
    fanouts = tuple(data.draw(st.lists(st.integers(-1, 9), min_size=1, max_size=4)))
    layout = data.draw(st.sampled_from(["subgraph", "blocks"]))
    seeds = torch.tensor(data.draw(st.lists(st.integers(0, num_nodes - 1), min_size=1, max_size=20)))
    config = SamplerConfig(fanouts=fanouts, layout=layout, return_edge_id=True)
    sampled = sample_batch(csc, config, seeds, rng.batch_key(0, 0, data.draw(st.integers(0, 2**31))))
    assert torch.equal(sampled.n_id[: len(seeds)], seeds)
    found = sampled.n_id[len(seeds) :]
    assert len(found.unique()) == len(found)
    assert not torch.isin(found, seeds).any()
    assert sum(sampled.nodes_per_hop) == len(sampled.n_id)
    hops_of = [[h] for h in range(len(fanouts))] if layout == "blocks" else [list(range(len(fanouts)))]
    for edges, hops in zip(sampled.edges, hops_of, strict=True):
        degree = csc.degrees()[sampled.n_id[: edges.indptr.numel() - 1]]
        bounds = np.cumsum([0, *sampled.nodes_per_hop])
        for hop in hops:
            rows = slice(0 if layout == "blocks" or hop == 0 else bounds[hop], bounds[hop + 1])
            fanout = fanouts[hop]
            expected = degree[rows] if fanout < 0 else degree[rows].clamp(max=fanout)
            assert torch.equal(edges.indptr.diff()[rows], expected)
        # Each edge is the graph's edge at its position, into the row's node; none is drawn twice for a row.
        row = torch.repeat_interleave(torch.arange(len(degree)), edges.indptr.diff())
        assert torch.equal(csc.indices[edges.positions].long(), sampled.n_id[edges.indices.long()])
        assert torch.equal(csc.destinations()[edges.positions].long(), sampled.n_id[row])
        pairs = torch.stack([row, edges.positions])
        assert pairs.unique(dim=1).shape == pairs.shape


def test_local_ids_go_by_first_appearance():
    csc = power_law_csc(200, 3000)
    sampled = sample_batch(
        csc, SamplerConfig(fanouts=(5, 5)), torch.tensor([3, 1, 3]), rng.batch_key(0, 0, 0)
    )
    local = sampled.edges[0].indices.long()
    new = local[local >= 3]
    first_seen = list(dict.fromkeys(new.tolist()))
    assert first_seen == list(range(3, len(sampled.n_id)))


def counts_of(csc, fanout, *, trials, **options):
    """How often each in-neighbour of node 0 is drawn, a step per trial (in a step a node draws the same)."""
    counts = np.zeros(csc.num_src - 1)
    pipeline = make_pipeline(
        Graph(csc=csc), SamplerConfig(fanouts=(fanout,), **options), num_threads=1, depth=1
    )
    schedule = SeedSchedule(seeds=torch.zeros(trials, dtype=torch.int64), batch_size=1, seed=fanout)
    for _, _, sampled, *_ in pipeline.run(schedule, 0, 0, trials):
        nodes = sampled.n_id[sampled.edges[0].indices.long()].numpy() - 1
        np.add.at(counts, nodes, 1)
    return counts


@given(st.data())
def test_a_sample_of_relations_is_what_it_says(data):
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
    pipeline = make_pipeline(graph, config, seed_type=graph.node_types[-1], num_threads=2, depth=2)
    schedule = SeedSchedule(seeds=seeds.repeat(trials), batch_size=len(seeds), seed=fanout)
    counts = np.zeros(graph.num_edges)
    for _, _, sampled, *_ in pipeline.run(schedule, 0, 0, trials):
        for [edges] in sampled.edges_by_relation:
            counts += np.bincount(edges.positions.numpy(), minlength=graph.num_edges)
    degrees = graph.all_types.rows.degrees().numpy()
    by_row = np.repeat(np.arange(len(degrees)), degrees)
    offset = np.arange(graph.num_edges) - graph.all_types.rows.indptr.numpy()[by_row]
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


def graph_of_degrees(wanted, copies, num_relations=1):
    """Each relation has nodes of these degrees, in another order; sources of a node are distinct."""
    edges = {}
    for shift in range(num_relations):
        degrees = np.roll(np.repeat(wanted, copies), shift * copies)
        dst = np.repeat(np.arange(len(degrees)), degrees)
        first = np.repeat(np.cumsum(degrees) - degrees, degrees)
        edges["a", f"r{shift}", "b"] = np.stack([(np.arange(len(dst)) - first) % 500, dst])
    num_nodes = len(wanted) * copies
    if num_relations > 1:
        return Graph.from_relations(edges, {"a": 500, "b": num_nodes})
    return Graph.from_edge_index(edges["a", "r0", "b"], num_nodes)


@pytest.mark.parametrize(
    ("wanted", "copies", "trials", "num_relations", "fanouts"),
    [
        ([2, 4, 7, 19], 100, 12, 3, [1, 3, 5]),
        pytest.param([2, 4, 7, 19], 100, 12, 3, range(1, 20), marks=pytest.mark.slow),
        pytest.param(range(1, 41), 250, 8, 1, range(1, 41), marks=pytest.mark.slow),
    ],
)
@needs_kernels
def test_neighbours_are_drawn_with_probability_fanout_over_degree(
    wanted, copies, trials, num_relations, fanouts
):
    """All rows of one graph at once; each step gives every row fresh draws.

    Floyd's algorithm with an exclusive bound, a shuffle that stops one short, or relations that share their
    draws' places fail this for almost every pair.
    """
    graph = graph_of_degrees(np.array(wanted), copies, num_relations)
    seeds, worst = torch.arange(len(wanted) * copies), [0.0]
    for fanout in fanouts:
        worst += chi_square_scores(graph, config_of(graph, [fanout]), seeds, fanout, trials)
    assert max(worst) < 7.0  # the largest of up to 780 scores; an off-by-one bound gives hundreds


@pytest.mark.parametrize("options", [{"replace": True}, {}])
def test_weighted_draws_follow_the_weights(options):
    degree, trials = 6, 3000
    csc = star_csc(degree)
    csc.weight = torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0, 10.0])
    counts = counts_of(csc, 1, trials=trials, weighted=True, **options)
    expected = trials * csc.weight.numpy() / 20
    assert counts[0] == 0
    chi2 = ((counts[1:] - expected[1:]) ** 2 / expected[1:]).sum()
    assert chi2 < 24  # 4 degrees of freedom: 1e-4


@pytest.mark.slow
def test_weighted_draws_without_replacement_take_neighbours_in_order_of_the_race():
    # P(the heavy one is among 2 of 3) = 1 - P(both others first) with weights 1, 1, 4:
    # both others first: 2 * (1/6 * 1/5) = 1/15.
    csc = star_csc(3)
    csc.weight = torch.tensor([1.0, 1.0, 4.0])
    counts = counts_of(csc, 2, trials=6000, weighted=True)
    assert abs(counts[2] / 6000 - 14 / 15) < 4.5 * np.sqrt(14 / 15 / 15 / 6000)


def test_draws_with_replacement_are_uniform_and_may_repeat():
    counts = counts_of(star_csc(7), 14, trials=1500, replace=True)
    assert counts.sum() == 14 * 1500
    assert ((counts - 3000) ** 2 / 3000).sum() < 30  # 6 degrees of freedom: 1e-4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fanouts": (), "layout": "blocks"}, "at least one hop"),
        ({"fanouts": (1,) * 65}, "at most 64; got 65"),
        ({"fanouts": (5, -2)}, r"fanouts\[1\] must be .*; got -2"),
        ({"fanouts": (5, 2.5)}, r"fanouts\[1\] must be .*; got 2.5"),
        ({"fanouts": (5,), "layout": "graph"}, "layout must be one of 'subgraph', 'blocks'; got 'graph'"),
        ({"fanouts": (5, -1), "replace": True}, "replace=True needs a fanout >= 0"),
    ],
)
def test_bad_configs_say_why(options, message):
    with pytest.raises(ConfigError, match=message):
        SamplerConfig(**options)


@pytest.mark.parametrize(
    ("fanouts", "options", "message"),
    [
        ({WRITES: [1]}, {}, r"no fanouts for the relation \('paper', 'cites', 'paper'\)"),
        ({WRITES: [1, 2]}, {"default": [1]}, "a fanout for each hop; got 1 to 2 hops"),
        ({("paper", "cite", "paper"): [1]}, {"default": [1]}, None),
        ({("author", "cites", "field"): [1]}, {"default": [1]}, "does not have; it has author__"),
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
