"""How long an epoch is estimated to take: what is tried for it, and what is made of the trials."""

import dataclasses
import itertools
import re
import types

import pytest
import torch
from benchmarks.planning.estimate import with_validation
from benchmarks.planning.estimate_run import parts_of
from tests.train.communities import AsWritten, Sage, random_graph

import graphbraid
from graphbraid import nn as gnn
from graphbraid.datasets import open_store, save_store
from graphbraid.errors import ConfigError
from graphbraid.estimates import estimate as estimating
from graphbraid.estimates import seconds
from graphbraid.estimates.estimate import full_needs, full_seconds
from graphbraid.estimates.records import EpochSeconds, ModeEstimate, PartSeconds
from graphbraid.estimates.seconds import (
    checkpoint_seconds,
    evaluation_seconds,
    some_batches,
    tried_epoch,
    whole_epoch,
)
from graphbraid.estimates.tiers import tiered_run
from graphbraid.estimates.trial import Trial, repeated
from graphbraid.features import HostTiers, TieredFeatures
from graphbraid.fullgraph.batches.layer_wise import LayerWise
from graphbraid.graph import Graph
from graphbraid.train import HardwareFile, TrainConfig
from graphbraid.train.step.tiers import expected_reads, make_tiers

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
    assert whole_epoch(even, 101, ahead=3).seconds == pytest.approx(3.0 + 100 * 0.5)
    filling = [2.0, 3.0, 4.0, 5.0, *(5.0 + 0.25 * step for step in range(1, 9))]
    assert whole_epoch(filling, 104, ahead=3).seconds == pytest.approx(5.0 + 100 * 0.25)
    assert whole_epoch([1.0, 2.0], 50, ahead=3).seconds == pytest.approx(50.0)


def test_a_long_epoch_is_left_when_the_time_is_up(ticking):
    trial = trial_of(random_graph(2000, 6, 8))
    steps = -(-trial.nodes.numel() // 32)
    assert steps > seconds.FEWEST > seconds.SECONDS
    found = PartSeconds(float(steps), f"{seconds.FEWEST} of {steps} steps tried")
    assert tried_epoch(trial) == (found, 0.0)


def test_a_short_epoch_is_run_to_its_end_and_again_while_there_is_time(ticking):
    trial = trial_of(random_graph(300, 6, 8))
    steps = -(-trial.nodes.numel() // 32)
    assert steps < seconds.FEWEST
    once, _ = tried_epoch(trial, seconds=1.5 * steps)
    assert once == PartSeconds(float(steps), f"all {steps} steps tried once")
    often, _ = tried_epoch(trial, seconds=3.5 * steps)
    assert often == PartSeconds(float(steps), f"all {steps} steps tried 3 times")


def test_no_more_steps_are_timed_than_brought_the_pages_of_a_file(ticking, stored):
    trial = trial_of(open_store(stored))
    steps = -(-trial.nodes.numel() // 32)
    found, _ = tried_epoch(trial)
    assert found == PartSeconds(float(steps), f"{seconds.FEWEST} of {steps} steps tried")


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


@pytest.mark.parametrize(("each", "count"), [(1.0, 4), (4.0, 3), (4.9, 3), (5.0, 1)])
def test_what_is_no_step_is_tried_as_often_as_there_is_time(each, count):
    tries = []

    def run():
        tries.append(each)
        return each

    assert repeated(run, most=10.0) == each
    assert len(tries) == count


def test_a_load_beside_the_trial_is_told_of(monkeypatch):
    monkeypatch.setattr("graphbraid.machine.measurements.MOST_OTHERS", 0.1)
    quiet = EpochSeconds(train=PartSeconds(1.0, "all 3 steps tried once"), others=0.05)
    assert next(quiet.parts())[1].how == "all 3 steps tried once"
    beside = dataclasses.replace(quiet, others=0.6).scaled(2.0, "times 2")
    assert "once; times 2, while other programs used 60% of the cores" in next(beside.parts())[1].how


def test_the_benchmark_validates_on_a_tenth_of_the_nodes_that_it_does_not_train_on():
    graph = random_graph(300, 6, 8).replace(splits={"train": torch.arange(100, 250)})
    val = with_validation(graph).split("val")
    assert val.numel() == 30
    assert not torch.isin(val, graph.split("train")).any()


# ---- tiers


def test_reads_of_the_disk_are_rows_and_where_nothing_is_held_lists(stored):
    graph, config = open_store(stored), TrainConfig(**OPTIONS)
    reads = expected_reads(graph, config, None).values
    run = tiered_run(graph, config, reads)
    assert run.list_reads > graph.split("train").numel()
    assert run.disk_reads(0) == run.epoch_reads + run.list_reads
    assert run.disk_reads(run.whole_bytes) == pytest.approx(0.0, abs=1e-6)
    some = run.whole_bytes - 1500 * (run.row_bytes + 32)
    assert 0.5 * run.epoch_reads < run.disk_reads(some) < 0.8 * run.epoch_reads
    hot = tiered_run(graph, config, reads, num_hot=500)
    assert hot.disk_reads(0) < run.disk_reads(0), "rows on a device are not read"
    in_memory = tiered_run(graph.replace(csc=open_store(stored, mmap=False).csc), config, reads)
    assert in_memory.list_reads == 0.0
    assert tiered_run(open_store(stored, mmap=False), config, reads) is None


@pytest.mark.slow
@pytest.mark.usefixtures("known_baseline")
def test_an_estimate_with_tiers_tries_them_or_counts_what_the_disk_gives(stored):
    graph = open_store(stored)
    found = graphbraid.estimate(sage(graph), graph, host=0, **OPTIONS).of("sampled")
    assert found.seconds.train.how.startswith("rows in tiers, ")
    slow = HardwareFile(memory_bytes=4 << 30, disk_bytes_per_second=1e4)
    there = graphbraid.estimate(sage(graph), graph, host=0, hardware=slow, **OPTIONS).of("sampled")
    assert "rows from disk at" in there.seconds.train.how
    assert there.seconds.train.seconds > found.seconds.train.seconds
    with pytest.raises(ConfigError, match="holds no row"):
        HostTiers.build(graph, host=20_000)
    none = graphbraid.estimate(sage(graph), graph, host=20_000, **OPTIONS).of("sampled")
    assert not none.seconds.train.how.startswith("rows in tiers")


@pytest.mark.slow
def test_tiers_auto_is_estimated_with_what_it_chooses(stored, monkeypatch):
    monkeypatch.setattr("graphbraid.estimates.memory.baseline_bytes", lambda *_: 300 << 20)
    graph = open_store(stored)
    options = {"tiers": "auto", "times": False, "test_at_end": False, **OPTIONS}
    fits = graphbraid.estimate(sage(graph), graph, hardware=HardwareFile(memory_bytes=4 << 30), **options)
    assert fits.tiers.host is None
    assert fits.of("sampled").host.bytes_of("features") == graph.x.nbytes
    tight = graphbraid.estimate(sage(graph), graph, hardware=HardwareFile(memory_bytes=310 << 20), **options)
    assert tight.tiers.host == 0
    buffers = TieredFeatures.build(graph, host=0).disk.buffer_bytes
    assert tight.of("sampled").host.bytes_of("features") == 2 * buffers, "of rows, and of lists"


# ---- the whole graph


@pytest.mark.slow
def test_a_step_too_long_to_try_is_its_floor(monkeypatch):
    graph = random_graph(20_000, 8, 16)
    trial = Trial(sage(graph), graph, TrainConfig(mode="full"))
    engine = full_needs(trial).engine
    floor = engine.floor().floor_seconds
    tried = full_seconds(trial, engine, fits=True)
    assert tried.train.seconds >= floor == tried.floor
    assert "steps tried" in tried.train.how
    assert min(tried.validation.seconds, tried.test.seconds) > 0
    monkeypatch.setattr(estimating, "_LONGEST_FLOOR", 0.9 * floor)
    for fits in (True, False):
        untried = full_seconds(trial, engine, fits=fits)
        assert untried.train.seconds == floor
        assert untried.train.how.endswith("nothing was tried")
        assert (untried.test.seconds, untried.test.how) == (None, "not tried")


@pytest.mark.slow
def test_a_disk_too_slow_to_try_is_counted_beside_the_steps(stored):
    graph = open_store(stored)
    config = TrainConfig(mode="full", host=SMALL, eval_every=0)
    trial = Trial(sage(graph), graph, config, make_tiers(graph, config))
    engine = full_needs(trial).engine
    streams = engine.runner.training_step.plan.streams
    assert 0 < streams.pass_bytes < streams.pass_bytes + streams.kept_bytes <= engine.evaluation_pass_bytes
    rate = streams.pass_bytes / 50
    found = full_seconds(trial, engine, fits=True, bytes_per_second=rate)
    assert found.train.seconds == pytest.approx(100), "two passes"
    assert found.test.seconds == pytest.approx(engine.evaluation_pass_bytes / rate)
    once = streams.set_up_bytes + streams.kept_bytes
    assert found.first == pytest.approx(once / rate)
    assert "the slower of its floor and of reading" in found.train.how
    before = trial.runner.rows.counts.disk_rows
    tried = full_seconds(trial, engine, fits=True)
    assert trial.runner.rows.counts.disk_rows > before, "the rate is found by reading for a moment"
    assert re.search("steps? tried", tried.train.how)  # one, where a step takes long


# ---- evaluations, checkpoints, and what comes once


@pytest.mark.parametrize("says", [True, False])
def test_a_pass_is_cheap_by_as_many_layers_as_inference_finds(monkeypatch, says):
    """The model says how many it has; of one that does not, they are counted, or it is one a fanout."""

    class Rates:
        def aggregate_seconds(self, num_edges, width):
            return 1.0

    monkeypatch.setattr("graphbraid.fullgraph.rates.machine_rates", Rates)
    graph = random_graph(200, 6, 8)
    model = Sage(8, graph.num_classes)
    if not says:
        del model.num_layers
    trial = Trial(model, graph, TrainConfig(fanouts=(2, 2) if says else (2, 2, 2)))
    layers, nodes = 2 if says else 3, graph.split("test")
    monkeypatch.setattr(seconds, "_scoring", lambda trial, nodes, mode: 1.0)
    monkeypatch.setattr(seconds, "_LONGEST_PASS", layers + 0.1)
    assert evaluation_seconds(trial, nodes, "exact").how == "exact, tried"
    monkeypatch.setattr(seconds, "_LONGEST_PASS", layers - 0.1)
    by_rates = evaluation_seconds(trial, nodes, "exact")
    assert by_rates == PartSeconds(float(layers), "by the machine's rates, not tried")


def test_exact_inference_in_chunks_of_nodes_is_tried_on_some():
    graph = random_graph(3000, 6, 8)
    trial = Trial(AsWritten(8, graph.num_classes), graph, TrainConfig(**OPTIONS, memory_budget_bytes=1 << 19))
    nodes = graph.split("test")
    found = evaluation_seconds(trial, nodes, "exact", most=0.01)
    assert found.seconds > 0
    assert found.how == f"256 of {nodes.numel()} nodes tried"


def alike_lists(num_nodes):
    """A graph in which nodes with neighbouring ids read the same 20 nodes: some of them reach nearly all."""
    ids = torch.arange(num_nodes)
    reads = (ids // 20 * 20)[:, None] + torch.arange(20)
    lists = torch.stack([reads.reshape(-1) % num_nodes, ids.repeat_interleave(20)])
    splits = {"train": ids[1::10], "val": ids[::10]}
    return Graph.from_edge_index(lists, num_nodes, x=torch.rand(num_nodes, 16), y=ids % 3, splits=splits)


def computed_by(monkeypatch):
    """Keep the level and the nodes of each chunk that is computed from now on."""
    seen, compute = [], LayerWise.rows

    def rows(self, one, chunk):
        seen.append((one.place.level, *chunk.tolist()))
        return compute(self, one, chunk)

    monkeypatch.setattr(LayerWise, "rows", rows)
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("in_memory", [True, False])
def test_chunks_of_layers_are_tried_that_the_evaluation_computes(monkeypatch, in_memory):
    graph = alike_lists(3000)
    model = gnn.GraphSAGE(graph.num_features, 8 if in_memory else 24, graph.num_classes, 2)
    trial = Trial(model, graph, TrainConfig(**OPTIONS, memory_budget_bytes=1 << 18))
    nodes, seen = graph.split("val"), computed_by(monkeypatch)
    assert seconds._scoring(trial, nodes, "exact") > 0
    chunks = seen.copy()
    assert len({ids for level, *ids in chunks for ids in ids if level < 2}) == graph.num_nodes, (
        "alike lists reach all"
    )
    seen.clear()
    found = evaluation_seconds(trial, nodes, "exact", most=60.0)
    assert set(seen) == set(chunks)
    levels = {level for level, *_ in chunks}
    assert len(seen) == len(chunks) + len(levels), "a warm-up of each level"
    assert found.seconds > 0


def test_few_chunks_of_layers_stand_for_all(monkeypatch):
    graph = alike_lists(3000)
    trial = trial_of(graph, memory_budget_bytes=1 << 18)
    ticks = itertools.count()
    monkeypatch.setattr(seconds, "time", types.SimpleNamespace(perf_counter=lambda: float(next(ticks))))
    monkeypatch.setattr(seconds, "timed", lambda run: (run(), 1.0)[1])
    found = evaluation_seconds(trial, graph.split("val"), "exact", most=12.0)
    tried, count = map(int, re.findall(r"[0-9]+", found.how))
    assert tried == 3 * (1 + 4), "of each pass a warm-up, and as many as its share of the time holds"
    assert found.seconds == pytest.approx(4 + count), (
        "one for each chunk, to begin, to write twice, and to score"
    )
    monkeypatch.setattr(seconds, "_MOST_LAYER_BYTES", 0)
    assert evaluation_seconds(trial, graph.split("val"), "exact").seconds is None


def test_an_epoch_writes_a_checkpoint_and_those_within_it(tmp_path):
    graph = random_graph(300, 6, 8)
    assert checkpoint_seconds(trial_of(graph), 10) is None
    for every, count in ((None, 1), (4, 3), (5, 2), (20, 1)):
        options = {"out_dir": tmp_path / "not" / "yet", "checkpoint_every_steps": every}
        found = checkpoint_seconds(trial_of(graph, **options), 10)
        assert found.seconds > 0
        assert found.how.startswith(f"{count} of ")
    assert not list(tmp_path.iterdir()), "what was written is removed"


def test_a_folder_that_cannot_be_written_has_no_time(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("graphbraid.estimates.seconds.checkpoint.write", full)
    found = checkpoint_seconds(trial_of(random_graph(300, 6, 8), out_dir=tmp_path), 10)
    assert found.seconds is None
    assert "No space left" in found.how


def test_every_part_of_a_run_has_a_line_of_its_own():
    exact = PartSeconds(1.0, "exact, tried")
    epoch = EpochSeconds(
        train=PartSeconds(2.0, "tried"),
        validation=exact,
        test=exact.times(3),
        first=0.5,
        checkpoints=PartSeconds(0.25, "1 of 2 MB"),
    )
    assert epoch.total == 3.25
    assert epoch.of_run(10) == 0.5 + 10 * 3.25 + 3.0
    names = [name for name, _ in epoch.parts()]
    assert names == ["training", "validation", "checkpoints", "(first epoch)", "(test)"]
    slower = epoch.scaled(2.0, "twice")
    assert (slower.first, slower.test.seconds, slower.checkpoints.seconds) == (1.0, 6.0, 0.25)
    unknown = EpochSeconds(train=PartSeconds(2.0), validation=PartSeconds(None, "not tried"))
    rows = list(ModeEstimate(mode="sampled", host=None, seconds=unknown, epochs=3).rows())
    assert rows == [
        ("epoch", "2 s", "6 s for 3 epochs"),
        ("  training", "2 s", ""),
        ("  validation", "not known", "not tried"),
    ]
    assert unknown.total == 2.0


@pytest.mark.usefixtures("known_baseline")
def test_an_estimate_shows_validation_checkpoints_and_test(tmp_path):
    graph = random_graph(300, 6, 8)
    found = graphbraid.estimate(sage(graph), graph, out_dir=tmp_path / "run", epochs=3, **OPTIONS)
    assert not (tmp_path / "run").exists()
    for mode in ("sampled", "full"):
        taken = found.of(mode).seconds
        assert min(taken.validation.seconds, taken.checkpoints.seconds, taken.test.seconds) > 0
        plain = next(part for part in found.to_json()["modes"] if part["mode"] == mode)["seconds"]
        assert plain["run"] == pytest.approx(taken.first + 3 * taken.total + taken.test.seconds)
        assert plain["train"]["seconds"] == taken.train.seconds
    lines = str(found).splitlines()
    for name in ("training", "validation", "checkpoints", "(test)"):
        assert sum(line.strip().startswith(name) for line in lines) >= 2, name
    assert sum("for 3 epochs" in line for line in lines) == 2
