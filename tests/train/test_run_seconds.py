"""What the time of a run counts before it begins: training, and waits for a store's file."""

from pathlib import Path

import pytest
import torch
from tests.train.communities import community_graph

from graphbraid import Trainer
from graphbraid import nn as gnn
from graphbraid.datasets import open_store, save_store
from graphbraid.estimates import limits, seconds, tiers
from graphbraid.estimates.memory import sampled_needs
from graphbraid.estimates.tiers import RunSeconds
from graphbraid.estimates.trial import Trial
from graphbraid.features import score
from graphbraid.sampling import SamplerConfig, SeedSchedule
from graphbraid.train import TrainConfig

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
    monkeypatch.setattr(tiers, "training_seconds", lambda trial, share: 5.0)


def test_steps_are_timed_without_the_store_s_rows(store, monkeypatch):
    read, gather = [], seconds._MadeUpRows.gather

    def gathered(*args, **named):
        read.append(1)
        return gather(*args, **named)

    monkeypatch.setattr(seconds._MadeUpRows, "gather", gathered)
    trial = trial_of(open_store(store))
    assert seconds.training_seconds(trial) > 0
    assert read
    assert trial.runner.rows is None
    read.clear()
    assert seconds.training_seconds(trial_of(open_store(store, mmap=False))) > 0
    assert not read


def mapped_bytes():
    """Return the bytes of the features' file that this process has mapped into memory."""
    lines = Path("/proc/self/smaps").read_text().splitlines()
    starts = [n for n, line in enumerate(lines) if line.endswith("x.npy")]
    sizes = [next(line for line in lines[n:] if line.startswith("Rss:")) for n in starts]
    assert sizes
    return sum(1024 * int(size.split()[1]) for size in sizes)


def test_what_is_counted_before_a_run_maps_no_rows_of_the_store(store, monkeypatch):
    monkeypatch.setattr(
        "graphbraid.train.run.setup.most_bytes", lambda *_: 1 << 60
    )  # so that a step is tried
    tried = []
    monkeypatch.setattr(limits, "sampled_needs", lambda *a, **b: tried.append(1) or sampled_needs(*a, **b))
    graph = open_store(store)
    before = mapped_bytes()
    options = OPTIONS | {
        "host": "310KiB",
        "eval_every": 0,
        "test_at_end": False,
    }  # evaluations may read all rows
    Trainer(sage(graph), graph, mode="sampled", **options).fit()
    assert tried
    assert mapped_bytes() == before


def test_a_run_takes_as_long_as_the_slower_of_training_and_reading(store, monkeypatch, steps_of_a_second):
    graph = open_store(store)
    reads = reads_of(graph)
    monkeypatch.setattr(tiers, "rows_per_second", lambda graph, host: 10.0)
    found = RunSeconds(trial_of(graph), host=0)
    assert found.waits
    assert "waiting for the disk not counted, as all epochs are allowed without it" in found.counted
    least = 5 * float(reads.sum()) / 10.0  # and the blocks of lists, of which none is held
    assert found.with_reads(reads) > least
    assert "reads an epoch at 10 a second" in found.counted
    assert RunSeconds(trial_of(graph), host=0, rate=1e12).with_reads(reads) == 5.0
    assert RunSeconds(trial_of(graph), host="1GiB").with_reads(reads) == 5.0
    assert RunSeconds(trial_of(graph, hot="1GiB"), host="1GiB").with_reads(reads) == 5.0
    in_memory = RunSeconds(trial_of(graph), host=None)
    assert (in_memory.waits, in_memory.with_reads(reads), in_memory.counted) == (False, 5.0, "training 5 s")


def test_what_a_disk_of_another_machine_takes_is_not_guessed(store, steps_of_a_second):
    graph = open_store(store)
    found = RunSeconds(trial_of(graph), host=0, is_here=False)
    assert not found.waits
    assert found.with_reads(torch.ones(graph.num_nodes)) == 5.0
    assert found.counted.endswith("waiting for the disk not counted, as its rate is not known")


def test_a_run_that_waits_for_its_disk_may_look_ahead_further(store, monkeypatch, steps_of_a_second):
    graph = open_store(store)

    def said(rate):
        monkeypatch.setattr(tiers, "rows_per_second", lambda graph, host: rate)
        monkeypatch.setattr("graphbraid.features.scores.choice.sampling_seconds", lambda *_: 1.0)
        return Trainer(sage(graph), graph, host="310KiB", **OPTIONS).tiers.explain()

    slow, fast = said(1e-3), said(1e12)
    assert "filled by the score lookahead: 5 epochs looked ahead in" in slow
    assert "(training 5 s; waiting for the disk " in slow
    assert (
        "looking 1 epoch ahead would take about 1 s, more than the 0.1 s that are 2% of the run's 5 s" in fast
    )
    assert "waiting for the disk 0 s, by " in fast
