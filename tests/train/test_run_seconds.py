"""What the time of a run counts before it begins: training, evaluations, and waits for a store's file."""

import pytest
import torch
from tests.train.communities import community_graph

from graphbraid import Trainer
from graphbraid import nn as gnn
from graphbraid.datasets import open_store, save_store
from graphbraid.errors import ResourceError
from graphbraid.estimates.trial import PartSeconds, Trial
from graphbraid.features import score
from graphbraid.sampling import SamplerConfig, SeedSchedule
from graphbraid.train import TrainConfig
from graphbraid.train.estimating import disk_waits, run_seconds
from graphbraid.train.estimating.seconds import run_evaluations
from graphbraid.train.step.feed import Share

OPTIONS = {"fanouts": (4, 4), "batch_size": 32, "epochs": 5, "eval_mode": "exact"}


def sage(graph):
    return gnn.GraphSAGE(graph.num_features, 8, graph.num_classes, 2)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return save_store(community_graph(), tmp_path_factory.mktemp("stores") / "store")


def trial_of(graph, **options):
    trial = Trial(sage(graph), graph, TrainConfig(**(OPTIONS | options)))
    trial.try_model()
    return trial


def reads_of(graph):
    sampler = SamplerConfig(fanouts=OPTIONS["fanouts"])
    schedule = SeedSchedule(seeds=graph.split("train"), batch_size=32, shuffle=True, drop_last=False, seed=0)
    return score(graph, "inclusion", sampler=sampler, schedule=schedule).values


@pytest.fixture
def steps_of_a_second(monkeypatch):
    """Lets all training steps of a run take five seconds."""
    monkeypatch.setattr(run_seconds, "seconds_of_steps", lambda trial, share: 5.0)


@pytest.mark.parametrize(("every", "count"), [(1, 5), (2, 3), (5, 1), (9, 1)])
def test_evaluations_count_as_often_as_the_run_makes_them(
    store, monkeypatch, steps_of_a_second, every, count
):
    tried = []
    monkeypatch.setattr(
        run_evaluations,
        "as_it_is",
        lambda trial, nodes, most: tried.append(nodes) or PartSeconds(2.0, "exact, tried"),
    )
    graph = open_store(store, mmap=False)
    found = run_seconds.RunSeconds(trial_of(graph, eval_every=every), host=None)
    assert found.least == 5.0 + 2.0 * count + 2.0
    assert [nodes.tolist() for nodes in tried] == [graph.split(name).tolist() for name in ("val", "test")]
    validations = f"{count} validation{'s' * (count > 1)}, exact, tried: {2 * count} s"
    assert found.counted == f"training 5 s; {validations}; the test, exact, tried: 2 s"
    assert not found.waits
    assert found.with_reads(reads_of(graph)) == found.least
    without = run_seconds.RunSeconds(trial_of(graph, eval_every=0, test_at_end=False), host=None)
    assert (without.least, without.counted) == (5.0, "training 5 s")


def test_ranks_divide_sampled_evaluations(store, monkeypatch, steps_of_a_second):
    monkeypatch.setattr(
        run_evaluations, "evaluation_seconds", lambda *args, **named: PartSeconds(2.0, "tried")
    )
    trial = trial_of(open_store(store, mmap=False), eval_mode="sampled", test_at_end=False)
    assert run_seconds.RunSeconds(trial, host=None, share=Share(0, 2)).least == 5.0 + 5 * 2.0 / 2


def test_evaluations_that_are_not_tried_are_said_and_not_guessed(store, monkeypatch, steps_of_a_second):
    """An exact one reads all of a file's rows, takes too long, or fails as it will in the run."""
    mapped = run_seconds.RunSeconds(trial_of(open_store(store)), host=None)
    assert mapped.least == 5.0
    assert "5 validations, reading all of a file's rows: not counted; the test, reading" in mapped.counted
    trial = trial_of(open_store(store, mmap=False))
    monkeypatch.setattr(run_evaluations, "MOST_BYTES", 1000)
    assert "too long to be tried: not counted" in run_seconds.RunSeconds(trial, host=None).counted

    def fail(*_, **__):
        raise ResourceError("no room")

    monkeypatch.undo()
    monkeypatch.setattr(run_seconds, "seconds_of_steps", lambda trial, share: 5.0)
    monkeypatch.setattr(run_evaluations, "as_it_is", fail)
    found = run_seconds.RunSeconds(trial, host=None)
    assert found.least == 5.0
    assert "failing with ResourceError: not counted" in found.counted


def test_sampled_evaluations_are_tried_without_the_store_s_rows(store, monkeypatch, steps_of_a_second):
    gathered = []
    gather = run_seconds.MadeUpRows.gather
    monkeypatch.setattr(
        run_seconds.MadeUpRows, "gather", lambda *args, **named: gathered.append(1) or gather(*args, **named)
    )
    trial = trial_of(open_store(store), eval_mode="sampled", test_at_end=False)
    found = run_seconds.RunSeconds(trial, host=None)
    assert gathered
    assert found.least > 5.0
    assert "nodes tried" in found.counted
    assert trial.runner.rows is None


def test_an_epoch_takes_as_long_as_the_slower_of_training_and_reading(store, monkeypatch, steps_of_a_second):
    graph = open_store(store)
    reads = reads_of(graph)
    monkeypatch.setattr(disk_waits, "rows_per_second", lambda disk: 10.0)
    found = run_seconds.RunSeconds(trial_of(graph, eval_every=0, test_at_end=False), host=0)
    assert found.waits
    assert "waiting for the disk: not counted, as all epochs are allowed without it" in found.counted
    least = 5 * float(reads.sum()) / 10.0  # and the blocks of lists, of which none is held
    assert found.with_reads(reads) > least
    assert "waiting for the disk 1" in found.counted or "waiting for the disk 2" in found.counted
    assert "reads an epoch at 10 a second" in found.counted
    fast = run_seconds.RunSeconds(trial_of(graph, eval_every=0, test_at_end=False), host=0, rate=1e12)
    assert fast.with_reads(reads) == 5.0
    held = run_seconds.RunSeconds(trial_of(graph, eval_every=0, test_at_end=False), host="1GiB")
    assert held.with_reads(reads) == 5.0
    hot = run_seconds.RunSeconds(trial_of(graph, eval_every=0, test_at_end=False, hot="1GiB"), host="1GiB")
    assert hot.with_reads(reads) == 5.0


def test_what_a_disk_of_another_machine_takes_is_not_guessed(store, steps_of_a_second):
    graph = open_store(store)
    trial = trial_of(graph, eval_every=0, test_at_end=False)
    found = run_seconds.RunSeconds(trial, host=0, is_here=False)
    assert not found.waits
    assert found.with_reads(torch.ones(graph.num_nodes)) == 5.0
    assert found.counted.endswith("waiting for the disk: not counted, as its rate is not known")


def test_a_run_that_waits_for_its_disk_may_look_ahead_further(store, monkeypatch, steps_of_a_second):
    graph = open_store(store)

    def said(rate):
        monkeypatch.setattr(disk_waits, "rows_per_second", lambda disk: rate)
        monkeypatch.setattr("graphbraid.features.scores.choice.sampling_seconds", lambda *_: 1.0)
        return Trainer(sage(graph), graph, host="310KiB", **OPTIONS).tiers.explain()

    slow, fast = said(1e-3), said(1e12)
    assert "filled by the score lookahead: 5 epochs looked ahead in" in slow
    assert "(training 5 s; 5 validations, reading all of a file's rows: not counted;" in slow
    assert (
        "looking 1 epoch ahead would take about 1 s, more than the 0.1 s that are 2% of the run's 5 s" in fast
    )
    assert "waiting for the disk 0 s, by " in fast
