"""TritonPipeline against the reference, bit for bit."""

import dataclasses
import gc
import importlib
import weakref

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.sampling.graphs import power_law_csc, star_csc
from tests.sampling.test_sampler import assert_same
from tests.suites import examples

from graphbraid.errors import ConfigError, DataError, ResourceError
from graphbraid.graph import Graph
from graphbraid.graph.csc import Csc
from graphbraid.ops import rng
from graphbraid.sampling import SamplerConfig, SeedSchedule, sample_batch
from graphbraid.sampling.cpu import make_pipeline
from graphbraid.sampling.sample import Sampled, SampledEdges


@pytest.fixture(scope="module")
def pipeline(device):
    """``pipeline(csc, config, x)`` on the device."""
    module = importlib.import_module("graphbraid.sampling.triton")

    def make(csc, config, x=None, **placement):
        return module.TritonPipeline(csc, config, x, device=device, **placement)

    return make


def on_cpu(sampled):
    parts = [
        SampledEdges(
            indptr=e.indptr.cpu(),
            indices=e.indices.cpu(),
            positions=None if e.positions is None else e.positions.cpu(),
        )
        for e in sampled.edges
    ]
    return Sampled(
        n_id_by_type=[sampled.n_id.cpu()],
        edges_by_relation=[parts],
        nodes_by_type=[sampled.nodes_per_hop],
        counts_by_relation=[sampled.edges_per_hop],
    )


def assert_epoch_is_the_references(running, csc, config, schedule, *, x=None, epoch=2, first=0):
    steps = []
    for step, input_id, sampled, [rows], *_ in running.run(schedule, epoch, first, schedule.num_steps):
        key = rng.batch_key(schedule.seed, epoch, step)
        assert_same(on_cpu(sampled), sample_batch(csc, config, schedule.seeds_of(epoch, step), key))
        dtypes = [(a.indptr.dtype, a.indices.dtype) for a in sampled.edges]
        assert set(dtypes) == {(torch.int64, torch.int32)}
        assert torch.equal(input_id.cpu(), schedule.positions_of(epoch, step))
        assert (rows is None) == (x is None)
        assert x is None or torch.equal(rows.cpu(), x[sampled.n_id.cpu()])
        steps.append(step)
    assert steps == list(range(first, schedule.num_steps))


def seeds_of(num_nodes, count=14):
    return torch.from_numpy(np.random.default_rng(1).integers(0, num_nodes, count))  # some of them twice


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("layout", ["subgraph", pytest.param("blocks", marks=pytest.mark.slow)])
def test_batches_equal_the_references_bit_for_bit(pipeline, layout, replace, weighted):
    for (nodes, edges, wide), fanouts in [
        ((60, 500, False), (4, 3)),
        ((60, 500, True), (17, 0, 3)),
        ((90, 500, False), (-1, 2, -1)),
        ((3, 2, False), (2, 2)),
        ((5, 0, False), (2, 1)),
    ]:
        if replace and -1 in fanouts:
            continue
        csc = power_law_csc(nodes, edges, wide=wide, weighted=weighted)
        config = SamplerConfig(
            fanouts=fanouts,
            replace=replace,
            layout=layout,
            weighted=weighted,
            return_edge_id=len(fanouts) > 2,
        )
        schedule = SeedSchedule(seeds=seeds_of(nodes), batch_size=8, shuffle=True, seed=5)
        x = torch.randn(nodes, 5)
        running = pipeline(csc, config, x)
        assert_epoch_is_the_references(running, csc, config, schedule, x=x)


@st.composite
def drawn_samples(draw, num_edges=200, most_hops=3):
    """A graph with hubs, a configuration, seeds and the key of a batch, all of them small."""
    nodes, replace, weighted = draw(st.integers(1, 40)), draw(st.booleans()), draw(st.booleans())
    fanouts = st.lists(st.integers(0 if replace else -1, 9), min_size=1, max_size=most_hops)
    csc = power_law_csc(
        nodes,
        draw(st.integers(0, num_edges)),
        wide=draw(st.booleans()),
        seed=draw(st.integers(0, 99)),
        weighted=weighted,
    )
    config = SamplerConfig(
        fanouts=tuple(draw(fanouts)),
        replace=replace,
        layout=draw(st.sampled_from(["subgraph", "blocks"])),
        weighted=weighted,
        return_edge_id=draw(st.booleans()),
    )
    seeds = torch.tensor(draw(st.lists(st.integers(0, nodes - 1), min_size=1, max_size=12)))
    return csc, config, seeds, draw(st.integers(0, 2**64 - 1))


@settings(max_examples=examples(12), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=drawn_samples())
def test_any_graph_and_any_options_give_the_references_batches(pipeline, drawn):
    csc, config, seeds, key = drawn
    assert_same(on_cpu(pipeline(csc, config).sample(seeds, key)), sample_batch(csc, config, seeds, key))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        *(pytest.param(options, marks=pytest.mark.slow) for options in ({}, {"replace": True})),
        {"weighted": True},
    ],
)
def test_long_rows_and_fanouts_beyond_a_tile_keep_their_bits(pipeline, monkeypatch, options):
    monkeypatch.setattr("graphbraid.sampling.triton.draw._LONGEST_TILE", 4)
    csc = star_csc(300)  # a race of more runners than a program holds
    csc.weight = torch.from_numpy(np.random.default_rng(0).random(300, dtype=np.float32)).round(decimals=1)
    for fanout in (7, 290):  # with 290 a weighted row takes all but those of weight 0
        config = SamplerConfig(fanouts=(fanout, 2), return_edge_id=True, **options)
        seeds, key = torch.tensor([5, 0, 0]), rng.batch_key(0, 0, fanout)
        assert_same(on_cpu(pipeline(csc, config).sample(seeds, key)), sample_batch(csc, config, seeds, key))


def test_a_draw_that_meets_a_running_sum_goes_to_the_next_neighbour(pipeline):
    key = next(key for key in range(10_000) if first_draw(key) < 2**23)
    met = 2 * first_draw(key) + 1  # what the draw aims at where the weights sum up to 2**33
    rest = 2**33 - met
    csc = star_csc(3)
    csc.weight = torch.tensor([met, rest - rest % 2**20, rest % 2**20], dtype=torch.float32)
    assert csc.weight.double().sum() == 2**33
    config = SamplerConfig(fanouts=(1,), weighted=True, replace=True)
    sampled = on_cpu(pipeline(csc, config).sample(torch.tensor([0]), key))
    assert sampled.n_id.tolist() == [0, 2]
    assert_same(sampled, sample_batch(csc, config, torch.tensor([0]), key))


def first_draw(key):
    return int(rng.draws(rng.row_keys(key, 0, np.array([0])), 1)[0, 0])


@pytest.mark.parametrize("layout", ["subgraph", "blocks"])
def test_hops_whose_size_is_read_on_the_way_keep_their_bits(pipeline, monkeypatch, layout):
    monkeypatch.setattr("graphbraid.sampling.triton.sampler.UNREAD_EDGES", 20)
    csc = power_law_csc(60, 500)
    config = SamplerConfig(fanouts=(3, -1, 2), layout=layout, return_edge_id=True)
    schedule = SeedSchedule(seeds=seeds_of(60), batch_size=7)
    running = pipeline(csc, config)
    assert_epoch_is_the_references(running, csc, config, schedule)
    if layout == "blocks":
        hops = running.sample(seeds_of(60), 3).edges
        room = [hop.indices.untyped_storage().nbytes() for hop in hops]
        assert room == [4 * hop.indices.numel() for hop in hops]  # a bound would be more


@pytest.mark.slow
def test_the_table_is_used_again_without_being_cleared(pipeline):
    csc = power_law_csc(40, 300)
    config = SamplerConfig(fanouts=(3, 2))
    schedule = SeedSchedule(seeds=seeds_of(40, 30), batch_size=3)
    running = pipeline(csc, config)
    assert running._table.slots.nbytes == 8 * 40
    cleared = []
    running._table.slots.fill_ = cleared.append
    assert_epoch_is_the_references(running, csc, config, schedule)
    assert cleared == []
    del running._table.slots.fill_
    running._table.era = 3  # the last batches before it must be cleared, and those after
    assert_epoch_is_the_references(running, csc, config, schedule, epoch=3, first=2)


def test_a_batch_is_read_only_when_the_next_is_under_way(pipeline, monkeypatch):
    counts = importlib.import_module("graphbraid.sampling.triton.relabel").Counts
    events, send, read = [], counts.send, counts.read
    monkeypatch.setattr(counts, "send", lambda self: (events.append("send"), send(self)))
    monkeypatch.setattr(counts, "read", lambda self: (events.append("read"), read(self))[1])
    schedule = SeedSchedule(seeds=torch.arange(9), batch_size=3)
    running = pipeline(power_law_csc(20, 60), SamplerConfig(fanouts=(2, 2)))
    assert len(list(running.run(schedule, 0, 0, 3))) == 3
    assert events == ["send", "send", "read", "send", "read", "read"]


@pytest.mark.parametrize("fanout", [3, -1])
def test_the_parts_of_ranks_have_the_references_batches(pipeline, fanout):
    csc = power_law_csc(30, 200)
    whole = SeedSchedule(seeds=seeds_of(30)[:22], batch_size=10, shuffle=True, num_parts=3)
    running, config = pipeline(csc, SamplerConfig(fanouts=(fanout, 2))), SamplerConfig(fanouts=(fanout, 2))
    for part in range(3):
        assert_epoch_is_the_references(running, csc, config, dataclasses.replace(whole, part=part))


@pytest.mark.parametrize("shape", [(30, 1), pytest.param((30, 0), marks=pytest.mark.slow)])
@pytest.mark.parametrize("placement", [pytest.param("device", marks=pytest.mark.slow), "host"])
def test_arrays_may_lie_on_the_host(pipeline, placement, shape):
    csc = power_law_csc(30, 200, weighted=True)
    x = torch.randn(shape).to(torch.bfloat16)
    schedule = SeedSchedule(seeds=torch.arange(30), batch_size=16, shuffle=True)
    for replace in (False, True):
        config = SamplerConfig(fanouts=(3, 2), weighted=True, replace=replace)
        running = pipeline(csc, config, x, topology=placement, features=placement)
        assert_epoch_is_the_references(running, csc, config, schedule, x=x)


def test_stages_are_timed(pipeline):
    csc = power_law_csc(30, 200)
    running = pipeline(csc, SamplerConfig(fanouts=(2,)), torch.randn(30, 4))
    assert running.stage_seconds() == {"sample": 0.0, "gather": 0.0, "batches": 0.0}
    list(running.run(SeedSchedule(seeds=torch.arange(30), batch_size=10), 0, 0, 3))
    seconds = running.stage_seconds()
    assert seconds["batches"] == 3
    assert min(seconds.values()) > 0


def test_no_steps_give_no_batches(pipeline):
    running = pipeline(power_law_csc(5, 9), SamplerConfig(fanouts=(2,)))
    assert list(running.run(SeedSchedule(seeds=torch.arange(5), batch_size=2), 0, 2, 2)) == []


@pytest.mark.parametrize(
    ("options", "x", "error", "message"),
    [
        ({"topology": "hst"}, None, ConfigError, "topology must be one of 'device', 'host'; got 'hst'"),
        ({"features": "disk"}, None, ConfigError, "features must be one of 'device', 'host'; got 'disk'"),
        ({}, torch.ones(4, 2), DataError, r"one for each of 5 nodes; got shape \(4, 2\)"),
        ({}, torch.ones(2, 5).T, DataError, "x must be contiguous rows"),
    ],
)
def test_bad_arguments_say_why(pipeline, options, x, error, message):
    with pytest.raises(error, match=message):
        pipeline(power_law_csc(5, 9), SamplerConfig(fanouts=(2,)), x, **options)


def test_weighted_draws_need_weights(pipeline):
    with pytest.raises(DataError, match="weighted sampling needs edge weights; the graph has none"):
        pipeline(power_law_csc(5, 9), SamplerConfig(fanouts=(2,), weighted=True))


def test_a_batch_too_large_for_32_bit_positions_is_refused(pipeline, monkeypatch):
    monkeypatch.setattr("graphbraid.sampling.triton.relabel.MAX_POSITIONS", 30)
    running = pipeline(power_law_csc(50, 900), SamplerConfig(fanouts=(5, 5)))
    with pytest.raises(ResourceError, match="may hold 30 seeds and edges at most; this one has up to"):
        running.sample(torch.arange(10), 0)


def test_edges_and_nodes_of_a_csc_keep_their_meaning(pipeline):
    """Not against the reference: each edge is the graph's at its position, into the row's node."""
    csc: Csc = power_law_csc(80, 700)
    config = SamplerConfig(fanouts=(3, 3), return_edge_id=True)
    sampled = on_cpu(pipeline(csc, config).sample(torch.tensor([3, 1, 3]), 77))
    [edges] = sampled.edges
    row = torch.repeat_interleave(torch.arange(edges.indptr.numel() - 1), edges.indptr.diff())
    assert torch.equal(csc.indices[edges.positions].long(), sampled.n_id[edges.indices.long()])
    assert torch.equal(csc.destinations()[edges.positions].long(), sampled.n_id[row])
    new = edges.indices[edges.indices >= 3].tolist()
    assert list(dict.fromkeys(new)) == list(range(3, len(sampled.n_id)))


def test_what_a_dropped_launch_reads_is_freed_after_the_device_was_waited_for(pipeline, monkeypatch):
    found = []
    module = importlib.import_module("graphbraid.sampling.triton.sampler")
    monkeypatch.setattr(module, "_end_work", lambda device: found.append([ref() is None for ref in read]))
    running = pipeline(power_law_csc(20, 60), SamplerConfig(fanouts=(2,)), topology="host")
    read = [weakref.ref(running._topology), weakref.ref(running._table)]
    running.launch(SeedSchedule(seeds=torch.arange(4), batch_size=4), 0, 0)
    del running
    gc.collect()
    assert found == [[False, False]]


@pytest.mark.parametrize("reach", [1, 3])
def test_shares_of_whole_steps_are_those_of_the_cpu(pipeline, reach):
    csc, config = power_law_csc(60, 500), SamplerConfig(fanouts=(4, 3), return_edge_id=True)
    x = torch.randn(60, 3)
    running = pipeline(csc, config, x)
    cpu = make_pipeline(Graph(csc=csc), config, [x], num_threads=1, depth=1)
    for part in range(2):
        schedule = SeedSchedule(
            seeds=seeds_of(60), batch_size=6, shuffle=True, part=part, num_parts=2, reach=reach
        )
        runs = (one.run(schedule, 1, 0, schedule.num_steps) for one in (running, cpu))
        for ours, theirs in zip(*runs, strict=True):
            assert_same(on_cpu(ours.sampled), theirs.sampled)
            assert ours.input_id.cpu().equal(theirs.input_id)
            assert ours.x[0].cpu().equal(theirs.x[0])
