"""Epochs predicted for many ranks: what must hold of any of them, and what is counted beside what runs."""

import copy
import dataclasses
import functools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.distributed.whole import as_processes, assert_as_one_rank, owners
from tests.fullgraph.graphs import NUM_NODES, make_graph
from tests.fullgraph.test_engine import MODELS

from graphbraid import native
from graphbraid.distributed import Division, report_of
from graphbraid.errors import ConfigError, DataError
from graphbraid.fullgraph import ALL, CompileOptions, Engine, Evidence, NotLoweredError, lower
from graphbraid.fullgraph.scale.cluster import Cluster
from graphbraid.fullgraph.scale.division import RANDOM, Degrees, LargestShare, Law
from graphbraid.fullgraph.scale.forecast import forecast_at_hand, forecast_by_size, measured_law
from graphbraid.fullgraph.scale.phases import Phase, Step, step_of
from graphbraid.fullgraph.scale.published import PUBLISHED, GraphSize, miniature
from graphbraid.fullgraph.scale.simulate import simulate
from graphbraid.machine.rates import Rates
from graphbraid.nn import make_model

SIZES = {"num_nodes": 1000, "num_edges": 8000, "num_features": 16}
DEGREES = Degrees.mean_of(1000, 8000)
MOVING = st.sampled_from([0.0, 1e-10, 1e-8])


def share(num_ranks):
    return Law().share(num_ranks, DEGREES, 1000)


@st.composite
def steps(draw):
    """A step of any phases over 1000 nodes and 8000 edges."""
    time = st.floats(0, 1e-2)
    phases = [
        Phase(
            name=str(i),
            seconds=draw(time),
            by_edges=draw(st.booleans()),
            with_halo=draw(st.booleans()),
            backward=draw(st.booleans()),
            travels=draw(st.sampled_from([0.0, 64.0, 1024.0])),
            overlaps=draw(st.booleans()),
            halo_first=draw(st.booleans()),
            departs=draw(st.sampled_from([0.0, 64.0])),
            early_seconds=draw(time),
            is_covered=draw(st.booleans()),
            summed_bytes=draw(st.sampled_from([0, 4096])),
        )
        for i in range(draw(st.integers(1, 8)))
    ]
    return Step(
        phases=tuple(phases), other_seconds=draw(time), num_nodes=1000, num_edges=8000, row_bytes=256.0
    )


# ---- what holds of any step


@given(
    step=steps(),
    num_ranks=st.integers(2, 2000),
    bandwidth=st.floats(1e6, 1e11),
    faster=st.floats(1, 1e3),
    moving=MOVING,
)
def test_a_faster_network_never_makes_an_epoch_longer(step, num_ranks, bandwidth, faster, moving):
    slow = Cluster(bandwidth_bytes=bandwidth, byte_processor_seconds=moving)
    fast = dataclasses.replace(
        slow, bandwidth_bytes=bandwidth * faster, latency_seconds=slow.latency_seconds / faster
    )
    before, after = (simulate(step, share(num_ranks), c, **SIZES) for c in (slow, fast))
    assert after.seconds <= before.seconds * (1 + 1e-9)
    assert after.compute_seconds == before.compute_seconds
    assert after.moving_seconds == pytest.approx(before.moving_seconds)
    assert after.sent_bytes == before.sent_bytes


@given(step=steps(), latency=st.floats(0, 1))
def test_one_rank_neither_sends_nor_waits(step, latency):
    found = simulate(step, share(1), Cluster(latency_seconds=latency, bandwidth_bytes=1.0), **SIZES)
    assert (found.link_seconds, found.sent_bytes, found.waiting_seconds) == (0.0, 0.0, 0.0)
    assert found.seconds == pytest.approx(step.seconds)


@given(step=steps(), num_ranks=st.integers(2, 64), moving=MOVING)
def test_overlap_lies_between_the_bound_and_one_thing_after_the_other(step, num_ranks, moving):
    cluster = Cluster(bandwidth_bytes=1e8, byte_processor_seconds=moving)
    found = simulate(step, share(num_ranks), cluster, **SIZES)
    blocking = simulate(step, share(num_ranks), cluster, overlaps=False, **SIZES)
    assert found.bound_seconds * (1 - 1e-9) <= found.seconds <= blocking.seconds * (1 + 1e-9)
    assert blocking.seconds == pytest.approx(blocking.compute_seconds + blocking.link_seconds)


def test_a_rank_twice_as_fast_computes_in_half_the_time():
    phase = Phase(name="a", seconds=1.0)
    step = Step(phases=(phase,), other_seconds=0.5, num_nodes=1000, num_edges=8000, row_bytes=8.0)
    assert simulate(step, share(4), Cluster(speed=2.0), **SIZES).compute_seconds == pytest.approx(0.375)


def test_own_sums_hide_what_travels_and_the_halos_do_not():
    """Times by hand: a second of sums of which a quarter is the halo's, and half a second on the link."""
    step = Step(
        phases=(Phase(name="sum", seconds=4.0, by_edges=True, travels=1.0, overlaps=True),),
        other_seconds=0.0,
        num_nodes=100,
        num_edges=100,
        row_bytes=0.0,
    )
    quarter = LargestShare(num_ranks=4, rows=0.25, edges=0.25, remote=0.25, halo=0.5)
    sizes = {"num_nodes": 100, "num_edges": 100, "num_features": 1}
    for seconds, total in ((0.5, 1.0), (2.0, 2.25)):
        cluster = Cluster(latency_seconds=0.0, bandwidth_bytes=50 / seconds)
        assert simulate(step, quarter, cluster, **sizes).seconds == pytest.approx(total)
    back = dataclasses.replace(step, phases=(dataclasses.replace(step.phases[0], backward=True),))
    cluster = Cluster(latency_seconds=0.0, bandwidth_bytes=50 / 2.0)
    assert simulate(back, quarter, cluster, **sizes).seconds == pytest.approx(2.25)


QUARTER = LargestShare(num_ranks=4, rows=0.25, edges=0.25, remote=0.25, halo=0.5)
SUM = Phase(name="sum", seconds=4.0, by_edges=True, travels=1.0, overlaps=True)


def of_a_sum(link_seconds, *, backward=False, **cluster):
    """A second of sums, of which a quarter is the halo's 50 bytes', for which the link takes so long."""
    size = {"num_nodes": 100, "num_edges": 100}
    phases = (dataclasses.replace(SUM, backward=backward),)
    step = Step(phases=phases, other_seconds=0.0, row_bytes=0.0, **size)
    network = Cluster(latency_seconds=0.0, bandwidth_bytes=50 / link_seconds, **cluster)
    return simulate(step, QUARTER, network, num_features=1, **size)


@pytest.mark.parametrize(("link_seconds", "total"), [(0.5, 1.25), (2.0, 2.25), (1e-6, 1.25)])
def test_moving_bytes_takes_cores_from_computing_but_not_from_waiting(link_seconds, total):
    """Bytes cost a quarter of a second of the cores, which a link that is faster than these waits for."""
    found = of_a_sum(link_seconds, byte_processor_seconds=0.005)
    assert found.seconds == pytest.approx(total)
    assert (found.compute_seconds, found.moving_seconds) == pytest.approx((1.0, 0.25))
    assert found.link_seconds == pytest.approx(max(link_seconds, 0.25))
    assert found.bound_seconds == pytest.approx(max(link_seconds, 1.25))
    assert found.waiting_seconds == pytest.approx(total - 1.25)


def test_messages_take_cores_from_computing_as_bytes_do():
    """Each of four ranks sends three messages, of a twelfth of a second."""
    found = of_a_sum(0.5, message_processor_seconds=1 / 12)
    assert (found.seconds, found.moving_seconds) == pytest.approx((1.25, 0.25))


@pytest.mark.parametrize("name", ["byte_processor_seconds", "message_processor_seconds"])
def test_a_cost_below_nothing_is_refused(name):
    with pytest.raises(ConfigError, match=f"{name} must be 0 or more; got -1.0"):
        Cluster(**{name: -1.0})


@pytest.mark.parametrize(("link_seconds", "total"), [(0.5, 1.0), (2.0, 2.25)])
def test_maxima_and_gat_go_back_while_whole_gradients_travel_and_then_wait(link_seconds, total):
    """A quarter of a second for the halo's gradients; three quarters for own rows' while these travel."""
    size = {"num_nodes": 100, "num_edges": 100}
    back = dataclasses.replace(SUM, backward=True, overlaps=False, halo_first=True)
    after = Phase(name="linear", seconds=4.0, backward=True)
    for phases, seconds in (((back,), total), ((back, after), total + 1.0)):
        step = Step(phases=phases, other_seconds=0.0, row_bytes=0.0, **size)
        cluster = Cluster(latency_seconds=0.0, bandwidth_bytes=50 / link_seconds)
        found = simulate(step, QUARTER, cluster, num_features=1, **size)
        assert found.seconds == pytest.approx(seconds)


def test_rows_that_are_sent_go_first_and_own_gradients_cover_the_way_back():
    """Times by hand, each of 4 s over all rows, of which a rank has a quarter and sends a quarter of that."""
    size = {"num_nodes": 100, "num_edges": 100}
    sixteenth = LargestShare(num_ranks=4, rows=0.25, edges=0.25, remote=0.0, halo=0.0625)
    linear = Phase(name="linear", seconds=4.0, departs=1.0, early_seconds=4.0)
    summed = Phase(name="sum", seconds=4.0, by_edges=True, travels=1.0, overlaps=True)
    forward = Step(phases=(linear, summed), other_seconds=0.0, row_bytes=0.0, **size)
    back = dataclasses.replace(summed, backward=True)
    covered = Phase(name="linear", seconds=4.0, backward=True, is_covered=True)
    backward = Step(phases=(back, covered), other_seconds=0.0, row_bytes=0.0, **size)
    # Rows to send take 0.25 s and the link, beside 2 s of products and sums, 1 or 3 s; gradients alike.
    for seconds, total in ((1.0, 2.25), (3.0, 3.25)):
        cluster = Cluster(latency_seconds=0.0, bandwidth_bytes=6.25 / seconds)
        for step in (forward, backward):
            found = simulate(step, sixteenth, cluster, num_features=1, **size)
            assert found.seconds == pytest.approx(total)
            assert found.compute_seconds == pytest.approx(2.25)
    # Where most rows are sent, they wait for all.
    most = dataclasses.replace(sixteenth, halo=0.2)
    cluster = Cluster(latency_seconds=0.0, bandwidth_bytes=10.0)
    assert simulate(forward, most, cluster, num_features=1, **size).seconds == pytest.approx(1.0 + 2.0)


# ---- how graphs divide


def test_the_halo_of_random_owners_follows_from_the_degrees():
    graph = make_graph(seed=2)
    degrees = Degrees.of(graph.csc.indices, NUM_NODES)
    random = torch.Generator().manual_seed(0)
    rows = []
    for _ in range(300):
        part_of = torch.randint(4, (NUM_NODES,), generator=random)
        rows.append(report_of(owners(part_of, 4), Division(graph, owners(part_of, 4)).outlines).halo_rows)
    # Repeated edges and loops make the halo smaller than the degrees say, which bound it.
    distinct = torch.unique(torch.stack([graph.csc.destinations().long(), graph.csc.indices.long()]), dim=1)
    distinct = distinct[:, distinct[0] != distinct[1]]
    expected = Degrees.of(distinct[1], NUM_NODES).random_halo(4)
    assert sum(rows) / len(rows) == pytest.approx(expected, rel=0.02)
    assert degrees.random_halo(4) >= expected


def test_equal_degrees_give_the_largest_halo():
    graph = make_graph(seed=2)
    degrees = Degrees.of(graph.csc.indices, NUM_NODES)
    for parts in (2, 8, 64):
        assert degrees.random_halo(parts) <= Degrees.mean_of(NUM_NODES, graph.num_edges).random_halo(parts)


def point(num_parts, ratio):
    return dataclasses.replace(RANDOM, num_parts=num_parts, halo_ratio=ratio, cut_ratio=ratio)


def test_the_law_goes_through_what_was_measured_and_never_beyond_chance():
    law = Law(points=(point(2, 0.1), point(4, 0.2), point(8, 0.4)))
    assert law.at(4) == (point(4, 0.2), True)
    assert law.at(16)[0].halo_ratio == pytest.approx(0.8)
    assert law.at(1024)[0].halo_ratio == 1.0
    assert law.at(16)[1] is False
    flat = Law(points=(point(4, 0.3),))
    assert flat.at(64)[0].halo_ratio == pytest.approx(0.3)
    assert "power 1.00" in str(law)


@given(ratios=st.lists(st.floats(0, 1), min_size=1, max_size=4), num_ranks=st.integers(1, 4096))
def test_a_share_is_a_share(ratios, num_ranks):
    law = Law(points=tuple(point(2 << i, ratio) for i, ratio in enumerate(ratios)))
    found = law.share(num_ranks, DEGREES, 1000)
    assert 0 < found.rows <= 1
    assert 0 <= found.remote <= 1
    assert 0 <= found.halo <= 1000
    assert (found.halo == 0) == (num_ranks == 1 or math.isclose(found.halo, 0))


# ---- steps of models


def measured(model, graph, passes=ALL):
    lowered = lower(model, graph, "train", CompileOptions(passes=passes, rates=Rates()))
    nodes = graph.splits["train"]
    engine = Engine(model, graph, nodes, passes=passes, evidence=Evidence(rates=Rates()))
    return lowered, engine.floor()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gcn", "sage", "sage max", "gat", "gatv2", "batch norm, gelu"])
def test_predicted_bytes_are_those_that_ranks_send(name, monkeypatch):
    as_processes(monkeypatch)
    graph, parts = make_graph(train=60), owners(torch.arange(NUM_NODES) * 7 % 11 % 2, 2)
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
    step = step_of(*measured(model, graph, passes))
    # What both ranks receive, which is what both send.
    both = LargestShare(num_ranks=2, rows=0.5, edges=0.5, remote=0.5, halo=report.halo_rows / NUM_NODES)
    sizes = {"num_nodes": NUM_NODES, "num_edges": graph.num_edges, "num_features": graph.num_features}
    found = simulate(step, both, Cluster(), **sizes)
    splits = [bool(rank["engine"].runner._train._plan.exchanges.source_splits) for rank in runs[0]]
    if native.kernels() is not None or name != "gat":  # the twin of GAT's kernel looks at all edges
        assert splits == [any(phase.halo_first for phase in step.phases)] * 2
    sums_of_norms = 0 if name != "batch norm, gelu" else sum(sent) - found.sent_bytes
    assert found.sent_bytes == pytest.approx(sum(sent) - sums_of_norms)
    assert found.sent_bytes > 0


@pytest.mark.parametrize("name", sorted(MODELS.keys() - {"mlp"}))
def test_every_gradient_is_summed_once(name):
    torch.manual_seed(3)
    model = MODELS[name]()
    step = step_of(*measured(model, make_graph()))
    learned = sum(p.numel() for p in lower(model, make_graph()).program.parameters())
    assert sum(phase.summed_bytes for phase in step.phases) == 4 * learned
    assert all(phase.backward for phase in step.phases if phase.summed_bytes)


def test_a_first_layer_goes_back_while_gradients_travel():
    graph = make_graph(symmetric=True, train=NUM_NODES)
    phases = step_of(*measured(MODELS["gcn without loops"](), graph)).phases
    covered = [phase for phase in phases if phase.is_covered]
    assert len(covered) == 2 and phases[-1] is covered[-1]


def test_bfloat16_on_the_wire_halves_the_bytes():
    lowered, floor = measured(MODELS["gcn"](), make_graph())
    full, half = (step_of(lowered, floor, wire_bytes=size) for size in (4, 2))
    assert sum(p.travels for p in half.phases) * 2 == sum(p.travels for p in full.phases)


def test_a_model_that_reads_no_edges_is_refused():
    with pytest.raises(NotLoweredError, match="reads no edges"):
        step_of(*measured(MODELS["mlp"](), make_graph()))


# ---- forecasts


def test_a_forecast_of_the_graph_at_hand():
    graph = make_graph(symmetric=True, train=60)
    law, degrees = measured_law(graph, [1, 2, 8])
    assert law.points == (RANDOM,) or {p.num_parts for p in law.points} <= {2}
    lowered, floor = measured(MODELS["gcn"](), graph)
    found = forecast_at_hand(
        graph, lowered, floor, counts=[1, 2, 8], cluster=Cluster(), division=(law, degrees)
    )
    assert [p.num_ranks for p in found.predictions] == [1, 2, 8]
    assert found.alone.waiting_seconds == 0
    assert found.speedup(found.alone) == 1
    said = found.to_json()
    assert said["predictions"][1]["bound_seconds"] <= said["predictions"][1]["seconds"]


@pytest.mark.parametrize("kind", ["gcn", "sage", "gat"])
def test_the_published_graphs_gain_by_ranks_on_a_fast_network(kind):
    make = functools.partial(make_model, kind, hidden_channels=32)
    fast = Cluster(bandwidth_bytes=1e13, latency_seconds=0.0)
    size = PUBLISHED[0]
    low = lambda model, graph, options: lower(model, graph, "train", options)  # noqa: E731
    given = {"rates": Rates(), "counts": [1, 2, 64, 1024], "cluster": fast, "law": Law()}
    found = forecast_by_size(size, make, low, **given)
    seconds = [p.seconds for p in found.predictions]
    assert seconds == sorted(seconds, reverse=True)
    assert found.speedup(found.predictions[-1]) > 100
    assert forecast_by_size(size, make, low, **given) == found


def test_a_miniature_has_the_sizes_of_what_it_stands_for():
    for size in PUBLISHED:
        graph = miniature(size, 512)
        assert graph.num_edges / graph.num_nodes == pytest.approx(size.mean_degree, rel=1e-2)
        assert (graph.num_features, graph.num_nodes) == (size.num_features, 512)
    tiny = GraphSize(name="tiny", num_nodes=10, num_edges=20, num_features=3, num_classes=2, num_train=1)
    assert miniature(tiny).num_nodes == 10


# ---- clusters


def test_a_cluster_comes_back_from_its_file(tmp_path):
    cluster = Cluster(bandwidth_bytes=1e8, memory_bytes=1 << 34, rates=Rates())
    cluster.save(tmp_path / "cluster.json")
    assert Cluster.load(tmp_path / "cluster.json") == cluster


@pytest.mark.parametrize(
    ("field", "value"),
    [("bandwidth_bytes", 0.0), ("bandwidth_bytes", math.inf), ("latency_seconds", -1.0), ("speed", math.nan)],
)
def test_a_broken_cluster_is_refused(field, value):
    with pytest.raises(ConfigError, match=field):
        Cluster(**{field: value})


def test_a_machine_is_no_cluster(tmp_path):
    (tmp_path / "a.json").write_text('{"graphbraid": "machine", "cores": 4}')
    with pytest.raises(DataError, match="no cluster: it holds a machine"):
        Cluster.load(tmp_path / "a.json")
