"""Rows of level 0 come from their owners, or each rank computes them: by what either takes, to one result."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.distributed.test_rank_part import assert_parts_suffice
from tests.distributed.test_whole_graph import DIVISIBLE, QUICK, NormFirst, divided_graphs, make_model
from tests.distributed.threads import run_threads
from tests.distributed.whole import assert_as_one_rank, mixed
from tests.fullgraph.fake_device import FakeDevice
from tests.fullgraph.graphs import NUM_NODES, make_graph
from tests.suites import few_of

from graphbraid.estimates.full_ranks import LargestShare, predict, steps_of
from graphbraid.estimates.ranks import Cluster
from graphbraid.fullgraph import ALL, CompileOptions, Engine, Evidence, Ranks, lower
from graphbraid.fullgraph.lowering.costs import Link
from graphbraid.fullgraph.program import Exchange
from graphbraid.fullgraph.ranks import halo as links
from graphbraid.fullgraph.ranks import ranks as of_ranks
from graphbraid.fullgraph.ranks.distribute import divided_program
from graphbraid.fullgraph.ranks.halo import (
    NAME,
    HaloSeconds,
    halo_seconds,
    must_travel,
    steady_link,
    values_that_may_travel,
)
from graphbraid.machine.hardware import Rates

COMPUTES = ALL - {"hoist", "order"}
"""Passes that leave level 0 something to compute in each step: linear maps stay before aggregations."""
FAST, SLOW = (Link(message_seconds=1e-9, byte_seconds=1e-15), Link(message_seconds=1.0, byte_seconds=1.0))
RATES = dataclasses.replace(Rates(), multiply_flops=1e8)
"""Rates of a machine on which even the few columns of these graphs are dear to multiply."""
ALWAYS = HaloSeconds(computed=1.0, travelling=1e-3)


pytestmark = pytest.mark.usefixtures("threads")


@pytest.fixture
def travels(monkeypatch):
    """Rows travel wherever they may, though the graphs of tests are too small for that to pay."""
    monkeypatch.setattr(of_ranks, "halo_seconds", lambda *_: ALWAYS)


def decision_of(engine):
    found = [decision for decision in engine.runner.lowered.program.decisions if decision.name == NAME]
    assert len(found) <= 1
    return found[0] if found else None


def lowered_of(name, passes=COMPUTES):
    return lower(make_model(name), make_graph(), "train", CompileOptions(rates=RATES, passes=passes))


def floor_of(lowered):
    """The floor of the step that one rank runs."""
    evidence = Evidence(rates=RATES)
    engine = Engine(
        make_model("gcn"),
        lowered.graph,
        "train",
        CompileOptions(passes=lowered.options.passes, evidence=evidence),
    )
    return engine.floor()


# ---- equal results


@pytest.mark.usefixtures("travels")
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", few_of(DIVISIBLE, QUICK))
def test_losses_of_every_model_are_those_of_one_rank_where_rows_travel(name, size):
    model, graph = make_model(name, dropout=0.5), make_graph()
    found = assert_as_one_rank(model, graph, mixed(size), passes=COMPUTES, epochs=6)
    program = lowered_of(name).program
    for rank in found:
        decision = decision_of(rank["engine"])
        assert (decision is not None) == (bool(values_that_may_travel(program)) and not must_travel(program))
        if decision is not None:
            first = next(op for op in rank["engine"].program.ops if isinstance(op, Exchange))
            assert first.inputs[0] in decision.what


@pytest.mark.slow
@pytest.mark.usefixtures("travels")
@given(divided=divided_graphs(), name=st.sampled_from(DIVISIBLE))
def test_so_they_are_on_any_graph_divided_in_any_way(divided, name):
    graph, parts = divided
    assert_as_one_rank(make_model(name), graph, parts, passes=COMPUTES, epochs=3)


@pytest.mark.usefixtures("travels")
@pytest.mark.parametrize("name", ["gcn", "gat"])
def test_so_they_are_where_a_rank_holds_its_own_part_alone(name, tmp_path):
    found = assert_parts_suffice(
        make_model(name), make_graph(), mixed(3), tmp_path / "parts", passes=COMPUTES, epochs=4
    )
    decisions = [decision_of(rank["engine"]) for rank in found]
    assert all(decision is not None and decision.taken for decision in decisions)


@pytest.mark.usefixtures("travels")
def test_a_rank_computes_fewer_rows_where_they_travel():
    graph, parts = make_graph(), mixed(2)
    both = [
        assert_as_one_rank(make_model("gcn"), graph, parts, passes=passes, epochs=1)
        for passes in (COMPUTES, COMPUTES - {NAME})
    ]
    travelling, computed = ([rank["engine"].runner.lowered.num_rows(0) for rank in found] for found in both)
    assert sum(travelling) <= NUM_NODES < sum(computed)


# ---- decisions


def test_what_takes_less_by_the_link_is_chosen():
    for name in ("gcn", "gatv2", "gat"):
        lowered = lowered_of(name)
        rows, program = 10**6, lowered.program
        fast, slow = (halo_seconds(program, lowered.costs, link, rows) for link in (FAST, SLOW))
        assert fast.computed == slow.computed > 0
        assert fast.should_travel
        assert not slow.should_travel


@given(st.integers(1, 10**8), st.integers(1, 10**8), st.sampled_from(["gcn", "gat", "gatv2"]))
def test_seconds_grow_with_the_rows(few, many, name):
    lowered = lowered_of(name)
    link = Link(message_seconds=1e-4, byte_seconds=1e-9)
    less, more = (halo_seconds(lowered.program, lowered.costs, link, n) for n in sorted((few, many)))
    assert less.computed <= more.computed
    assert less.travelling <= more.travelling


def test_seconds_are_those_of_the_products_and_of_the_bytes():
    """The first layer of a GCN: forward and for the gradient of its weight, a product of each row."""
    lowered = lowered_of("gcn", COMPUTES - {"input_path"})
    (value,) = values_that_may_travel(lowered.program)
    width, rows, rates = lowered.program.width(value), 5000, lowered.costs.rates
    link = Link(message_seconds=1e-3, byte_seconds=1e-8)
    found = halo_seconds(lowered.program, lowered.costs, link, rows)
    assert found.computed == 2 * rates.multiply_seconds(rows, lowered.graph.num_features, width)
    moved = 2 * 4 * rows * width
    assert found.travelling == pytest.approx(2 * 1e-3 + moved * (1e-8 + 4 / rates.stream_bytes))


def test_noise_does_not_decide():
    assert not HaloSeconds(computed=1.2, travelling=1.0).should_travel
    assert not HaloSeconds(computed=1e-5, travelling=1e-6).should_travel  # of a small graph
    assert HaloSeconds(computed=1.3, travelling=1.0).should_travel


def test_what_is_the_same_in_every_step_does_not_travel():
    lowered = lower(make_model("gcn"), make_graph(), "train", CompileOptions(rates=Rates()))
    assert values_that_may_travel(lowered.program) == []  # aggregated features are kept


def test_rows_that_must_travel_are_not_weighed():
    pytest.importorskip("torch_geometric")
    torch.manual_seed(0)
    graph = make_graph(train=60)
    found = assert_as_one_rank(NormFirst(), graph, mixed(2), epochs=2)
    assert decision_of(found[0]["engine"]) is None


@pytest.mark.usefixtures("travels")
def test_the_pass_can_be_left_out():
    found = assert_as_one_rank(make_model("gcn"), make_graph(), mixed(2), passes=COMPUTES - {NAME}, epochs=2)
    assert all(decision_of(rank["engine"]) is None for rank in found)
    assert found[0]["engine"].ranks.link is None  # the link was not measured


@pytest.mark.usefixtures("travels")
def test_on_a_device_rows_are_computed():
    found = assert_as_one_rank(
        make_model("gcn"), make_graph(), mixed(2), passes=COMPUTES, epochs=2, device=FakeDevice
    )
    assert all(decision_of(rank["engine"]) is None for rank in found)


# ---- the link


def test_a_link_measured_again_is_the_one_measured_first(monkeypatch, tmp_path):
    monkeypatch.setenv("GRAPHBRAID_CACHE", str(tmp_path))
    told = iter([1e-9, 1.9e-9, 5e-9])

    def links_of(comm):
        return steady_link(comm).byte_seconds

    for expected in (1e-9, 1e-9, 5e-9):  # twice as slow may be noise, and five times is another link
        measured_now = Link(message_seconds=1e-5, byte_seconds=next(told))
        monkeypatch.setattr(links, "measured_link", lambda _, now=measured_now: now)
        assert run_threads(2, links_of) == [expected, expected]


def test_a_damaged_measurement_is_made_again(monkeypatch, caplog, tmp_path):
    monkeypatch.setenv("GRAPHBRAID_CACHE", str(tmp_path))
    monkeypatch.setattr(links, "measured_link", lambda _: FAST)
    run_threads(2, steady_link)
    (file,) = links._KEPT.file("").parent.glob("*.json")
    file.write_text(file.read_text().replace("byte_seconds", "byte_hours"))
    assert run_threads(2, steady_link) == [FAST, FAST]
    assert "measured again" in caplog.text


def test_a_run_that_is_continued_decides_by_the_link_it_began_with(monkeypatch, tmp_path):
    """Rates at which computing takes seconds: a fast link lets rows travel, and the evidence remembers it."""
    monkeypatch.setenv("GRAPHBRAID_CACHE", str(tmp_path))
    rates = dataclasses.replace(Rates(), multiply_flops=1e3)
    graph, parts = make_graph(), mixed(2)
    nodes, models = graph.splits["train"], [make_model("gcn", dropout=0.0) for _ in range(2)]

    def run(evidence):
        def of_rank(comm):
            ranks = Ranks(comm=comm, partition=parts)
            known = evidence if comm.rank == 0 or evidence.link is None else Evidence(rates=rates)
            passes = COMPUTES - {"input_path"}
            engine = Engine(
                models[comm.rank], graph, nodes, CompileOptions(passes=passes, evidence=known), ranks=ranks
            )
            engine()
            return decision_of(engine).taken, engine.evidence

        return run_threads(2, of_rank)

    def measure(link):
        monkeypatch.setattr(links, "measured_link", lambda _: link)

    measure(FAST)
    begun = run(Evidence(rates=rates))
    measure(SLOW)
    assert [taken for taken, _ in run(Evidence(rates=rates))] == [False, False]
    continued = run(begun[0][1])  # that of rank 0 counts
    assert [taken for taken, _ in begun] == [taken for taken, _ in continued] == [True, True]


# ---- predictions


@pytest.mark.parametrize(("bandwidth", "travel"), [(1e15, True), (1.0, False)])
def test_a_prediction_chooses_what_takes_less(bandwidth, travel):
    lowered = lowered_of("gcn")
    steps = steps_of(lowered, floor_of(lowered))
    assert len(steps) == 2
    sent = [sum(step.row_bytes) for step in steps]
    assert sent[1] > sent[0]
    cluster = Cluster(latency_seconds=0.0, bandwidth_bytes=bandwidth)
    share = LargestShare(num_ranks=2, rows=0.5, edges=0.5, remote=0.5, halo=0.4)
    assert predict(steps, share, cluster).sent_bytes == sent[travel] * 0.4 * lowered.graph.num_nodes


def test_a_prediction_without_the_pass_computes_them():
    lowered = lowered_of("gcn", COMPUTES - {NAME})
    (step,) = steps_of(lowered, floor_of(lowered))
    assert divided_program(lowered.program)[1]
    assert any(work.with_halo for work in step.works)
