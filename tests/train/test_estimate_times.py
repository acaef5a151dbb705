"""How long an epoch is estimated to take: what is tried for it, and what is made of the trials."""

import dataclasses
import itertools
import re
import types

import pytest
import torch
from benchmarks.planning.estimate import with_validation
from benchmarks.planning.estimate_run import parts_of
from tests.train.communities import Sage, random_graph

import graphbraid
from graphbraid import nn as gnn
from graphbraid.datasets import open_store, save_store
from graphbraid.errors import ConfigError
from graphbraid.estimates.trial import Trial, of_tries, repeated
from graphbraid.features import HostTiers, TieredFeatures
from graphbraid.graph import Graph
from graphbraid.train import HardwareFile, TrainConfig
from graphbraid.train.estimating import pace
from graphbraid.train.estimating.memory.full import full_needs
from graphbraid.train.estimating.records import time_rows, with_spread
from graphbraid.train.estimating.seconds import batch_seconds as seconds
from graphbraid.train.estimating.seconds import evaluations, layer_chunks, streamed, whole_seconds
from graphbraid.train.estimating.seconds.batch_seconds import (
    Tried,
    longer,
    spread_of,
    tried_epoch,
    whole_epoch,
)
from graphbraid.train.estimating.seconds.checkpoints import checkpoint_seconds
from graphbraid.train.estimating.seconds.epoch_seconds import EpochSeconds, Pace, PartSeconds
from graphbraid.train.estimating.seconds.evaluations import evaluation_seconds, some_batches
from graphbraid.train.estimating.seconds.layer_chunks import chunk_seconds
from graphbraid.train.estimating.tiers import tiered_run
from graphbraid.train.estimating.trials.batches import batch_sizes
from graphbraid.train.estimating.trials.likeness import likeness_of, places_of
from graphbraid.train.inference.layer_wise import LayerWise
from graphbraid.train.step.tiers import expected_reads

OPTIONS = {"fanouts": (4, 3), "batch_size": 32}
SMALL = 1 << 17
"""A budget that leaves little room for requests under way, as those of these graphs are."""


def sage(graph):
    return gnn.GraphSAGE(graph.num_features, 8, graph.num_classes, 2)


def trial_of(graph, **options):
    return Trial(sage(graph), graph, TrainConfig(**OPTIONS, **options))


@pytest.fixture
def ticking(monkeypatch):
    """Let a second pass whenever somebody looks at the clock: each step takes one."""
    ticks = itertools.count()
    clock = types.SimpleNamespace(perf_counter=lambda: float(next(ticks)))
    monkeypatch.setattr(seconds, "time", clock)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    return save_store(random_graph(2000, 8, 300), tmp_path_factory.mktemp("stored") / "graph")


# ---- steps


def test_an_epoch_is_its_beginning_and_even_steps_behind_it():
    even = [3.0 + 0.5 * step for step in range(10)]
    assert whole_epoch(even, 101, ahead=3) == pytest.approx(3.0 + 100 * 0.5)
    filling = [2.0, 3.0, 4.0, 5.0, *(5.0 + 0.25 * step for step in range(1, 9))]
    assert whole_epoch(filling, 104, ahead=3) == pytest.approx(5.0 + 100 * 0.25)
    assert whole_epoch([1.0, 2.0], 50, ahead=3) == pytest.approx(50.0)


def test_a_long_epoch_is_left_when_the_time_is_up(ticking):
    graph = random_graph(2000, 6, 8)
    trial = trial_of(graph)
    steps = -(-trial.nodes.numel() // 32)
    assert steps > seconds.FEWEST > seconds.SECONDS
    assert tried_epoch(trial) == Tried(float(steps), f"{seconds.FEWEST} of {steps} steps tried", spread=0.0)


def test_a_short_epoch_is_run_to_its_end_and_again_while_there_is_time(ticking, monkeypatch):
    graph = random_graph(300, 6, 8)
    trial = trial_of(graph)
    steps = -(-trial.nodes.numel() // 32)
    assert steps < seconds.FEWEST
    monkeypatch.setattr(seconds, "SECONDS", 1.5 * steps)
    assert tried_epoch(trial) == Tried(float(steps), f"all {steps} steps tried once")
    monkeypatch.setattr(seconds, "SECONDS", 3.5 * steps)
    assert tried_epoch(trial) == Tried(float(steps), f"all {steps} steps tried 3 times", spread=0.0)
    monkeypatch.setattr(seconds, "SECONDS", 1e6)
    assert tried_epoch(trial).how == f"all {steps} steps tried {seconds.REPEATS} times"


def test_no_more_steps_are_timed_than_brought_the_pages_of_a_file(ticking, stored):
    trial = trial_of(open_store(stored))
    found = tried_epoch(trial)
    steps = -(-trial.nodes.numel() // 32)
    assert found == Tried(float(steps), f"{seconds.FEWEST} of {steps} steps tried", spread=0.0)


def test_what_is_tried_of_a_validation_is_spread_over_its_split():
    nodes = torch.arange(10)
    assert some_batches(nodes, 2, 2).tolist() == [0, 1, 4, 5]
    assert some_batches(nodes, 4, 9).equal(nodes)
    assert some_batches(nodes, 100, 1).equal(nodes)


def test_the_benchmark_divides_a_run_as_an_estimate_does():
    history = [{"epoch_seconds": 1.0 + whole, "evaluate_seconds": 1.0} for whole in (5.0, 2.0, 4.0, 3.0)]
    found = parts_of(history, 20.0)
    assert found["epoch_seconds"] == found["train"] + found["validation"] == 4.0
    assert (found["first"], found["once"], found["run_seconds"]) == (2.0, 2.0, 20.0)
    assert parts_of(history[:1], 6.0)["first"] == 0.0


def test_how_sure_a_time_is_shows_in_its_tries():
    assert of_tries([2.0]) == (2.0, "", None)
    assert of_tries([2.0, 1.0, 2.5]) == (2.0, "", 1.0), "the farthest of them from the median"
    even = [3.0 + 0.5 * step for step in range(10)]
    assert spread_of(even, 101, ahead=0) == pytest.approx(0.0)
    assert spread_of(even[:2], 101, ahead=0) is None
    slower = [*even[:5], *(5.0 + step for step in range(1, 5))]  # 4 steps of half a second, then 4 of one
    assert spread_of(slower, 101, ahead=0) == pytest.approx(100 * 0.25)


@pytest.mark.parametrize(
    ("each", "count", "spread"), [(1.0, 4, 0.0), (4.0, 3, 0.0), (4.9, 3, 0.0), (5.0, 1, None)]
)
def test_what_is_no_step_is_tried_as_often_as_there_is_time(each, count, spread):
    tries = []

    def run():
        tries.append(each)
        return each

    assert repeated(run, most=10.0) == (each, "", spread)
    assert len(tries) == count


def test_an_epoch_is_as_sure_as_its_parts():
    epoch = EpochSeconds(train=2.0, train_spread=0.1)
    assert epoch.spread == 0.1
    validated = dataclasses.replace(epoch, evaluate=1.0, evaluate_how="tried", evaluate_spread=0.05)
    assert validated.spread == pytest.approx(0.15)
    assert dataclasses.replace(validated, evaluate_spread=None).spread is None
    assert validated.scaled(2.0, "").spread == pytest.approx(0.3)
    assert validated.with_tiers(4.0, "").spread is None, "of training with other rows in memory"
    assert list(time_rows(validated))[:1] == [("training", "2 s ±5%", "")]
    assert with_spread(2.0, None) == "2 s"
    assert PartSeconds(2.0, "tried", 0.1).times(0.5) == (1.0, "tried", 0.05)


def test_a_load_beside_the_trial_is_told_of(monkeypatch):
    monkeypatch.setattr("graphbraid.machine.contention.MOST_OTHERS", 0.1)
    quiet = EpochSeconds(train=1.0, how="all 3 steps tried once", others=0.05)
    assert quiet.explained == quiet.how
    assert EpochSeconds(train=1.0, how="tried").explained == "tried"
    beside = dataclasses.replace(quiet, others=0.6).scaled(2.0, "times 2")
    assert "once; times 2, while other programs used 60% of the cores" in beside.explained


def test_the_benchmark_validates_on_a_tenth_of_the_nodes_that_it_does_not_train_on():
    graph = random_graph(300, 6, 8).replace(splits={"train": torch.arange(100, 250)})
    val = with_validation(graph).split("val")
    assert val.numel() == 30
    assert not torch.isin(val, graph.split("train")).any()


# ---- tiers


def run_of(graph, config, **options):
    sizes = batch_sizes(graph, config, graph.split("train"))
    given = {"bytes_per_second": 1e9, "is_here": True, "times": True, **options}
    reads = expected_reads(graph, config, None)
    return tiered_run(graph, config, num_batches=sizes.num_batches, reads=reads, **given)


@pytest.fixture
def tried(monkeypatch):
    """What was tried instead of a trial: the tiers, which then take a second, and three with nothing held."""
    found = []

    def instead(trial):
        tiers = trial.runner.rows
        found.append(tiers)
        return Tried(3.0 if tiers.cache.num_rows == 0 else 1.0, "some steps tried")

    monkeypatch.setattr(pace, "tried_epoch", instead)
    return found


def test_the_pace_is_tried_with_nothing_in_memory_and_with_the_budget(stored, tried):
    graph = open_store(stored)
    trial = trial_of(graph, host=SMALL)
    run = run_of(graph, trial.config)
    budget = run.host_bytes(1000)
    found = pace.pace_of(trial, run, 0.5, budget)
    assert tried[0].cache.num_rows == 0
    assert 500 < tried[1].cache.num_rows < 1000, "rows and lists as a run divides its budget"
    assert found.how == "rows in tiers, some steps tried"
    assert found.seconds(0) == 0.5
    assert found.seconds(run.disk_reads(budget)) == pytest.approx(1.0)
    assert found.seconds(run.disk_reads(0)) == pytest.approx(3.0)
    between = (run.disk_reads(budget) + run.disk_reads(0)) / 2
    assert found.seconds(between) == pytest.approx(2.0)


def test_a_large_budget_is_tried_with_less_of_it(stored, tried, monkeypatch):
    graph = open_store(stored)
    trial = trial_of(graph, host=SMALL)
    run = run_of(graph, trial.config)
    small, large = run.host_bytes(900), run.host_bytes(1800)
    monkeypatch.setattr(pace, "MOST_FILLED_BYTES", small)
    found = pace.pace_of(trial, run, 0.5, large)
    assert 0 < tried[1].cache.num_rows < 900
    assert found.seconds(run.disk_reads(small)) == pytest.approx(1.0)
    assert 0.5 < found.seconds(run.disk_reads(large)) < 1.0


def test_a_disk_that_is_slow_decides_alone(stored, tried):
    graph = open_store(stored)
    trial = trial_of(graph)
    slow = run_of(graph, trial.config, bytes_per_second=2 * graph.x[:1].nbytes)
    found = pace.pace_of(trial, slow, 0.5, None)
    assert not tried
    assert found.how == "the slower of training and reading from disk"
    assert found.seconds(slow.disk_reads(0)) == pytest.approx(slow.disk_reads(0) / 2)
    assert found.seconds(1.0) == pytest.approx(0.5), "half a second's reads hide behind half a second's steps"
    assert found.seconds(10.0) == pytest.approx(5.0)


def test_a_disk_faster_than_training_costs_nothing(stored):
    graph = open_store(stored)
    trial = trial_of(graph)
    fast = run_of(graph, trial.config, bytes_per_second=1e18, is_here=False)
    found = pace.pace_of(trial, fast, 0.5, None)
    assert {found.seconds(reads) for reads in (0, 10, fast.disk_reads(0))} == {0.5}


def test_noise_makes_no_memory_look_harmful(stored, monkeypatch):
    graph = open_store(stored)
    trial = trial_of(graph)
    monkeypatch.setattr(pace, "tried_epoch", lambda trial: Tried(0.25, "tried"))
    found = pace.pace_of(trial, run_of(graph, trial.config), 0.5, None)
    assert [taken for _, taken in found.points] == [0.5, 0.5]


def test_a_disk_that_nobody_described_has_no_pace(stored):
    graph = open_store(stored)
    trial = trial_of(graph)
    assert (
        pace.pace_of(trial, run_of(graph, trial.config, is_here=False, bytes_per_second=None), 1, 0) is None
    )
    assert pace.pace_of(trial, run_of(graph, trial.config, times=False), 1, 0) is None


def test_reads_of_the_disk_are_rows_and_where_nothing_is_held_lists(stored):
    graph = open_store(stored)
    run = run_of(graph, trial_of(graph).config)
    assert run.list_reads > run.num_batches * 32
    assert run.disk_reads(0) == run.epoch_reads + run.list_reads
    assert run.disk_reads(run.host_bytes(2000)) == pytest.approx(0.0, abs=1e-6)
    assert 0.5 * run.epoch_reads < run.disk_reads(run.host_bytes(500)) < 0.8 * run.epoch_reads
    in_memory = run_of(graph.replace(csc=open_store(stored, mmap=False).csc), trial_of(graph).config)
    assert in_memory.list_reads == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("host", [0, pytest.param(1000, marks=pytest.mark.slow)])
def test_an_estimate_with_tiers_tries_them(stored, host, monkeypatch):
    made = []

    def spy(graph, **given):
        made.append(plain(graph, **given))
        return made[-1]

    plain = HostTiers.build
    monkeypatch.setattr(HostTiers, "build", spy)
    monkeypatch.setattr(seconds, "SECONDS", 0.2)
    monkeypatch.setattr("graphbraid.train.estimating.memory.sampled.baseline_bytes", lambda *_: 300 << 20)
    graph = open_store(stored)
    budget = host and run_of(graph, TrainConfig(**OPTIONS, host=SMALL)).host_bytes(host)
    found = graphbraid.estimate(sage(graph), graph, host=budget, eval_every=0, **OPTIONS)
    assert [tiers.features.cache.num_rows > 0 for tiers in made] == [False, True][: 1 + bool(host)]
    assert all(tiers.features.counts.disk_rows > 0 for tiers in made)
    assert made[0].topology.counts.disk_edges > 0
    taken = found.of("sampled").seconds
    assert taken.how.startswith("rows in tiers, ")
    assert taken.train >= found.tier_curve[-1].seconds > 0
    assert found.tier_curve[0].seconds >= taken.train


@pytest.mark.slow
def test_tiers_auto_is_estimated_with_what_it_chooses(stored, monkeypatch):
    monkeypatch.setattr("graphbraid.train.estimating.memory.sampled.baseline_bytes", lambda *_: 300 << 20)
    graph = open_store(stored)
    options = {"tiers": "auto", "times": False, "test_at_end": False, **OPTIONS}
    fits = graphbraid.estimate(sage(graph), graph, hardware=HardwareFile(memory_bytes=4 << 30), **options)
    assert fits.tiers.host is None
    assert fits.of("sampled").host.bytes_of("features") == graph.x.nbytes
    tight = graphbraid.estimate(sage(graph), graph, hardware=HardwareFile(memory_bytes=310 << 20), **options)
    assert tight.tiers.host == 0
    buffers = TieredFeatures.build(graph, host=0).disk.buffer_bytes
    assert tight.of("sampled").host.bytes_of("features") == 2 * buffers, "of rows, and of lists"


def test_validations_slow_down_as_training_does():
    epoch = EpochSeconds(train=2.0, evaluate=1.0, how="tried")
    slower = epoch.with_tiers(6.0, "rows in tiers")
    assert (slower.train, slower.evaluate, slower.how) == (6.0, 3.0, "rows in tiers")
    assert epoch.with_tiers(1.0, "").evaluate == 1.0


def test_a_pace_lies_between_its_points():
    found = Pace(((0.0, 1.0), (10.0, 2.0), (20.0, 6.0)), "")
    assert [found.seconds(reads) for reads in (0, 5, 10, 15, 20, 30)] == [1.0, 1.5, 2.0, 4.0, 6.0, 6.0]


# ---- the whole graph


@pytest.mark.slow
def test_a_step_too_long_to_try_is_its_floor_times_that_of_a_smaller_graph(monkeypatch):
    graph = random_graph(20_000, 8, 16)
    trial = Trial(sage(graph), graph, TrainConfig(mode="full", eval_every=0))
    engine = full_needs(trial).engine
    floor = engine.floor().floor_seconds
    monkeypatch.setattr(whole_seconds, "SECONDS", 0.9 * floor)
    monkeypatch.setattr(whole_seconds, "_LEAST_PART", 1000)
    found = whole_seconds.full_seconds(trial, engine, fits=True)
    assert found.floor == floor
    assert found.train >= floor
    assert "times its floor, as on" in found.how
    assert found.test > 0
    assert found.test_how == "as on 2,250 nodes of the same degree"
    untried = whole_seconds.full_seconds(trial, engine, fits=False)
    assert "times its floor" in untried.how
    monkeypatch.setattr(whole_seconds, "_LEAST_PART", 15_000)
    assert whole_seconds.full_seconds(trial, engine, fits=False).how.endswith("nothing was tried")


@pytest.mark.parametrize(
    ("steps", "kept"),
    [
        ([1.0, 0.8, *[0.75] * 5], [0.75] * 5),  # four seconds of 0.8 each
        ([2.5, 9.0], [2.5]),
        ([0.1] * 20, [0.1] * whole_seconds.REPEATS),
    ],
)
def test_a_long_first_step_leaves_as_many_as_the_later_ones_have_time_for(steps, kept):
    left = iter(steps)
    assert whole_seconds._warm_steps(lambda: next(left)) == kept


@pytest.mark.slow
def test_a_disk_too_slow_to_try_is_counted_beside_the_steps(stored, monkeypatch):
    monkeypatch.setattr(whole_seconds, "SECONDS", 0.5)
    graph = open_store(stored)
    config = TrainConfig(mode="full", host=SMALL, eval_every=0)
    trial = Trial(sage(graph), graph, config, pace.make_tiers(graph, config))
    engine = full_needs(trial).engine
    streams = engine.runner.streams
    assert 0 < streams.pass_bytes < streams.whole_bytes <= engine.evaluation_pass_bytes
    rate = streams.pass_bytes / 50
    found = whole_seconds.full_seconds(trial, engine, fits=True, bytes_per_second=rate)
    assert found.train == pytest.approx(100), "two passes"
    assert found.test == pytest.approx(engine.evaluation_pass_bytes / rate)
    once = streams.set_up_bytes + streams.whole_bytes - streams.pass_bytes
    assert found.first == pytest.approx(once / rate)
    assert "the slower of the steps" in found.how
    tried = whole_seconds.full_seconds(trial, engine, fits=True, bytes_per_second=1e18)
    assert "steps tried" in tried.how
    assert tried.train < 100


@pytest.mark.usefixtures("known_baseline")
def test_the_rate_of_a_disk_is_found_by_reading_for_a_moment(stored):
    graph = open_store(stored)
    config = TrainConfig(mode="full", host=SMALL)
    tiers = pace.make_tiers(graph, config)
    trial = Trial(sage(graph), graph, config, tiers)
    engine = full_needs(trial).engine
    before = tiers.features.counts.disk_rows
    assert streamed.disk_seconds(trial, engine, None).epoch > 0
    assert tiers.features.counts.disk_rows - before == graph.num_nodes, "in a second, or all of them"
    in_memory = Trial(sage(graph), graph, config.updated(host=None))
    assert streamed.disk_seconds(in_memory, full_needs(in_memory).engine, None) is None


# ---- evaluations, checkpoints, and what comes once


def test_an_exact_evaluation_that_is_not_cheap_is_tried_on_parts_with_a_part_of_the_budget(monkeypatch):
    graph = random_graph(20_000, 6, 8)
    tried = []

    def instead(trial, runner, nodes, mode, share=1.0):
        tried.append((runner.graph.num_nodes, nodes.numel(), mode, share))
        return 1.0 + runner.graph.num_nodes / 1000

    monkeypatch.setattr(layer_chunks, "_MOST_BYTES", 0)
    monkeypatch.setattr(evaluations, "_scoring", instead)
    monkeypatch.setattr(evaluations, "_LEAST_PART", 2000)
    trial = trial_of(graph, memory_budget_bytes=1 << 20)
    nodes = graph.split("test")
    found = evaluation_seconds(trial, nodes, "exact", most=4.0)
    assert [count for count, *_ in tried] == [2000, 2000, 4000], "the first is a warm-up"
    assert all(given == nodes.numel() * count // 20_000 for count, given, *_ in tried)
    assert [share for *_, share in tried] == [0.1, 0.1, 0.2]
    assert found.spread is None, "one pair says nothing about another"
    assert evaluation_seconds(trial, nodes, "exact", most=20.0).spread == 0.0
    assert [count for count, *_ in tried][-4:] == [2000, 4000, 2000, 4000], "in turn"
    assert found.seconds == pytest.approx(1.0 + 20), "what is there once counts once"
    assert found.how == "exact, as on 2,000 and 4,000 nodes that stand for all"
    tried.clear()
    evaluation_seconds(trial_of(graph), nodes, "exact", most=4.0)
    assert tried[0][:3] == (20_000, nodes.numel(), "exact"), "one pass within the budget is run as it is"


@pytest.mark.parametrize("says", [True, False])
def test_a_pass_is_cheap_by_as_many_layers_as_inference_finds(monkeypatch, says):
    """The model says how many it has; of one that does not, they are counted, or it is one a fanout."""

    class Rates:
        def aggregate_seconds(self, num_edges, width):
            return 1.0

    monkeypatch.setattr(evaluations, "machine_rates", Rates)
    graph = random_graph(200, 6, 8)
    model = Sage(6, graph.num_classes)
    if not says:
        del model.num_layers
    trial = Trial(model, graph, TrainConfig(fanouts=(2, 2) if says else (2, 2, 2)))
    layers = 2 if says else 3
    assert evaluations._is_cheap(trial.runner, trial, layers + 0.1)
    assert not evaluations._is_cheap(trial.runner, trial, layers - 0.1)


def test_an_evaluation_by_layers_is_really_tried_on_parts(monkeypatch):
    graph = random_graph(3000, 6, 8)
    monkeypatch.setattr(layer_chunks, "_MOST_BYTES", 0)
    monkeypatch.setattr(evaluations, "_LEAST_PART", 500)
    trial = trial_of(graph, memory_budget_bytes=1 << 16)
    found = evaluation_seconds(trial, graph.split("test"), "exact", most=0.01)
    assert found.seconds > 0
    assert "nodes that stand for all" in found.how


def alike_lists(num_nodes):
    """A graph in which nodes with neighbouring ids read the same 20 nodes: some of them reach nearly all."""
    ids = torch.arange(num_nodes)
    reads = (ids // 20 * 20)[:, None] + torch.arange(20)
    lists = torch.stack([reads.reshape(-1) % num_nodes, ids.repeat_interleave(20)])
    splits = {"train": ids[1::10], "val": ids[::10]}
    return Graph.from_edge_index(lists, num_nodes, x=torch.rand(num_nodes, 16), y=ids % 3, splits=splits)


def computed_by(monkeypatch):
    """Keep the layer and the nodes of each chunk that is computed from now on."""
    seen, compute = [], LayerWise.outputs

    def outputs(self, layer, source, chunk):
        seen.append((layer, *chunk.tolist()))
        return compute(self, layer, source, chunk)

    monkeypatch.setattr(LayerWise, "outputs", outputs)
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("in_memory", [True, False])
def test_chunks_of_layers_are_tried_that_the_evaluation_computes(monkeypatch, in_memory):
    graph = alike_lists(3000)
    model = gnn.GraphSAGE(graph.num_features, 8 if in_memory else 24, graph.num_classes, 2)
    trial = Trial(model, graph, TrainConfig(**OPTIONS, memory_budget_bytes=1 << 18))
    nodes, seen = graph.split("val"), computed_by(monkeypatch)
    run = evaluations._scoring(trial, trial.runner, nodes, "exact")
    chunks = seen.copy()
    assert run > 0
    assert len({ids for layer, *ids in chunks for ids in ids if layer == 0}) == graph.num_nodes, (
        "alike lists reach all"
    )
    seen.clear()
    found = chunk_seconds(trial, nodes, most=60.0)
    assert set(seen) == set(chunks)
    assert len(seen) == len(chunks) + 2, "a warm-up of each layer"
    assert found.how == f"exact, {len(chunks)} of {len(chunks)} chunks tried"
    assert found.seconds > 0
    assert found.spread is not None


def test_few_chunks_of_layers_stand_for_all(monkeypatch):
    graph = alike_lists(3000)
    trial = trial_of(graph, memory_budget_bytes=1 << 18)
    ticks = itertools.count()
    monkeypatch.setattr(layer_chunks, "time", types.SimpleNamespace(perf_counter=lambda: float(next(ticks))))
    monkeypatch.setattr(layer_chunks, "timed", lambda run: (run(), 1.0)[1])
    found = evaluation_seconds(trial, graph.split("val"), "exact", most=16.0)
    tried, count = map(int, re.findall(r"[0-9]+", found.how))
    assert tried == 2 * 4, "of each layer as many as its share of half the time holds"
    assert tried < count
    assert found.seconds == 3 + count, "a second for each chunk, to begin, to write rows, and to score"
    assert found.spread is None, "too few to compare"


@pytest.mark.parametrize("num_nodes", [10_000, 937])
def test_nodes_that_stand_for_others_are_spread_and_ordered_as_those_are(num_nodes):
    every = torch.arange(0, num_nodes, 10)
    assert torch.equal(places_of(every, num_nodes, num_nodes), every)
    assert places_of(every.flip(0), num_nodes, 500).diff().lt(0).all()
    shuffled = torch.randperm(num_nodes)[: num_nodes // 2]
    found = places_of(shuffled, num_nodes, 300)
    assert found.numel() == found.unique().numel() == shuffled.numel() * 300 // num_nodes
    assert 0 <= found.min() < 20
    assert 280 < found.max() < 300
    assert not torch.equal(found, found.sort().values)
    assert places_of(torch.arange(num_nodes - 9, num_nodes), num_nodes, 100).tolist() == [99]
    assert torch.equal(places_of(torch.arange(num_nodes), num_nodes, 7), torch.arange(7))


def test_a_likeness_has_the_hubs_lists_and_order_of_the_graph():
    hub, others = torch.zeros(3000, dtype=torch.int64), torch.randint(1, 3000, (3000,))
    ids = torch.arange(3000)
    lists = torch.stack([torch.cat([hub, others]), ids.repeat(2)])  # each reads node 0, and one more
    graph = Graph.from_edge_index(lists, 3000, x=ids[:, None].float(), y=ids % 4)
    small = likeness_of(graph, 300)
    chosen = small.x.flatten().long()
    assert (chosen.diff() > 0).all(), "in the order of their ids"
    assert torch.equal(small.y, graph.y[chosen])
    assert torch.equal(small.csc.indptr.diff(), graph.csc.indptr.diff()[chosen])
    reads = torch.bincount(small.csc.indices, minlength=300)
    assert reads.max() >= 300, "a hub stays one"
    assert reads.sort().values[-2] < 20
    assert small.csc.indices.max() < 300


def test_an_epoch_writes_a_checkpoint_and_those_within_it(tmp_path):
    graph = random_graph(300, 6, 8)
    assert checkpoint_seconds(trial_of(graph), 10) == PartSeconds(None, "")
    for every, count in ((None, 1), (4, 3), (5, 2), (20, 1)):
        options = {"out_dir": tmp_path / "not" / "yet", "checkpoint_every_steps": every}
        found = checkpoint_seconds(trial_of(graph, **options), 10)
        assert found.seconds > 0
        assert found.how.startswith(f"{count} of ")
    assert not list(tmp_path.iterdir()), "what was written is removed"


def test_a_folder_that_cannot_be_written_has_no_time(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("graphbraid.train.estimating.seconds.checkpoints.checkpoint.write", full)
    found = checkpoint_seconds(trial_of(random_graph(300, 6, 8), out_dir=tmp_path), 10)
    assert found.seconds is None
    assert "No space left" in found.how


def test_every_part_of_a_run_has_a_line_of_its_own():
    epoch = EpochSeconds(train=2.0, how="tried", evaluate=1.0, evaluate_how="exact, tried", first=0.5)
    epoch = dataclasses.replace(epoch, test=3.0, test_how="exact, tried").writing(
        PartSeconds(0.25, "1 of 2 MB")
    )
    assert epoch.total == 3.25
    assert epoch.of_run(10) == 0.5 + 10 * 3.25 + 3.0
    names = [name for name, _ in epoch.parts()]
    assert names == ["training", "validation", "checkpoints", "(first epoch)", "(test)"]
    slower = epoch.scaled(2.0, "twice")
    assert (slower.first, slower.test, slower.checkpoint) == (1.0, 6.0, 0.25)
    unknown = EpochSeconds(train=2.0, evaluate_how="not tried")
    assert [(name, part.seconds) for name, part in unknown.parts()] == [
        ("training", 2.0),
        ("validation", None),
    ]
    assert unknown.total == 2.0


def test_an_estimate_shows_validation_checkpoints_and_test(tmp_path, monkeypatch):
    monkeypatch.setattr(seconds, "SECONDS", 0.2)
    monkeypatch.setattr(whole_seconds, "SECONDS", 0.2)
    monkeypatch.setattr("graphbraid.train.estimating.memory.sampled.baseline_bytes", lambda *_: 300 << 20)
    graph = random_graph(300, 6, 8)
    found = graphbraid.estimate(sage(graph), graph, out_dir=tmp_path / "run", epochs=3, **OPTIONS)
    assert not (tmp_path / "run").exists()
    for mode in ("sampled", "full"):
        taken = found.of(mode).seconds
        assert min(taken.evaluate, taken.checkpoint, taken.test) > 0
        plain = next(part for part in found.to_json()["modes"] if part["mode"] == mode)["seconds"]
        assert plain["run"] == pytest.approx(taken.first + 3 * taken.total + taken.test)
    lines = str(found).splitlines()
    for name in ("training", "validation", "checkpoints", "(test)"):
        assert sum(line.strip().startswith(name) for line in lines) >= 2, name
    assert sum("for 3 epochs" in line for line in lines) == 2


def test_the_first_steps_are_compared_with_as_many_later_ones():
    assert longer([2.0, 3.0], [1.0, 2.0, 3.0]) == 1.0
    assert longer([2.0, 3.0, 9.0], [1.0]) == 1.0
    assert longer([1.0], [2.0]) == 0.0


@pytest.mark.slow
def test_a_budget_that_holds_no_row_is_not_tried(stored):
    graph = open_store(stored)
    trial = trial_of(graph)
    with pytest.raises(ConfigError, match="holds no row"):
        HostTiers.build(graph, host=20_000)
    found = pace.pace_of(trial, run_of(graph, trial.config), 0.5, 20_000)
    assert len(found.points) == 2
