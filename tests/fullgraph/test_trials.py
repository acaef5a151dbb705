"""Trials: where rates leave choices close, on part of the operands, kept, and the same bits by evidence."""

import dataclasses
import json

import pytest
import torch
from tests.extras import NO_KERNELS
from tests.fullgraph.graphs import CHANNELS, CLASSES, NUM_NODES, make_graph

import graphbraid
from graphbraid import native
from graphbraid import nn as gnn
from graphbraid.errors import DataError
from graphbraid.fullgraph import Evidence
from graphbraid.fullgraph.device import HOST
from graphbraid.fullgraph.lowering import costs as costs_module
from graphbraid.fullgraph.lowering.costs import CLOSE, cost_model
from graphbraid.fullgraph.lowering.passes import choose_input_path, hoist, order
from graphbraid.fullgraph.measured import rates as kept_rates
from graphbraid.fullgraph.measured import trials
from graphbraid.fullgraph.measured.rates import MeasuredRates
from graphbraid.fullgraph.measured.trials import LEAST_ROWS, Trials, kept_trials
from graphbraid.fullgraph.reading.read import read_model
from graphbraid.machine.rates import Rates

BY_RATES = Rates(**{name: rate / 1e4 for name, rate in dataclasses.asdict(Rates()).items()})
"""Rates of a machine on which even these graphs are worth a trial."""
DENSE = BY_RATES.multiply_seconds(NUM_NODES, CHANNELS, 8)
DENSITY = 0.4


def sparse_rates(times):
    """Rates by which the sparse path takes so many times what the dense one does."""
    values = NUM_NODES * CHANNELS * DENSITY
    return dataclasses.replace(BY_RATES, sparse_values=values / (times * DENSE))


class Clock:
    """Gives seconds by what a trial runs, in turn, and counts."""

    def __init__(self, *seconds):
        self.seconds, self.calls = list(seconds), 0

    def __call__(self, run):
        run()
        self.calls += 1
        return self.seconds[(self.calls - 1) % len(self.seconds)]


def costs(graph, rates, clock, *, density=DENSITY, **changes):
    rows, edges = (NUM_NODES,) * 3, (graph.csc.num_edges,) * 2
    made = cost_model(graph, rates, rows=rows, edges=edges, hoist_bytes=0)
    tried = Trials(graph, {}, seconds=clock)
    return dataclasses.replace(made, found=tried.found, trial=tried, density=density, **changes)


def by_trial(graph, clock, **changes):
    return costs(graph, BY_RATES, clock, density=1.0, by_trial=True, **changes)


def input_path(times, clock):
    graph = make_graph(density=DENSITY)
    program = read_model(gnn.GCN(CHANNELS, 8, CLASSES, 2), CHANNELS)
    return choose_input_path(program, costs(graph, sparse_rates(times), clock))


@pytest.mark.parametrize("times", [1.3, 0.8])
@pytest.mark.parametrize(("clock", "path"), [((1.0, 2.0), "dense"), ((2.0, 1.0), "sparse")])
def test_a_trial_decides_where_rates_leave_two_paths_close(times, clock, path):
    clock = Clock(*clock)  # dense, then sparse
    chosen = input_path(times, clock)
    assert clock.calls == 2
    assert chosen.input_path == path
    decision = chosen.decisions[-1]
    assert decision.what.endswith("(tried)")
    other = {"dense": "sparse", "sparse": "dense"}[path]
    assert decision.instead_of == f"{other}, 2 s an epoch"


@pytest.mark.parametrize(("times", "path"), [(1.01 * CLOSE, "dense"), (0.99 / CLOSE, "sparse")])
def test_nothing_is_tried_where_rates_tell_the_paths_apart(times, path):
    clock = Clock(1.0)
    chosen = input_path(times, clock)
    assert (clock.calls, chosen.input_path) == (0, path)
    assert "tried" not in chosen.decisions[-1].what


def test_nothing_is_tried_where_next_to_nothing_is_at_stake(monkeypatch):
    clock = Clock(1.0)
    monkeypatch.setattr(costs_module, "LEAST_STAKE", 10 * DENSE)
    assert "tried" not in input_path(1.3, clock).decisions[-1].what
    assert clock.calls == 0


def test_the_order_and_hoisting_are_tried_too():
    graph, rates = make_graph(), BY_RATES
    # an aggregation over so few columns costs next to nothing: close by the rates once products dominate
    slow = dataclasses.replace(rates, multiply_flops=1e7, row_bytes=1e12)
    program = read_model(gnn.GCN(CHANNELS, CHANNELS, CLASSES, 2), CHANNELS)
    made = costs(graph, slow, Clock(1.0), hoist_bytes=1 << 20)
    after = order(hoist(program, made), made)
    assert sorted({name.split()[0] for name in made.found}) == ["aggregate", "dense"]
    assert "(tried)" in after.decisions[0].what
    names = [f"dense {NUM_NODES} {CHANNELS} {CHANNELS}", f"aggregate {graph.csc.num_edges} {CHANNELS}"]
    assert set(names) <= set(made.found)


def test_a_trial_of_part_of_the_rows_counts_for_all(monkeypatch):
    monkeypatch.setattr(trials, "RUN_SECONDS", 0.0)
    seen = []
    tried = by_trial(make_graph(), Clock(0.5))
    monkeypatch.setattr(trials, "tall_product", lambda x, *_, **__: seen.append(len(x)))
    rows = 10 * LEAST_ROWS
    assert tried.multiply_seconds(rows, CHANNELS, 8) == 0.5 * 10 / 2  # the product and the gradient
    assert set(seen) == {LEAST_ROWS}
    assert tried.multiply_seconds(rows, CHANNELS, 8) == 2.5  # not run again
    assert len(seen) == 1


def test_an_aggregation_is_tried_on_the_graph_s_edges_and_large_ones_go_by_rates(monkeypatch):
    graph, clock = make_graph(), Clock(0.25)
    count = graph.csc.num_edges
    tried = by_trial(graph, clock, edges=(count, 2 * count))
    assert tried.aggregate_seconds(0, 8) == pytest.approx(0.25)
    assert tried.aggregate_seconds(1, 8) == pytest.approx(0.5)
    monkeypatch.setattr(trials, "MOST_BYTES", 4 * NUM_NODES * 8)
    assert tried.aggregate_seconds(0, 9) == BY_RATES.aggregate_seconds(count, 9)
    assert clock.calls == 2


@pytest.mark.parametrize("sparse", [False, True])
def test_features_are_tried_as_they_are(sparse):
    clock = Clock(1.0)
    tried = by_trial(make_graph(sparse=sparse, density=0.2, binary="ones"), clock)
    assert tried.sparse_seconds(NUM_NODES, 8) == 0.5
    assert tried.binary_seconds(NUM_NODES, 8) == 0.5
    assert clock.calls == 2


@pytest.fixture
def cache(monkeypatch, tmp_path):
    if native.kernels() is None:
        pytest.skip(NO_KERNELS)
    monkeypatch.setenv("GRAPHBRAID_CACHE", str(tmp_path))
    return tmp_path


def kept(graph, clock, *, believed=True):
    tried = kept_trials(graph, 1.0, HOST, believed=believed)
    assert tried is not None
    tried._seconds = clock
    made = cost_model(graph, BY_RATES, hoist_bytes=0)
    return dataclasses.replace(made, found=tried.found, trial=tried, by_trial=True)


def test_trials_are_kept_by_the_graph_s_sizes(cache):
    graph, clock = make_graph(), Clock(1.0, 3.0)
    assert kept(graph, clock).multiply_seconds(NUM_NODES, CHANNELS, 8) == 0.5
    assert kept(make_graph(seed=0), clock).multiply_seconds(NUM_NODES, CHANNELS, 8) == 0.5
    assert clock.calls == 1
    wider = graph.replace(x=torch.randn(NUM_NODES, CHANNELS + 1))
    assert kept(wider, clock).multiply_seconds(NUM_NODES, CHANNELS, 8) == 1.5
    for file in (cache / "trials").glob("*.json"):
        file.write_text('{"dense": -1}')
    assert kept(graph, Clock(5.0)).multiply_seconds(NUM_NODES, CHANNELS, 8) == 2.5


def test_trials_made_beside_other_programs_are_kept_for_this_process_only(cache):
    graph = make_graph()
    assert kept(graph, Clock(9.0), believed=False).multiply_seconds(NUM_NODES, CHANNELS, 8) == 4.5
    assert kept(graph, Clock(7.0), believed=False).multiply_seconds(NUM_NODES, CHANNELS, 8) == 4.5
    assert not list(cache.glob("trials/*"))
    assert kept(graph, Clock(1.0)).multiply_seconds(NUM_NODES, CHANNELS, 8) == 0.5


def test_where_trials_cannot_be_kept_rates_decide(cache, caplog):
    (cache / "trials").write_text("a file where the folder should be")
    assert kept_trials(make_graph(), 1.0, HOST, believed=True) is None
    assert "rates alone decide" in caplog.text


def test_evidence_lowers_alike_to_the_same_bits(cache, monkeypatch):
    """Although what would be measured now leads elsewhere."""
    graph, model = make_graph(density=DENSITY), gnn.GCN(CHANNELS, 8, CLASSES, 2, dropout=0.0)
    clock = Clock(2.0, 1.0)
    monkeypatch.setattr(type(HOST), "seconds", lambda _, run, **__: clock(run))
    monkeypatch.setattr(kept_rates, "measure", lambda _: sparse_rates(1.0))
    monkeypatch.setattr(
        "graphbraid.fullgraph.measured.trials.measured_rates",
        lambda _: MeasuredRates(rates=sparse_rates(1.0)),
    )
    passes = graphbraid.fullgraph.ALL - {"prune", "hoist"}
    first = graphbraid.compile(model, graph, passes=passes)
    evidence = Evidence.from_json(json.loads(json.dumps(first.evidence.to_json())))
    assert evidence == first.evidence
    assert evidence.trials
    for file in (cache / "trials").glob("*.json"):
        file.unlink()
    clock.seconds, clock.calls = [1.0, 2.0], 0
    other = graphbraid.compile(model, graph, passes=passes)
    assert other.program.input_path != first.program.input_path
    again = graphbraid.compile(model, graph, passes=passes, evidence=evidence)
    assert again.program == first.program
    assert torch.equal(again(), first())
    assert torch.equal(again.predict(), first.predict())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([], "list"),
        ({}, "'rates'"),
        ({"rates": {"row_bytes": 0}, "trials": {}}, "row_bytes"),
        ({"rates": {"speed": 1}, "trials": {}}, "speed"),
        ({"rates": {}, "trials": {"dense": float("nan")}}, "dense"),
        ({"rates": {}, "trials": []}, "seconds by name"),
    ],
)
def test_unsound_evidence_is_refused(content, said):
    with pytest.raises(DataError, match=f"lowering.json holds no sound rates and trials.*{said}"):
        Evidence.from_json(content, "lowering.json")
