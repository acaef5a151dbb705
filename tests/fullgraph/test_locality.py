"""Renumbered nodes: the order, the cache it is judged by, the decision, and the same numbers as before."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fullgraph.fake_device import FakeDevice
from tests.fullgraph.test_engine import MODELS, gradients, loss_of
from tests.kernels import needs_kernels
from tests.ops.graphs import square
from tests.suites import examples

import graphbraid
from graphbraid import Graph, SparseFeatures, native
from graphbraid.fullgraph import ALL, Engine
from graphbraid.fullgraph.lowering import levels, locality, lower_program
from graphbraid.fullgraph.lowering.levels import everything, reach, towards
from graphbraid.fullgraph.lowering.locality import cached_share
from graphbraid.fullgraph.lowering.lower_program import with_shared_transpose
from graphbraid.fullgraph.lowering.options import CompileOptions
from graphbraid.graph.csc import Csc, coo_to_csc
from graphbraid.graph.orders import community_order
from graphbraid.machine.hardware import Rates

GROUPS, SIZE, CHANNELS, CLASSES = 12, 10, 12, 5
NODES = GROUPS * SIZE
SLOW_MEMORY = Rates(row_bytes=1e3, cached_row_bytes=1e9)
"""Rates by which the making of an order pays on a graph this small, also where the twin makes it."""
SMALL_CACHE = 16 * 64
"""Holds sixteen rows of width 16."""


def planted(*, symmetric=False, weighted=False, sparse=False, seed=0, train=NODES, shuffled=True):
    """Groups whose nodes are neighbours of one another, with ids that say nothing of them."""
    draw = torch.Generator().manual_seed(seed)
    inside = torch.randint(0, SIZE, (2, NODES * 6), generator=draw)
    group = torch.arange(NODES * 6) % GROUPS * SIZE
    src, dst = inside + group
    far = torch.randint(0, NODES, (2, NODES // 4), generator=draw)
    src, dst = torch.cat((src, far[0])), torch.cat((dst, far[1]))
    if symmetric:
        pairs = torch.unique(torch.cat((src * NODES + dst, dst * NODES + src)))
        src, dst = pairs % NODES, pairs // NODES
    if shuffled:
        ids = torch.randperm(NODES, generator=draw)
        src, dst = ids[src], ids[dst]
    csc, _ = coo_to_csc(src, dst, NODES, NODES)
    if weighted:
        csc = Csc(csc.indptr, csc.indices, NODES, torch.rand(csc.num_edges, generator=draw) + 0.1)
    x = torch.randn(NODES, CHANNELS, generator=draw)
    if sparse:
        x = SparseFeatures.from_dense(x * (torch.rand(x.shape, generator=draw) < 0.1))
    order = torch.randperm(NODES, generator=draw)
    y = torch.randint(0, CLASSES, (NODES,), generator=draw)
    return Graph(csc=csc, x=x, y=y, splits={"train": order[:train], "val": order[train:]})


GRAPHS = {
    "directed": {},
    "undirected": {"symmetric": True},
    "weighted": {"weighted": True},
    "sparse": {"sparse": True},
    "pruned": {"train": 10},
    "pruned, undirected": {"train": 30, "symmetric": True},
}


def engine_of(model, graph, *, without=(), **options):
    options = {"rates": SLOW_MEMORY, "cache_bytes": SMALL_CACHE} | options
    return Engine(model, graph, graph.split("train"), CompileOptions(passes=ALL - set(without), **options))


def decision(engine):
    return next(d for d in engine.program.decisions if d.name == "locality")


def run_once(engine, model, graph):
    """Outputs and gradients of one step, and all nodes' predictions."""
    before = {name: value.clone() for name, value in model.state_dict().items()}  # running statistics move
    torch.manual_seed(7)
    out = engine()
    found = out.detach(), gradients(model, loss_of(out, graph)), engine.predict()
    model.load_state_dict(before)
    return found


def assert_same_numbers(model, graph, *, without=()):
    """Outputs to the bit, but for batch normalisation's sums over rows and torch's own products."""
    exact = native.kernels() is not None and not any(
        isinstance(m, torch.nn.BatchNorm1d) for m in model.modules()
    )
    renumbered = engine_of(model, graph, without=without)
    plain = engine_of(model, graph, without={*without, "locality"})
    expected, actual = run_once(plain, model, graph), run_once(renumbered, model, graph)
    for ours, theirs in ((actual[0], expected[0]), (actual[2], expected[2])):
        torch.testing.assert_close(ours, theirs, rtol=0 if exact else 1e-5, atol=0 if exact else 1e-5)
    for ours, theirs in zip(actual[1], expected[1], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=2e-5)
    return renumbered


@pytest.mark.parametrize("name", ["gcn", "sage", "sage max", "gin", "gat", "gatv2"])
@pytest.mark.parametrize("kind", GRAPHS)
def test_renumbering_changes_no_bit_of_the_outputs(name, kind):
    graph = planted(**GRAPHS[kind])
    torch.manual_seed(1)
    engine = assert_same_numbers(MODELS[name](dropout=0.0), graph)
    assert decision(engine).taken, engine.explain()


@pytest.mark.parametrize("kind", GRAPHS)
def test_nodes_of_one_degree_stand_together(kind, monkeypatch):
    for module in (levels, lower_program):
        monkeypatch.setattr(module, "STRETCH", 16)
    graph = planted(**GRAPHS[kind])
    engine = assert_same_numbers(MODELS["gcn"](dropout=0.0), graph)
    assert "those of one degree stand together" in decision(engine).what
    degrees = graph.csc.degrees()
    for nodes in everything(NODES, 2).by_degree(degrees).nodes.split(16):
        assert int(nodes.max() - nodes.min()) < 16
        assert bool((degrees[nodes].diff() >= 0).all())


@settings(max_examples=examples(40))
@given(
    name=st.sampled_from([*MODELS]),
    kind=st.sampled_from([*GRAPHS]),
    without=st.sets(st.sampled_from(sorted(ALL - {"locality"}))),
    seed=st.integers(0, 5),
)
def test_any_model_and_choice_of_passes_gives_the_same_numbers(name, kind, without, seed):
    graph = planted(**GRAPHS[kind] | {"seed": seed})
    torch.manual_seed(seed)
    assert_same_numbers(MODELS[name](dropout=0.0), graph, without=without)


@pytest.mark.parametrize("name", ["gcn", "sage", "gin", "layer norm, elu"])
@pytest.mark.parametrize("kind", ["directed", "undirected", "pruned"])
def test_dropout_masks_follow_their_nodes(name, kind):
    graph = planted(**GRAPHS[kind])
    torch.manual_seed(1)
    engine = assert_same_numbers(MODELS[name](dropout=0.5), graph)
    assert decision(engine).taken


def test_training_renumbered_equals_the_model_itself():
    graph = planted(train=40)
    torch.manual_seed(1)
    model = MODELS["gcn"](dropout=0.0)
    engine = engine_of(model, graph, without={"prune"})
    assert decision(engine).taken
    expected = model(graph.x, graph.csc)
    torch.testing.assert_close(engine(), expected[graph.split("train")], rtol=1e-5, atol=1e-6)
    model.eval()
    torch.testing.assert_close(engine.predict(), expected.detach(), rtol=1e-5, atol=1e-6)


def test_an_undirected_graph_stays_its_own_transpose():
    graph = planted(symmetric=True)
    engine = engine_of(MODELS["gcn"](dropout=0.0), graph)
    assert decision(engine).taken
    for block in engine.lowered.blocks:
        assert block is engine.lowered.blocks[0]
        assert block.csc.reversed() is block.csc
    reverse = Csc(block.csc.indptr, block.csc.indices, NODES).reversed()
    ours, theirs = (edge_set(csc) for csc in (block.csc, reverse))
    assert ours == theirs


def edge_set(csc):
    return sorted(zip(csc.indices.tolist(), csc.destinations().tolist(), strict=True))


def test_memory_is_counted_and_kept_to():
    graph, model = planted(), MODELS["gcn"](dropout=0.0)
    plain, renumbered = engine_of(model, graph, without={"locality"}), engine_of(model, graph)
    copied = graph.csc.nbytes + 16 * NODES
    assert renumbered.nbytes == plain.nbytes + copied
    assert "with the levels' own edges and node ids" in renumbered.explain()
    assert plain.runner._level_bytes == 4 * NODES  # where each row of the gradient comes from
    hoisted = 4 * NODES * CHANNELS
    assert decision(engine_of(model, graph, spare_bytes=hoisted + copied)).taken
    refused = engine_of(model, graph, spare_bytes=hoisted + copied - 1)
    assert not decision(refused).taken
    assert "allowed; spare_bytes allows more" in refused.explain()
    assert refused.nbytes == plain.nbytes


def test_features_that_would_be_copied_count_too():
    graph, model = planted(), MODELS["sage"](dropout=0.0)
    added = engine_of(model, graph).nbytes - engine_of(model, graph, without={"locality"}).nbytes
    assert added == graph.csc.nbytes + 16 * NODES + 4 * NODES * CHANNELS
    hoisted = 4 * NODES * CHANNELS
    assert not decision(engine_of(model, graph, spare_bytes=hoisted + added - 1)).taken
    assert decision(engine_of(model, graph, spare_bytes=hoisted + added)).taken


def test_pruned_levels_are_reordered_for_nothing():
    graph, model = planted(train=10), MODELS["gcn"](dropout=0.0)
    engine = engine_of(model, graph, spare_bytes=0)
    assert decision(engine).taken
    plain = engine_of(model, graph, without={"locality"}, spare_bytes=0)
    assert engine.nbytes == plain.nbytes + 4 * 10  # where each row of the gradient comes from


def test_the_decision_names_the_order_what_it_saves_and_what_it_was_chosen_over():
    engine = engine_of(MODELS["gcn"](dropout=0.0), planted())
    line = next(line for line in engine.explain().splitlines() if "locality" in line)
    assert line.startswith("  + locality: nodes stand by communities, 0.00")
    assert "% of the row reads find the cache; saves" in line
    assert "as they stood," in line


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"without": {"locality"}}, "switched off"),
        ({"cache_bytes": 1 << 20}, "rows fit in 1.05 MB of cache in any order"),
        (
            {"rates": Rates(row_bytes=1e12, cached_row_bytes=2e12)},
            "another order would not pay for its making",
        ),
    ],
)
def test_where_nodes_stay_as_they_are_the_reason_is_given(options, why):
    engine = engine_of(MODELS["gcn"](dropout=0.0), planted(), **options)
    assert why in decision(engine).what
    assert "- locality: " in engine.explain()
    assert not decision(engine).taken


def test_a_graph_whose_ids_are_in_good_order_keeps_them():
    engine = engine_of(MODELS["gcn"](dropout=0.0), planted(shuffled=False))
    assert not decision(engine).taken
    assert "of the row reads find the cache as nodes stand; " in decision(engine).what


def test_rows_that_are_read_often_are_put_side_by_side():
    draw = torch.Generator().manual_seed(0)
    hubs = torch.randperm(400, generator=draw)[:24]  # in as many blocks of two rows, of which 16 have room
    src = hubs[torch.randint(0, 24, (4000,), generator=draw)]
    src[::10] = torch.randint(0, 400, (400,), generator=draw)
    csc, _ = coo_to_csc(src, torch.arange(4000) // 10, 400, 400)
    graph = Graph(csc=csc, x=torch.randn(400, CHANNELS), y=torch.zeros(400, dtype=torch.int64))
    graph = graph.replace(splits={"train": torch.arange(400)})
    torch.manual_seed(1)
    engine = assert_same_numbers(MODELS["gcn"](dropout=0.0), graph)
    assert "nodes stand by out-degree" in decision(engine).what


def test_caches_of_a_device_are_left_alone():
    graph, model = planted(), MODELS["gcn"](dropout=0.0)
    engine = Engine(
        model, graph, graph.split("train"), CompileOptions(device=FakeDevice(), rates=SLOW_MEMORY)
    )
    assert "are not modelled" in decision(engine).what


def test_a_model_without_aggregations_has_nothing_to_gain():
    engine = engine_of(MODELS["mlp"](dropout=0.0), planted())
    assert decision(engine).what == "there is nothing to aggregate"


def test_compile_takes_the_memory_allowed():
    engine = graphbraid.compile(MODELS["gcn"](dropout=0.0), planted(), spare_bytes=0)
    assert not decision(engine).taken


def test_members_of_a_community_stand_side_by_side():
    graph = planted(symmetric=True)
    order = community_order(graph.csc)
    assert torch.equal(order.sort().values, torch.arange(NODES))
    scattered = cached_share(graph.csc, None, 16)
    assert cached_share(graph.csc, order, 16) > scattered + 0.2


@needs_kernels
@settings(max_examples=examples(30))
@given(
    seed=st.integers(0, 9),
    capacity=st.integers(1, 300),
    every=st.integers(1, 4),
    picked=st.none() | st.integers(0, 80),
)
def test_reads_and_hits_are_those_of_the_twin(seed, capacity, every, picked):
    csc = square(80, seed=seed)
    nodes = None if picked is None else torch.randperm(80)[:picked]
    arguments = (csc.indptr, csc.indices, nodes, capacity, every)
    assert native.kernels().cached_reads(*arguments) == locality.cached_reads(*arguments)


@pytest.mark.parametrize(
    ("sources", "hits"),
    [
        ([3] * 10, 9),
        ([*range(16)] * 2, 16),  # as many rows as there are places: all are there the second time
        ([*range(17)] * 2, 0),  # one more, and each leaves before it is read again
        ([0, *range(1, 16), 0, 16, 0], 2),  # what was read last stays
    ],
)
def test_a_cache_keeps_what_was_read_last(sources, hits):
    csc = Csc(torch.tensor([0, len(sources)]), torch.tensor(sources), 20)
    assert cached_share(csc, None, 16) == pytest.approx(hits / len(sources))


def test_levels_keep_their_nodes_when_they_are_ordered():
    csc = planted().csc
    reached = reach(csc, torch.tensor([7, 3, 50]), 2)
    rank = torch.randperm(NODES)
    ordered = reached.ordered(rank)
    assert ordered.sizes == reached.sizes
    for begin, end in pairwise((0, *reached.sizes)):
        part = ordered.nodes[begin:end]
        assert set(part.tolist()) == set(reached.nodes[begin:end].tolist())
        assert bool((rank[part].diff() > 0).all())
    assert torch.equal(reached.ordered(None).nodes[:3], torch.tensor([3, 7, 50]))


def test_edges_of_a_row_keep_their_order():
    csc, shared = with_shared_transpose(planted(symmetric=True).csc, wanted=True)
    assert shared.taken
    ordered = everything(NODES, 2).ordered(torch.randperm(NODES))
    step, again = towards(csc, ordered)
    assert step is again
    for row, node in enumerate(ordered.nodes.tolist()):
        ours = step.csc.indices[step.csc.indptr[row] : step.csc.indptr[row + 1]].long()
        assert torch.equal(ordered.nodes[ours], csc.indices[csc.indptr[node] : csc.indptr[node + 1]].long())
