"""Whole-graph epochs predicted for many ranks: sums by hand, what must hold of any, and what ranks send."""

import copy
import dataclasses
import math

import pytest
import torch
from benchmarks.distributed.planted import planted
from hypothesis import given
from hypothesis import strategies as st
from tests.distributed.whole import as_processes, assert_as_one_rank, mixed, owners
from tests.fullgraph.graphs import NUM_NODES, make_graph
from tests.fullgraph.test_engine import MODELS
from tests.train.communities import community_graph

from graphbraid.distributed import Division, partition, report_of
from graphbraid.errors import ConfigError, DataError
from graphbraid.estimates.full_ranks import (
    LargestShare,
    RankStep,
    RankWork,
    degrees_of,
    forecast_full,
    largest_share,
    measured_shares,
    predict,
    random_share,
    share_of,
    step_of,
)
from graphbraid.estimates.ranks import Cluster, RankEpoch, Sending
from graphbraid.fullgraph import ALL, CompileOptions, Engine, Evidence, NotLoweredError, lower
from graphbraid.machine.hardware import Rates
from graphbraid.nn import make_model

DEGREES = [(8.0, 1.0)]
QUARTER = LargestShare(num_ranks=4, rows=0.25, edges=0.25, remote=0.25, halo=0.05)


def step_with(*works, row_bytes=(), sum_bytes=0, other_seconds=0.0):
    return RankStep(
        works=works,
        row_bytes=row_bytes,
        sum_bytes=sum_bytes,
        other_seconds=other_seconds,
        num_nodes=1000,
        num_edges=8000,
        held_bytes=260.0,
    )


@st.composite
def steps(draw):
    """A step of any operations over 1000 nodes and 8000 edges."""
    booleans = [st.booleans() for _ in RankWork._fields[1:]]
    works = draw(st.lists(st.builds(RankWork, st.floats(0, 1e-2), *booleans), max_size=6))
    row_bytes = tuple(draw(st.lists(st.sampled_from([64.0, 1024.0]), max_size=4)))
    sum_bytes, other = draw(st.integers(0, 1 << 16)), draw(st.floats(0, 1e-2))
    return step_with(*works, row_bytes=row_bytes, sum_bytes=sum_bytes, other_seconds=other)


# ---- the formula


@pytest.mark.parametrize(
    ("hiding", "byte_seconds", "seconds", "waiting"),
    [
        (None, 0.0, 5.0, 1.0),  # 2 messages of 1 s and 3 bytes of 1 s, beside 4 s
        (1.0, 0.0, 8.0, 4.0),  # only 1 s of the 4 hides them
        (None, 0.5, 5.5, 0.0),  # the cores move 3 bytes in 1.5 s, and compute in the rest
        (None, 2.0, 10.0, 0.0),  # the link is no faster than they are
        (0.0, 2.0, 10.0, 0.0),
    ],
)
def test_what_travels_is_hidden_by_what_is_computed_meanwhile(hiding, byte_seconds, seconds, waiting):
    cluster = Cluster(latency_seconds=1.0, bandwidth_bytes=1.0, byte_processor_seconds=byte_seconds)
    found = RankEpoch(num_ranks=2, memory_bytes=0)
    found.run(cluster, 4.0, Sending(2, 3.0), hiding=hiding, times=2)
    assert (found.seconds, found.waiting_seconds) == pytest.approx((2 * seconds, 2 * waiting))
    assert (found.compute_seconds, found.sent_bytes) == (8.0, 6.0)
    assert found.moving_seconds == 6 * byte_seconds


@given(step=steps(), num_ranks=st.integers(2, 2000), cost=st.sampled_from([0.0, 1e-10, 1e-8]))
def test_a_faster_network_never_makes_an_epoch_longer_and_no_overlap_beats_the_link(step, num_ranks, cost):
    slow = Cluster(bandwidth_bytes=1e8, byte_processor_seconds=cost, message_processor_seconds=cost)
    fast = dataclasses.replace(slow, bandwidth_bytes=1e10, latency_seconds=1e-6)
    share = share_of(num_ranks, [], DEGREES)
    before, after = (predict([step], share, cluster) for cluster in (slow, fast))
    assert after.seconds <= before.seconds * (1 + 1e-9)
    assert (after.sent_bytes, after.compute_seconds) == (before.sent_bytes, before.compute_seconds)
    for found in (before, after):
        busy = found.compute_seconds + found.moving_seconds
        assert found.seconds * (1 + 1e-9) >= max(busy, found.link_seconds)
        assert found.seconds <= (busy + found.link_seconds) * (1 + 1e-9)
        assert found.waiting_seconds >= 0


@given(step=steps(), latency=st.floats(0, 1))
def test_one_rank_neither_sends_nor_waits(step, latency):
    share = share_of(1, [], DEGREES)
    found = predict([step], share, Cluster(latency_seconds=latency, bandwidth_bytes=1.0))
    assert (found.link_seconds, found.sent_bytes, found.waiting_seconds) == (0.0, 0.0, 0.0)
    assert found.seconds == pytest.approx(step.seconds)


def test_a_step_by_hand():
    """A rank has a quarter of 8 s by rows, a fifth of these once more, and of 4 s by edges."""
    own, reader = RankWork(8.0, hides=True, again=True), RankWork(4.0, by_edges=True, hides=True, reads=True)
    cluster = Cluster(latency_seconds=0.0, bandwidth_bytes=10.0)  # 50 bytes take 5 s
    step = step_with(reader, own, row_bytes=(1.0,), other_seconds=0.5)
    found = predict([step], QUARTER, cluster)
    assert found.compute_seconds == pytest.approx(2.0 + 0.2 * 2.0 + 1.0 + 0.5)
    assert found.waiting_seconds == pytest.approx(5.0 - 2.0 - 0.75)
    before = predict([dataclasses.replace(step, works=(own, reader))], QUARTER, cluster)
    assert before.waiting_seconds == pytest.approx(5.0 - 0.75)  # nothing travels before
    assert before.compute_seconds == found.compute_seconds
    assert found.sent_bytes == pytest.approx(50.0)
    waits = reader._replace(hides=False)
    assert predict([step_with(waits, own, row_bytes=(1.0,))], QUARTER, cluster).waiting_seconds == 5.0 - 2.0
    # Forward, rows travel when all are there, and only sums of own rows hide that.
    forward = step_with(RankWork(8.0), reader, row_bytes=(1.0,))
    found = predict([forward], QUARTER, cluster)
    assert found.compute_seconds == pytest.approx(3.0)
    assert found.waiting_seconds == pytest.approx(5.0 - 0.75)
    # Rows of the halo that each rank computes itself; sums of 15 bytes by a ring of 4 ranks are 22.5 bytes.
    found = predict([step_with(RankWork(4.0, with_halo=True, hides=True), sum_bytes=15)], QUARTER, cluster)
    assert (found.compute_seconds, found.link_seconds) == pytest.approx((1.2, 2.25))
    assert (found.waiting_seconds, found.sent_bytes) == pytest.approx((2.25 - 1.2, 0.0))  # sent: of rows
    faster = dataclasses.replace(cluster, speed=2.0)
    assert predict([forward], QUARTER, faster).compute_seconds == pytest.approx(1.5)


def test_an_exchange_is_hidden_by_what_comes_before_the_next_one():
    """Two exchanges of 5 s: 8 s hide the first, nothing the second."""
    long, short = RankWork(32.0, hides=True, reads=1), RankWork(0.0, hides=True, reads=1)
    share = QUARTER._replace(remote=0.0)
    cluster = Cluster(latency_seconds=0.0, bandwidth_bytes=10.0)
    found = predict([step_with(long, short, row_bytes=(1.0, 1.0))], share, cluster)
    assert (found.link_seconds, found.waiting_seconds) == (pytest.approx(10.0), pytest.approx(5.0))


def test_ranks_choose_the_fastest_step():
    slow, fast = (step_with(RankWork(seconds)) for seconds in (8.0, 4.0))
    assert predict([slow, fast], QUARTER, Cluster(latency_seconds=0.0)).seconds == pytest.approx(1.0)


# ---- how graphs divide


def test_the_halo_of_random_owners_follows_from_the_degrees():
    graph = make_graph(seed=2)
    random = torch.Generator().manual_seed(0)
    rows = []
    for _ in range(300):
        parts = owners(torch.randint(4, (NUM_NODES,), generator=random), 4)
        rows.append(report_of(parts, Division(graph, parts).outlines).halo_rows)
    # Repeated edges and loops make the halo smaller than the degrees say, which bound it.
    distinct = torch.unique(torch.stack([graph.csc.destinations().long(), graph.csc.indices.long()]), dim=1)
    distinct = distinct[:, distinct[0] != distinct[1]]
    degrees = torch.bincount(distinct[1], minlength=NUM_NODES).tolist()
    expected = 4 * NUM_NODES * random_share(4, [(degree, 1 / NUM_NODES) for degree in degrees]).halo
    assert sum(rows) / len(rows) == pytest.approx(expected, rel=0.02)
    assert 4 * NUM_NODES * random_share(4, degrees_of(graph)).halo >= expected


def share_by_chance(num_ranks, halo_ratio, remote_ratio):
    """What a rank has of a graph that divides by these ratios to random owners."""
    chance = random_share(num_ranks, DEGREES)
    return chance._replace(halo=halo_ratio * chance.halo, remote=remote_ratio * chance.remote)


def test_measured_partitions_count_and_others_follow_them_but_never_beyond_chance():
    measured = [share_by_chance(2, 0.1, 0.1), share_by_chance(4, 0.2, 0.3)]
    assert share_of(4, measured, DEGREES) == measured[1]
    assert share_of(1024, measured, DEGREES) == pytest.approx(share_by_chance(1024, 0.2, 0.3))
    assert share_of(64, measured[:1], DEGREES) == pytest.approx(share_by_chance(64, 0.1, 0.1))
    assert share_of(8, [share_by_chance(4, 1.2, 1.2)], DEGREES) == pytest.approx(random_share(8, DEGREES))
    assert share_of(64, [], DEGREES) == random_share(64, DEGREES)


@given(ratios=st.lists(st.floats(0, 1), min_size=1, max_size=4), num_ranks=st.integers(1, 4096))
def test_a_share_is_a_share(ratios, num_ranks):
    measured = [share_by_chance(2 << i, ratio, ratio) for i, ratio in enumerate(ratios)]
    found = share_of(num_ranks, measured, DEGREES)
    assert 0 < found.rows <= 1
    assert 0 <= found.remote <= 1
    assert 0 <= found.halo <= 1
    assert num_ranks > 1 or found.halo == 0


def test_a_graph_is_divided_where_its_parts_are_large_enough_to_tell():
    assert measured_shares(make_graph(), [1, 4]) == []
    graph = community_graph(num_nodes=600)
    shares = measured_shares(graph, [1, 2, 8, 16, 1024])
    assert [share.num_ranks for share in shares] == [2, 8]
    for share in shares:
        assert 0 < share.halo < 1.2 * random_share(share.num_ranks, degrees_of(graph)).halo
        assert share.rows >= 1 / share.num_ranks
    report = report_of(*((parts := partition(graph, 8)), Division(graph, parts).outlines))
    assert largest_share(report) == shares[1]
    assert shares[1].rows * 600 == max(part.nodes for part in report.parts)


# ---- steps of models


def lowered_with_floor(model, graph, passes=ALL):
    lowered = lower(model, graph, "train", CompileOptions(passes=passes, rates=Rates()))
    engine = Engine(
        model, graph, graph.splits["train"], CompileOptions(passes=passes, evidence=Evidence(rates=Rates()))
    )
    return lowered, engine.floor()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gcn", "sage", "sage max", "gat", "gatv2", "batch norm, gelu"])
def test_predicted_bytes_are_those_that_ranks_send(name, monkeypatch):
    as_processes(monkeypatch)
    graph, parts = make_graph(train=60), mixed(2)
    torch.manual_seed(3)
    model, passes = MODELS[name](), ALL - {"prune"}
    runs = [
        assert_as_one_rank(copy.deepcopy(model), graph, parts, passes=passes, epochs=epochs)
        for epochs in (1, 2)
    ]
    sent = [
        many["engine"].ranks.comm.sent_bytes - few["engine"].ranks.comm.sent_bytes
        for few, many in zip(*runs, strict=True)
    ]
    report = report_of(parts, Division(graph, parts).outlines)
    # What both ranks receive, which is what both send.
    both = LargestShare(num_ranks=2, rows=0.5, edges=0.5, remote=0.5, halo=report.halo_rows / NUM_NODES)
    step = step_of(*lowered_with_floor(model, graph, passes))
    found = predict([step], both, Cluster())
    sums_of_norms = 0 if name != "batch norm, gelu" else sum(sent) - found.sent_bytes
    assert found.sent_bytes == pytest.approx(sum(sent) - sums_of_norms)
    assert found.sent_bytes > 0


@pytest.mark.parametrize("name", sorted(MODELS.keys() - {"mlp"}))
def test_every_gradient_is_summed_once(name):
    torch.manual_seed(3)
    lowered, floor = lowered_with_floor(MODELS[name](), make_graph())
    step = step_of(lowered, floor)
    learned = sum(p.numel() for p in lowered.program.parameters())
    assert step.sum_bytes == 4 * learned
    assert step.seconds == pytest.approx(floor.floor_seconds)


def test_bfloat16_on_the_wire_halves_the_bytes():
    lowered, floor = lowered_with_floor(MODELS["gcn"](), make_graph())
    full, half = (sum(step_of(lowered, floor, size).row_bytes) for size in (4, 2))
    assert half * 2 == full > 0


def test_a_model_that_reads_no_edges_is_refused():
    with pytest.raises(NotLoweredError, match="reads no edges"):
        step_of(*lowered_with_floor(MODELS["mlp"](), make_graph()))


# ---- forecasts


def test_an_epoch_is_predicted_on_each_number_of_ranks():
    graph = make_graph(symmetric=True, train=60)
    model = make_model("gcn", graph.num_features, graph.num_classes, hidden_channels=32)
    engine = Engine(model, graph, graph.splits["train"])
    fast = Cluster(bandwidth_bytes=1e13, latency_seconds=0.0)
    found = forecast_full(graph, [engine], counts=[1, 2, 64, 1024], cluster=fast, spare_bytes=1 << 60)
    assert [epoch.num_ranks for epoch in found.epochs] == [1, 2, 64, 1024]
    assert (found.epochs[0].waiting_seconds, found.speedup(found.epochs[0])) == (0.0, 1.0)
    assert found.to_json()["predictions"][1]["speedup"] == found.speedup(found.epochs[1])
    seconds, memory = zip(*((epoch.seconds, epoch.memory_bytes) for epoch in found.epochs), strict=True)
    assert list(seconds) == sorted(seconds, reverse=True)
    assert memory[-1] < memory[0]


def test_what_is_extended_beyond_the_partitions_has_a_range():
    """A partition of few parts says what part of random owners' rows travels; nothing says it stays so."""
    graph = planted(4096, 4, 0.02)
    engine = Engine(make_model("gcn", graph.num_features, graph.num_classes), graph, graph.splits["train"])
    slow = Cluster(bandwidth_bytes=1e7)
    found = forecast_full(graph, [engine], counts=[1, 2, 4, 64, 1024], cluster=slow, spare_bytes=1 << 60)
    one, two, four, *extended = found.epochs
    assert (one.most_seconds, two.most_seconds, four.most_seconds) == (None, None, None)
    assert all(epoch.most_seconds > 1.2 * epoch.seconds for epoch in extended[:1])
    assert all(epoch.most_seconds >= epoch.seconds for epoch in extended)
    assert all(epoch.waiting_seconds >= 0 for epoch in found.epochs)


def test_features_are_aggregated_once_where_ranks_have_the_memory_for_their_part():
    """By the memory of a rank, not by a fixed size."""
    once = dataclasses.replace(step_with(RankWork(1e-3)), constant_bytes=8000)
    every = step_with(RankWork(1e-2))
    for count, expected in ((1, every), (7, every), (8, once), (1024, once)):
        share = random_share(count, DEGREES)
        found = predict([once, every], share, Cluster(), spare_bytes=1000)
        assert found.seconds == predict([expected], share, Cluster()).seconds


def test_a_step_knows_what_it_computes_once():
    graph = make_graph(symmetric=True, train=60)
    model = make_model("gcn", graph.num_features, graph.num_classes)
    once = step_of(*lowered_with_floor(model, graph))
    every = step_of(*lowered_with_floor(model, graph, passes=ALL - {"hoist"}))
    assert (once.constant_bytes, every.constant_bytes) == (4 * graph.num_features * graph.num_nodes, 0)


# ---- clusters


def test_a_cluster_comes_back_from_its_file(tmp_path):
    cluster = Cluster(bandwidth_bytes=1e8, memory_bytes=1 << 34, byte_processor_seconds=1e-9)
    cluster.save(tmp_path / "cluster.json")
    assert Cluster.load(tmp_path / "cluster.json") == cluster


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("bandwidth_bytes", 0.0, "a positive number"),
        ("bandwidth_bytes", math.inf, "a positive number"),
        ("latency_seconds", -1.0, "0 or more"),
        ("byte_processor_seconds", -1.0, "0 or more"),
        ("message_processor_seconds", -1.0, "0 or more"),
        ("speed", math.nan, "a positive number"),
        ("memory_bytes", 0, "a positive number"),
    ],
)
def test_a_broken_cluster_is_refused(field, value, says):
    with pytest.raises(ConfigError, match=f"{field} must be {says}"):
        Cluster(**{field: value})


def test_a_machine_is_no_cluster(tmp_path):
    (tmp_path / "a.json").write_text('{"graphbraid": "machine", "cores": 4}')
    with pytest.raises(DataError, match="no cluster: it holds a machine"):
        Cluster.load(tmp_path / "a.json")
