"""Epochs of mini-batches predicted for many ranks: sums by hand, and shares that are measured."""

import dataclasses
import json
from statistics import fmean

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.train.communities import community_graph, new_model
from torch import nn

from graphbraid.distributed.ranks.gradients import BUCKET_BYTES
from graphbraid.errors import ConfigError
from graphbraid.estimates.ranks import Cluster, ShareTimes, forecast_sampled, late_seconds, predict_sampled
from graphbraid.nn import GraphSAGE
from graphbraid.train import TrainConfig

SECONDS = st.floats(0, 1)
LINK = Cluster(latency_seconds=0.0, bandwidth_bytes=1.0)
STEP = ShareTimes(
    num_ranks=2,
    num_batches=1.0,
    num_steps=1,
    step_seconds=2.0,
    cycle_seconds=2.0,
    buckets=(4,),
    tail_bytes=0,
    nodes=10,
    memory_bytes=1,
)

pytestmark = pytest.mark.usefixtures("known_baseline")


@st.composite
def share_times(draw):
    """Times of any share."""
    step = draw(SECONDS)
    return ShareTimes(
        num_ranks=draw(st.integers(1, 1024)),
        num_batches=draw(st.floats(0.1, 50)),
        num_steps=draw(st.integers(1, 10)),
        step_seconds=step,
        cycle_seconds=step + draw(SECONDS),
        buckets=tuple(draw(st.lists(st.integers(1, 1 << 24), min_size=1, max_size=4))),
        tail_bytes=draw(st.integers(8, 4096)),
        nodes=1,
        memory_bytes=1,
    )


def changed(**fields):
    return dataclasses.replace(STEP, **fields)


@pytest.mark.parametrize(
    ("times", "seconds", "waiting"),
    [
        (STEP, 2.0 + 4.0, 4.0),  # a ring of two ranks sends all 4 bytes
        (changed(tail_bytes=1), 7.0, 5.0),
        (changed(cycle_seconds=5.0), 6.0, 1.0),  # preparing hides 3 seconds
        (changed(cycle_seconds=9.0), 9.0, 0.0),
        (
            changed(buckets=(3, 1)),
            2.0 + 3.0 - 1 / 3 + 1.0,
            3.0 - 1 / 3 + 1.0,
        ),  # a quarter of backward hides 3
        (changed(num_batches=3.0), 2 * 2.0 + 6.0, 4.0),  # the first two batches are only added up
        (changed(num_batches=1.5, num_steps=2), 1.5 * 2.0 + 2 * 4.0, 8.0),  # the last batch is half of one
        (changed(sum_seconds=1.0), 2.0 + 1.0 + 4.0, 4.0),
        (changed(late_seconds=1.0), 2.0 + 1.0 + 4.0, 5.0),
        (changed(late_seconds=1.0, num_batches=3.0), 3 * (2.0 + 1.0) + 4.0, 4.0 + 3.0),  # late in each batch
        (changed(num_ranks=1), 2.0, 0.0),
    ],
)
def test_an_epoch_by_hand(times, seconds, waiting):
    found = predict_sampled(times, LINK)
    assert found.seconds == pytest.approx(seconds)
    assert found.waiting_seconds == pytest.approx(waiting)
    faster = predict_sampled(times, dataclasses.replace(LINK, speed=2.0, bandwidth_bytes=2.0))
    assert faster.seconds == pytest.approx(seconds / 2)


def test_moving_bytes_takes_cores_from_preparing_but_not_from_waiting():
    busy = dataclasses.replace(LINK, byte_processor_seconds=0.5)
    found = predict_sampled(STEP, busy)
    assert (found.seconds, found.moving_seconds) == (6.0, 2.0)
    found = predict_sampled(changed(cycle_seconds=5.0), busy)
    assert found.seconds == 7.0


@given(steps=st.lists(st.floats(1e-3, 1.0), max_size=20), num_ranks=st.integers(1, 64))
def test_the_latest_rank_is_no_later_than_the_longest_step_and_later_among_more_ranks(steps, num_ranks):
    late = late_seconds(steps, num_ranks)
    assert 0 <= late <= late_seconds(steps, num_ranks + 1) + 1e-9
    assert late <= max(steps, default=0) - fmean(steps or [0]) + 1e-9
    assert late_seconds(steps, 1) == 0


def test_the_latest_of_two_ranks_by_hand():
    assert late_seconds([1.0, 3.0], 2) == 0.5  # of four pairs three have a 3
    assert late_seconds([1.0, 3.0], 2, accumulate=2) == 0.0  # ranks meet after both


@given(times=share_times(), cost=st.sampled_from([0.0, 1e-9]))
def test_a_faster_network_never_makes_an_epoch_longer_and_none_beats_computing(times, cost):
    slow = Cluster(bandwidth_bytes=1e6, byte_processor_seconds=cost, message_processor_seconds=cost)
    before, after = (
        predict_sampled(times, cluster)
        for cluster in (slow, dataclasses.replace(slow, bandwidth_bytes=1e9, latency_seconds=0.0))
    )
    assert after.seconds <= before.seconds * (1 + 1e-9)
    assert after.seconds * (1 + 1e-9) >= after.compute_seconds + after.moving_seconds
    assert (after.sent_bytes == 0) == (times.num_ranks == 1)


# ---- measured shares


def forecast(graph=None, model=None, **options):
    graph = graph or community_graph(num_nodes=600)
    model = model or GraphSAGE(graph.num_features, 8, graph.num_classes, num_layers=2)
    config = TrainConfig(**({"batch_size": 32, "fanouts": (4, 3), "threads": 1} | options.pop("config", {})))
    given = {"counts": [1, 2, 32], "cluster": Cluster(), "seconds": 0.0} | options
    return forecast_sampled(model, graph, config, **given)


def test_a_forecast_changes_neither_model_nor_random_numbers_and_says_what_it_rests_on():
    graph = community_graph(num_nodes=600)
    model = new_model(graph)
    before, state = [p.clone() for p in model.parameters()], torch.get_rng_state()
    found = forecast(graph, model)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert torch.get_rng_state().equal(state)
    assert [epoch.num_ranks for epoch in found.epochs] == [1, 2, 32]
    assert found.speedup(found.epochs[0]) == found.epochs[0].details["read_by"] == 1.0
    assert found.epochs[2].details["read_by"] > found.epochs[1].details["read_by"] > 1.0
    for epoch in found.epochs:
        assert epoch.memory_bytes > graph.nbytes
    said = json.loads(json.dumps(found.to_json()))
    assert said["epoch"] == {"num_seeds": 200, "batch_size": 32, "accumulate": 1}
    times = said["predictions"][2]["times"]
    assert times["buckets"] == [4 * sum(p.numel() for p in before)]
    assert times["tail_bytes"] == 8 * (2 * len(before) + 4)
    assert min(times["step_seconds"], times["cycle_seconds"], times["sum_seconds"]) > 0
    assert (
        said["predictions"][0]["times"]["sum_seconds"] == said["predictions"][0]["times"]["late_seconds"] == 0
    )
    assert any("Validation" in sentence for sentence in found.assumptions)


def test_models_larger_than_a_bucket_are_summed_in_several():
    graph = community_graph(num_nodes=600)

    class Wide(GraphSAGE):
        def __init__(self):
            super().__init__(graph.num_features, 8, graph.num_classes, num_layers=2)
            self.wide = nn.ModuleList([nn.Linear(BUCKET_BYTES // 1024, 256) for _ in range(2)])

        def forward(self, x, blocks):
            out = super().forward(x, blocks)
            return out + sum(layer(x.new_ones(1, layer.in_features)).sum() for layer in self.wide) * 1e-6

    found = forecast(graph, Wide(), counts=[1, 2]).epochs[1]
    assert len(found.details["times"].buckets) > 1
    assert found.sent_bytes > sum(found.details["times"].buckets)


@pytest.mark.slow
def test_a_last_batch_and_steps_of_several_batches_are_counted():
    times = forecast(config={"accumulate": 3}, counts=[1]).epochs[0].details["times"]
    assert (times.num_batches, times.num_steps) == (6.25, 3)
    few = forecast(config={"batch_size": 1000}, counts=[1, 200])
    assert few.epoch["batch_size"] == 200
    assert [epoch.details["times"].num_steps for epoch in few.epochs] == [1, 1]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"counts": [1, 64]}, "64 ranks are more than a batch has seeds .batch_size=32."),
        ({"counts": [1, 512], "config": {"batch_size": 1024}}, "200 training nodes and batch_size=1024"),
        ({"config": {"task": "link"}}, "task='link' has none"),
        ({"config": {"fanouts": (4,)}}, "fanouts"),
        ({"config": {"plan": "cpu"}}, "plan='cpu': ranks are predicted on CPUs"),
        ({"config": {"hot": 1 << 20}}, "hot=1048576: ranks are predicted with all features in the memory"),
        ({"config": {"host": 1 << 20}}, "all features in the memory of each"),
    ],
)
def test_what_ranks_do_not_train_is_refused(options, says):
    with pytest.raises(ConfigError, match=says):
        forecast(**options)


def test_a_device_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ConfigError, match="ranks are predicted on CPUs"):
        forecast(config={"device": "cuda"})
